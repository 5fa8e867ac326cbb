#include "memory/meta_bytes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/host/dry_run.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "memory/convolution_scratch.h"
#include "memory/live_bytes.h"
#include "support/catch.h"

namespace atelier::memory {
namespace {

constexpr int64_t kWidth = 128, kHeads = 4, kMlp = 512, kRank = 8;
constexpr int64_t kAllRows = 300 + 200;

// A transformer block as families write them, with a LoRA on its layers.
struct Layers : nn::Module {
  nn::Linear q{this, "q", kWidth, kWidth}, k{this, "k", kWidth, kWidth},
      v{this, "v", kWidth, kWidth}, out{this, "out", kWidth, kWidth}, up{this, "up", kWidth, kMlp},
      down{this, "down", kMlp, kWidth};
  nn::RMSNorm norm{this, "norm", kWidth / kHeads};

  explicit Layers(at::Device device) : Module(nullptr, "") {
    const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
    visit_weights([&](const std::string&, Weight& weight) {
      weight.set(at::zeros(weight.sizes(), options));
    });
    for (nn::Linear* layer : {&q, &k, &v, &out, &up, &down}) {
      layer->adapters.push_back(
          {at::zeros({kRank, layer->in_features()}, options).requires_grad_(),
           at::zeros({layer->out_features(), kRank}, options).requires_grad_()});
    }
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& modulation, const at::Tensor& angles) {
    const Segments rows({300, 200});
    const std::vector<at::Tensor> m = modulation.chunk(6, 1);
    const auto heads = [](const at::Tensor& t) { return t.view({-1, kHeads, kWidth / kHeads}); };
    const at::Tensor h = ops::norm_modulate(x, m[0], m[1], rows);
    const auto turn = [&](const nn::Linear& layer) {
      return ops::norm_rope(heads(layer.forward(h)), norm.weight->draw(), angles, angles,
                            ops::RopeLayout::kInterleaved);
    };
    const at::Tensor attended = ops::attention(turn(q), turn(k), heads(v.forward(h)), rows);
    const auto [y, g] =
        ops::gate_residual_norm_modulate(x, out.forward(attended), m[2], m[3], m[4], rows);
    return ops::gate_residual(y, down.forward(ops::gelu_tanh(up.forward(g))), m[5], rows);
  }
};

struct Bytes {
  int64_t without_graph = 0, saved = 0, step = 0;
};

template <typename Counter>
Bytes measure(at::Device device, const Counter& make_counter) {
  Layers layers(device);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor x = at::zeros({kAllRows, kWidth}, options).requires_grad_();
  const at::Tensor modulation = at::zeros({2, 6 * kWidth}, options);
  const at::Tensor angles = at::zeros({kAllRows, kWidth / kHeads / 2}, options);
  Bytes bytes;
  {
    const at::NoGradGuard no_grad;
    const auto counter = make_counter();
    layers.forward(x, modulation, angles);
    bytes.without_graph = counter->peak();
  }
  const auto counter = make_counter();
  const at::Tensor y = layers.forward(x, modulation, angles);
  bytes.saved = counter->now();
  std::vector<at::Tensor> leaves = {x};
  for (nn::Linear* layer : {&layers.q, &layers.up}) {
    leaves.push_back(layer->adapters[0].a);
    leaves.push_back(layer->adapters[0].b);
  }
  torch::autograd::grad({y}, leaves, {at::zeros_like(y)});
  bytes.step = counter->peak();
  return bytes;
}

TEST_CASE("A dry run holds the bytes of a real one", "[dry_run]") {
  const Bytes real = measure(at::kCPU, [] { return std::make_unique<LiveBytes>(at::kCPU); });
  const ops::DryRun dry(at::kCPU);
  const Bytes predicted = measure(at::kMeta, [] { return std::make_unique<MetaBytes>(); });
  // Offsets of the samples rest on the CPU whatever the device.
  CHECK(real.saved - predicted.saved == 3 * sizeof(int64_t));
  CHECK(static_cast<double>(predicted.without_graph) ==
        Approx(static_cast<double>(real.without_graph)).epsilon(0.03));
  CHECK(static_cast<double>(predicted.step) ==
        Approx(static_cast<double>(real.step)).epsilon(0.03));
}

TEST_CASE("A dry run counts products and attention", "[dry_run]") {
  Layers layers(at::kMeta);
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const at::NoGradGuard no_grad;
  const ops::DryRun dry(at::kCUDA);
  layers.forward(at::zeros({kAllRows, kWidth}, options), at::zeros({2, 6 * kWidth}, options),
                 at::zeros({kAllRows, kWidth / kHeads / 2}, options));
  const double base = 2.0 * kAllRows * (4 * kWidth * kWidth + 2 * kWidth * kMlp);
  const double adapters = 2.0 * kAllRows * kRank * (4 * 2 * kWidth + 2 * (kWidth + kMlp));
  CHECK(dry.product_flops() == Approx(base + adapters));
  CHECK(dry.attention_flops() == Approx(4.0 * (300.0 * 300 + 200 * 200) * kWidth));
}

TEST_CASE("A dry run of a convolution has its shapes and counts it", "[dry_run]") {
  nn::Conv2d conv(nullptr, "conv", 8, 16, 3, {.stride = 2, .padding = 1});
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  conv.weight->set(at::empty(conv.weight->sizes(), options));
  conv.bias->set(at::empty(conv.bias->sizes(), options));
  const ops::DryRun dry(at::kCPU);
  const at::Tensor y = conv.forward(at::empty({1, 8, 32, 32}, options));
  CHECK(y.sizes() == at::IntArrayRef({1, 16, 16, 16}));
  CHECK(dry.product_flops() == 2.0 * 16 * 16 * 16 * 8 * 9);
}

TEST_CASE("A dry run of a convolution over time holds the bytes of a real one", "[dry_run]") {
  const auto measure = [](at::Device device, const auto& make_counter) {
    const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
    nn::Conv3d conv(nullptr, "conv", 8, 16, {3, 3, 3}, {.stride = {1, 2, 2}});
    for (const WeightPtr& weight : {conv.weight, conv.bias}) {
      weight->set(at::zeros(weight->sizes(), options));
      weight->state().set_trainable(true);
    }
    const at::Tensor x = at::zeros({1, 8, 9, 33, 33}, options).requires_grad_();
    const auto counter = make_counter();
    const at::Tensor y = conv.forward(x);
    CHECK(y.sizes() == at::IntArrayRef({1, 16, 7, 16, 16}));
    const int64_t saved = counter->now();
    torch::autograd::grad({y}, {x, conv.weight->state().leaf(), conv.bias->state().leaf()},
                          {at::zeros_like(y)});
    return saved;
  };
  const int64_t real = measure(at::kCPU, [] { return std::make_unique<LiveBytes>(at::kCPU); });
  const ops::DryRun dry(at::kCPU);
  CHECK(measure(at::kMeta, [] { return std::make_unique<MetaBytes>(); }) == real);
  CHECK(dry.product_flops() == 3 * 2.0 * (16 * 7 * 16 * 16) * (8 * 27));
}

TEST_CASE("What convolutions work in on the CPU is known before they are made", "[dry_run]") {
  const at::NoGradGuard no_grad;
  struct Shape {
    int64_t channels, side, stride;
    at::ScalarType dtype;
  };
  // Small ones are measured as they are, large ones by fewer rows and columns.
  for (const Shape& shape : {Shape{8, 40, 1, at::kBFloat16}, Shape{16, 160, 1, at::kBFloat16},
                             Shape{16, 161, 2, at::kFloat}, Shape{16, 160, 1, at::kFloat}}) {
    const auto options = at::TensorOptions(at::kCPU).dtype(shape.dtype);
    const at::Tensor x = at::zeros({1, shape.channels, shape.side, shape.side}, options)
                             .contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor kernel = at::zeros({shape.channels, shape.channels, 3, 3}, options)
                                  .contiguous(at::MemoryFormat::ChannelsLast);
    const int64_t found = convolution_scratch({.x = x.sizes().vec(),
                                               .kernel = kernel.sizes().vec(),
                                               .stride = {shape.stride, shape.stride},
                                               .padding = {1, 1},
                                               .dtype = shape.dtype});
    const LiveBytes live(at::kCPU);
    const at::Tensor made =
        at::conv2d(x, kernel, {}, {shape.stride, shape.stride}, at::IntArrayRef{1, 1});
    const auto given = static_cast<int64_t>(made.nbytes());
    INFO(shape.channels << " channels of " << shape.side);
    CHECK(std::abs(given + found - live.peak()) <= live.peak() / 50);
  }
}

TEST_CASE("What convolutions of groups and of kernels with gaps work in on the CPU is known",
          "[dry_run]") {
  const at::NoGradGuard no_grad;
  struct Shape {
    int64_t length, groups, dilation;
  };
  for (const Shape& shape : {Shape{400, 4, 1}, Shape{400, 64, 1}, Shape{400, 1, 3},
                             Shape{9000, 4, 1}, Shape{9000, 4, 2}}) {
    const at::Tensor x = at::zeros({1, 64, shape.length});
    const at::Tensor kernel = at::zeros({64, 64 / shape.groups, 33});
    const int64_t found = convolution_scratch({.x = x.sizes().vec(),
                                               .kernel = kernel.sizes().vec(),
                                               .stride = {1},
                                               .padding = {16},
                                               .dilation = {shape.dilation},
                                               .groups = shape.groups,
                                               .dtype = at::kFloat});
    const LiveBytes live(at::kCPU);
    const at::Tensor made = at::conv1d(x, kernel, {}, 1, 16, shape.dilation, shape.groups);
    const auto given = static_cast<int64_t>(made.nbytes());
    INFO(shape.groups << " groups, " << shape.dilation << " apart, of " << shape.length);
    CHECK(std::abs(given + found - live.peak()) <= live.peak() / 50);
  }
}

TEST_CASE("What convolutions along a line work in on the CPU is known before they are made",
          "[dry_run]") {
  const at::NoGradGuard no_grad;
  for (const int64_t length : {400, 40000, 41001}) {
    const at::Tensor x = at::zeros({1, 64, length}), kernel = at::zeros({64, 64, 3});
    const int64_t found = convolution_scratch({.x = x.sizes().vec(),
                                               .kernel = kernel.sizes().vec(),
                                               .stride = {2},
                                               .padding = {0},
                                               .dtype = at::kFloat});
    const LiveBytes live(at::kCPU);
    const at::Tensor made = at::conv1d(x, kernel, {}, 2);
    const auto given = static_cast<int64_t>(made.nbytes());
    INFO(length);
    CHECK(std::abs(given + found - live.peak()) <= live.peak() / 50);
  }
}

TEST_CASE("Meta tensors are counted while somebody counts, and freed ones are not there",
          "[dry_run]") {
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  at::Tensor outlives;
  {
    MetaBytes bytes;
    outlives = at::empty({100}, options);
    {
      const at::Tensor more = at::empty({50}, options);
      CHECK(bytes.now() == 600);
    }
    CHECK(bytes.now() == 400);
    CHECK(bytes.peak() == 600);
    CHECK(bytes.written() == 600);
    bytes.forget_peak();
    CHECK(bytes.peak() == 400);
  }
  outlives.reset();
  const at::Tensor uncounted = at::empty({100}, options);
  CHECK(uncounted.numel() == 100);
}

}  // namespace
}  // namespace atelier::memory
