#include <array>
#include <bit>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"

#include "host/tune/kernel_proofs.h"
#include "memory/graph_runner.h"

namespace atelier::tune {
namespace {

using at::Tensor;

// What a denoiser's block launches. Inputs: rows [n, d], modulations [s, 6 d], cos and sin
// [n, head width / 2], and the offsets of samples.
class ProvenBlock final : public Block {
 public:
  explicit ProvenBlock(const Sizes& sizes)
      : Block(nullptr, "block"),
        d_(sizes.heads * sizes.head_width),
        heads_(sizes.heads),
        query_(this, "query", d_, d_),
        key_(this, "key", d_, d_),
        value_(this, "value", d_, d_),
        out_(this, "out", d_, d_),
        up_(this, "up", d_, 4 * d_),
        down_(this, "down", 4 * d_, d_) {}

  std::string_view kind() const override { return "proven"; }

  Tensors forward(const Tensors& in) override {
    const Tensor& x = in[0];
    const Segments rows = Segments::from_tensor(in[4]);
    const std::vector<Tensor> m = in[1].chunk(6, 1);
    const auto turned = [&](const Tensor& t) {
      return ops::norm_rope(heads(t), {}, in[2], in[3], ops::RopeLayout::kInterleaved);
    };
    const Tensor h = ops::norm_modulate(x, m[0], m[1], rows);
    const Tensor attended = ops::attention(turned(query_.forward(h)), turned(key_.forward(h)),
                                           heads(value_.forward(h)), rows);
    const auto [y, g] =
        ops::gate_residual_norm_modulate(x, out_.forward(attended), m[2], m[3], m[4], rows);
    const Tensor wide = ops::gelu_tanh(up_.forward(g));
    return {ops::gate_residual(y, down_.forward(wide), m[5], rows)};
  }

 private:
  Tensor heads(const Tensor& t) const { return t.view({-1, heads_, d_ / heads_}); }

  int64_t d_, heads_;
  nn::Linear query_, key_, value_, out_, up_, down_;
};

// Numbers that bfloat16 holds, about 1 / sqrt(columns) large, the same on every device.
Tensor some_weight(at::IntArrayRef sizes, at::Device device) {
  const auto columns = static_cast<uint64_t>(sizes.back());
  const auto scale = static_cast<double>(uint64_t{32} << (std::bit_width(columns) / 2));
  const Tensor place = at::arange(c10::multiply_integers(sizes), at::TensorOptions(device));
  const Tensor code = place.mul(40503).bitwise_right_shift(5).remainder(64);
  return code.to(at::kFloat).sub_(31.5).div_(scale).view(sizes);
}

constexpr int kRunsInTurn = 8;  // as of the blocks of a step

// A block that runs again and again, with its weights and inputs on a device.
class Repeated {
 public:
  Repeated(const Sizes& sizes, const Tensors& given, bool as_graphs)
      : block_(sizes), runner_(direct_) {
    const at::ScalarType dtype = given[0].scalar_type();
    block_.visit_weights([&](const std::string&, Weight& weight) {
      weight.set(some_weight(weight.sizes(), given[0].device()).to(dtype));
    });
    const auto angles = dtype == at::kDouble ? at::kDouble : at::kFloat;
    inputs_ = {given[0].detach(), given[1].detach(), given[2].detach().to(angles).cos(),
               given[2].detach().to(angles).sin(), Segments(sizes.samples).tensor()};
    if (!as_graphs) return;
    runner_.begin(
        {.recorder = ops::make_graph_recorder(given[0].device()),
         .warn = [](const std::string& what) { throw Error(ErrorCode::kUnsupported, what); }});
    const at::NoGradGuard no_grad;
    // The first time it runs as ever, then it is recorded.
    for (int i = 0; i < 2; ++i) runner_.run(block_, inputs_);
  }

  Tensor run() {
    const at::NoGradGuard no_grad;
    Tensors in = inputs_;
    for (int i = 0; i < kRunsInTurn; ++i) in[0] = runner_.run(block_, in)[0];
    return in[0];
  }

 private:
  ProvenBlock block_;
  DirectRunner direct_;
  memory::GraphRunner runner_;
  Tensors inputs_;
};

// Blocks run as graphs where fused kernels run, and otherwise launch by launch. Both have kernels
// of our own, which leave graphs the least to gain.
bool runs_graphs() {
  return ops::kernels() == ops::Kernels::kFused;
}

Sizes with_rows(const Sizes& sizes, int64_t rows) {
  Sizes result = sizes;
  result.samples = {rows};
  return result;
}

std::vector<Operator> graphs(const Sizes& sizes, const Noise& noise) {
  const int64_t d = sizes.heads * sizes.head_width;
  const Segments rows(sizes.samples);
  const Operator timed = {
      .name = "blocks as graphs",
      .inputs = {noise({rows.total(), d}), 0.1 * noise({rows.count(), 6 * d}),
                 noise({rows.total(), sizes.head_width / 2})},
      .run = {},
      .slack = 4.0,
      .prepare = [sizes](const Tensors& in) -> std::function<Traced()> {
        const bool is_exact = in[0].scalar_type() == at::kDouble;
        const auto block = std::make_shared<Repeated>(sizes, in, !is_exact && runs_graphs());
        return [block, is_exact] {
          const ChosenKernels kernels(is_exact ? ops::Kernels::kComposed : ops::Kernels::kFused);
          return Traced{{block->run()}, {}};
        };
      }};
  Operator same = timed;
  same.name = "graphs beside the same blocks";
  same.is_timed = false;
  same.prepare = [sizes](const Tensors& in) -> std::function<Traced()> {
    const bool is_exact = in[0].scalar_type() == at::kDouble;
    const auto plain = std::make_shared<Repeated>(sizes, in, /*as_graphs=*/false);
    const auto graphs = std::make_shared<Repeated>(sizes, in, !is_exact);
    return [plain, graphs] { return Traced{{graphs->run() - plain->run()}, {}}; };
  };
  return {timed, same};
}

template <int64_t kRows>
std::span<const Sizes> rows_of_model() {
  static const std::array kSizes = {with_rows(model_sizes()[1], kRows)};
  return kSizes;
}

template <int64_t kRows>
constexpr GraphProof proof(std::string_view name) {
  return {{name, graphs, /*is_of_halves=*/false, rows_of_model<kRows>}, kRows};
}

constexpr std::array kGraphProofs = {proof<256>("cuda_graphs_256"), proof<1280>("cuda_graphs_1280"),
                                     proof<4352>("cuda_graphs_4352")};

}  // namespace

std::span<const GraphProof> graph_proofs() {
  return kGraphProofs;
}

}  // namespace atelier::tune
