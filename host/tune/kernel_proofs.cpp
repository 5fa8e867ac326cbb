#include "host/tune/kernel_proofs.h"

#include <algorithm>
#include <array>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/attention_rules.h"
#include "atelier/host/device_graph.h"
#include "atelier/host/device_traits.h"

#include "host/tune/coded_layer.h"
#include "memory/four_bit.h"

namespace atelier::tune {
namespace {

using at::Tensor;

// An operator of all that it is given.
Operator plain(std::string name, Tensors inputs, std::function<Tensors(const Tensors&)> run) {
  return {std::move(name), std::move(inputs), [run](const Tensors& in) {
            return Traced{run(in), in};
          }};
}

// An operator whose inputs at these places are float32 beside any dtype.
Operator beside(Operator op, std::vector<size_t> of_float32) {
  op.of_float32 = std::move(of_float32);
  return op;
}

// --- rows ---

// Tensors of a row, and of a sample.
struct Rows {
  Rows(const Sizes& sizes, const Noise& noise) : rows(sizes.samples), noise(noise) {
    n = rows.total(), s = rows.count(), d = sizes.width;
  }
  Tensor wide() const { return noise({n, d}); }
  Tensor by_sample() const { return noise({s, d}); }
  Tensor weight() const { return noise({d}); }

  Segments rows;
  const Noise& noise;
  int64_t n, s, d;
};

std::vector<Operator> norm_modulate(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  const Segments rows = r.rows;
  const int64_t d = r.d;
  const auto make = [&](std::string name) {
    return plain(std::move(name), {r.wide() + 0.5, r.by_sample(), r.by_sample()},
                 [rows](const Tensors& in) {
                   return Tensors{ops::norm_modulate(in[0], in[1], in[2], rows)};
                 });
  };
  const Operator strided =
      plain("norm_modulate, strided", {r.wide() + 0.5, noise({r.s, 6 * d})},
            [rows, d](const Tensors& in) {
              return Tensors{ops::norm_modulate(in[0], in[1].narrow(1, d, d),
                                                in[1].narrow(1, 4 * d, d), rows)};
            });
  return {make("norm_modulate"), strided, beside(make("norm_modulate of float32"), {1, 2})};
}

std::vector<Operator> gate_residual(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  const auto make = [&](std::string name) {
    return plain(std::move(name), {r.wide(), r.wide(), r.by_sample()},
                 [rows = r.rows](const Tensors& in) {
                   return Tensors{ops::gate_residual(in[0], in[1], in[2], rows)};
                 });
  };
  return {make("gate_residual"), beside(make("gate_residual of float32"), {2})};
}

std::vector<Operator> gate_residual_norm_modulate(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  const auto make = [&](std::string name) {
    return plain(std::move(name),
                 {r.wide() + 0.5, r.wide(), r.by_sample(), r.by_sample(), r.by_sample()},
                 [rows = r.rows](const Tensors& in) {
                   auto [sum, out] =
                       ops::gate_residual_norm_modulate(in[0], in[1], in[2], in[3], in[4], rows);
                   return Tensors{sum, out};
                 });
  };
  return {make("gate_residual_norm_modulate"),
          beside(make("gate_residual_norm_modulate of float32"), {2, 3, 4})};
}

std::vector<Operator> layer_norm(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  const auto make = [&](std::string name) {
    return plain(std::move(name), {r.wide() + 0.5, r.weight(), r.weight()},
                 [](const Tensors& in) { return Tensors{ops::layer_norm(in[0], in[1], in[2])}; });
  };
  return {make("layer_norm"), beside(make("layer_norm of float32"), {1, 2})};
}

std::vector<Operator> rms_norm(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("rms_norm", {r.wide() + 0.5, r.weight()},
                [](const Tensors& in) { return Tensors{ops::rms_norm(in[0], in[1])}; })};
}

std::vector<Operator> rms_norm_modulate(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("rms_norm_modulate", {r.wide() + 0.5, r.weight(), r.by_sample()},
                [rows = r.rows](const Tensors& in) {
                  return Tensors{ops::rms_norm_modulate(in[0], in[1], in[2], rows, 1e-5)};
                })};
}

std::vector<Operator> rms_gate_residual(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("rms_gate_residual", {r.wide() + 0.5, r.wide(), r.weight(), r.by_sample()},
                [rows = r.rows](const Tensors& in) {
                  return Tensors{ops::rms_gate_residual(in[0], in[1], in[2], in[3], rows, 1e-5)};
                })};
}

std::vector<Operator> rms_gate_residual_norm_modulate(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("rms_gate_residual_norm_modulate",
                {r.wide() + 0.5, r.wide(), r.weight(), r.by_sample(), r.weight(), r.by_sample()},
                [rows = r.rows](const Tensors& in) {
                  auto [sum, out] = ops::rms_gate_residual_norm_modulate(in[0], in[1], in[2], in[3],
                                                                         in[4], in[5], rows, 1e-5);
                  return Tensors{sum, out};
                })};
}

std::vector<Operator> swiglu(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("swiglu", {4 * r.wide(), r.wide()},
                [](const Tensors& in) { return Tensors{ops::swiglu(in[0], in[1])}; })};
}

std::vector<Operator> gelu_tanh(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  return {plain("gelu_tanh", {4 * r.wide()},
                [](const Tensors& in) { return Tensors{ops::gelu_tanh(in[0])}; })};
}

// --- heads ---

// The heads of some rows; the angles are no inputs, and have the dtype that norms are computed in.
ops::RopeStream stream(const Tensor& x, const Tensor& weight, const Tensor& angle,
                       const Segments& rows) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor there = angle.to(x.device());
  return {x, weight, there.cos().to(type), there.sin().to(type), rows};
}

std::vector<Operator> norm_rope(const Sizes& sizes, const Noise& noise) {
  const Segments rows(sizes.samples), others({5, 3, 0, 9});
  const int64_t n = rows.total(), heads = sizes.heads, width = sizes.head_width;
  const Tensor angle = noise({n, width / 2}), other_angle = noise({others.total(), width / 2});
  std::vector<Operator> all;
  for (const ops::RopeLayout layout : {ops::RopeLayout::kInterleaved, ops::RopeLayout::kHalves}) {
    const auto rope = [=](const Tensor& x, const Tensor& weight) {
      const ops::RopeStream s = stream(x, weight, angle, rows);
      return Tensors{ops::norm_rope(s.x, s.weight, s.cos, s.sin, layout)};
    };
    all.push_back(plain("norm_rope", {noise({n, heads, width}), noise({width})},
                        [rope](const Tensors& in) { return rope(in[0], in[1]); }));
    all.push_back(plain("rope of a slice", {noise({n, 3, heads, width})},
                        [rope](const Tensors& in) { return rope(in[0].select(1, 1), Tensor()); }));
    if (rows.count() != others.count()) continue;
    all.push_back(plain("joined_norm_rope",
                        {noise({n, heads, width}), noise({width}),
                         noise({others.total(), heads, width}), noise({width})},
                        [=](const Tensors& in) {
                          return Tensors{ops::joined_norm_rope(
                              stream(in[0], in[1], angle, rows),
                              stream(in[2], in[3], other_angle, others), layout)};
                        }));
  }
  return all;
}

// --- images ---

using ImageNorm = std::function<Tensor(const Tensors& in, bool silu)>;

// With channels that lie side by side, which the kernels take, and otherwise. Sums over images are
// LibTorch's in part, which repeat no bits.
std::vector<Operator> image_norms(const std::string& name, const Sizes& sizes, const Noise& noise,
                                  int weights, const ImageNorm& norm) {
  const int64_t side = sizes.image_side, channels = sizes.image_channels;
  std::vector<Operator> all;
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
    for (const bool silu : {true, false}) {
      Tensors inputs = {noise({2, channels, side, side}) + 0.5};
      for (int i = 0; i < weights; ++i) inputs.push_back(noise({channels}));
      Operator op = plain(name, std::move(inputs), [=](const Tensors& in) {
        Tensors laid_out = in;
        laid_out[0] = in[0].contiguous(format);
        return Tensors{norm(laid_out, silu)};
      });
      op.repeats = false;
      op.is_timed = format == at::MemoryFormat::ChannelsLast;
      all.push_back(std::move(op));
    }
  }
  return all;
}

std::vector<Operator> group_norm(const Sizes& sizes, const Noise& noise) {
  return image_norms("group_norm", sizes, noise, 2, [](const Tensors& in, bool silu) {
    return ops::group_norm(in[0], in[1], in[2], 8, 1e-6, silu);
  });
}

std::vector<Operator> channel_norm(const Sizes& sizes, const Noise& noise) {
  return image_norms("channel_norm", sizes, noise, 1, [](const Tensors& in, bool silu) {
    return ops::channel_norm(in[0], in[1], silu);
  });
}

// --- codes of 8 bits ---

// An operator whose kernel makes a layer's codes on its way, once the layer has asked for some:
// they are those that are made of its result by themselves. Nothing is left of their difference.
Operator codes_on_the_way(Operator op, const memory::Quantized& codes) {
  op.name += " into codes";
  op.is_timed = false;
  op.run = [run = op.run, codes](const Tensors& in) {
    Traced traced = run(in);
    const Tensor rows = traced.outputs.back();
    const Tensor others = rows.clone();  // whose codes are nowhere yet
    traced.outputs = {coded_product(rows, codes, /*is_w8a8=*/true) -
                      coded_product(others, codes, /*is_w8a8=*/true)};
    return traced;
  };
  return op;
}

std::vector<Operator> row_codes(const Sizes& sizes, const Noise& noise) {
  const Rows r(sizes, noise);
  std::vector<Operator> all;
  for (const auto kind : {memory::QuantizedKind::kFp8, memory::QuantizedKind::kInt8}) {
    const memory::Quantized codes =
        memory::quantize(noise({sizes.layer_width, r.d}).to(at::kFloat), kind);
    for (const bool is_w8a8 : {true, false}) {
      all.push_back(plain("row_codes", {r.wide()}, [=](const Tensors& in) {
        return Tensors{coded_product(in[0], codes, is_w8a8)};
      }));
    }
    for (const auto& cases : {norm_modulate, gate_residual_norm_modulate, gelu_tanh})
      all.push_back(codes_on_the_way(cases(sizes, noise).front(), codes));
  }
  return all;
}

// --- weights as blocks of small codes ---

// A matrix of any codes in blocks of GGUF.
memory::Packed gguf_matrix(memory::Packing packing, int64_t rows, int64_t columns,
                           at::Device device) {
  const memory::BlockSize block = memory::block_size(packing);
  Tensor blocks = at::randint(0, 256, {rows * columns / block.values, block.bytes},
                              at::TensorOptions(at::kByte).device(device));
  // Where float16 numbers may stand, they are below 2^-5.
  for (const int64_t at : {int64_t{1}, int64_t{3}, block.bytes - 3, block.bytes - 1})
    blocks.select(1, at).bitwise_and_(0xa7);
  return {packing, {rows, columns}, {blocks.view({rows, -1})}};
}

Operator packed_layer(const memory::Packed& packed, const Tensor& rows) {
  return plain("packed_codes", {rows},
               [packed](const Tensors& in) { return Tensors{packed_product(in[0], packed)}; });
}

// To the bit.
Operator packed_like_composed(const memory::Packed& packed, const Tensor& rows) {
  const std::string name(memory::packing_name(packed.packing));
  Operator op = plain("packed_codes of " + name, {rows}, [packed](const Tensors& in) {
    return Tensors{packed_difference(in[0], packed)};
  });
  op.is_timed = false;
  return op;
}

std::vector<Operator> packed_codes(const Sizes& sizes, const Noise& noise) {
  using memory::Packing;
  constexpr int64_t kBlock = 256, kFewRows = 40;
  const Rows r(sizes, noise);
  const Tensor rows = r.wide();
  const memory::Packed nf4 =
      memory::quantize_4bit(noise({sizes.layer_width, r.d}).to(at::kFloat), Packing::kNf4);
  std::vector<Operator> all = {packed_layer(nf4, rows), packed_like_composed(nf4, rows)};
  // Rows of GGUF are whole blocks.
  const int64_t columns = (r.d + kBlock - 1) / kBlock * kBlock;
  const Tensor wider = noise({r.n, columns});
  const auto matrix = [&](Packing packing, int64_t height) {
    return gguf_matrix(packing, height, columns, rows.device());
  };
  for (const Packing packing : {Packing::kQ4_K, Packing::kQ8_0})
    all.push_back(packed_layer(matrix(packing, sizes.layer_width), wider));
  for (int i = 0; i <= static_cast<int>(Packing::kQ6_K); ++i)
    all.push_back(packed_like_composed(matrix(static_cast<Packing>(i), kFewRows), wider));
  return all;
}

constexpr std::array kKernelProofs = {
    KernelProof{"norm_modulate", norm_modulate},
    KernelProof{"gate_residual", gate_residual},
    KernelProof{"gate_residual_norm_modulate", gate_residual_norm_modulate},
    KernelProof{"layer_norm", layer_norm},
    KernelProof{"rms_norm", rms_norm},
    KernelProof{"rms_norm_modulate", rms_norm_modulate},
    KernelProof{"rms_gate_residual", rms_gate_residual},
    KernelProof{"rms_gate_residual_norm_modulate", rms_gate_residual_norm_modulate},
    KernelProof{"norm_rope", norm_rope},
    KernelProof{"swiglu", swiglu},
    KernelProof{"gelu_tanh", gelu_tanh},
    KernelProof{"group_norm", group_norm},
    KernelProof{"channel_norm", channel_norm},
    KernelProof{"row_codes", row_codes},
    KernelProof{"packed_codes", packed_codes},
};

// --- times ---

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Milliseconds of a case, forward and backward: the median of several runs, each of several sets of
// tensors of its own, so that none is met in the device's cache and nothing of a run before counts.
struct Times {
  double composed_ms = 0.0, fused_ms = 0.0;
};
Times time_forms(const Operator& op, at::Device device) {
  constexpr int kWarmUps = 2, kRuns = 7, kSets = 3;
  const at::AutoGradMode grad(true);
  const auto run = [&](ops::Kernels kernels) {
    const ChosenKernels choice(kernels);
    std::vector<Tensors> sets(kSets);
    for (Tensors& set : sets) {
      for (size_t i = 0; i < op.inputs.size(); ++i)
        set.push_back(op.inputs[i]
                          .to(op.dtype_of(i, at::kBFloat16), /*non_blocking=*/false,
                              /*copy=*/true)
                          .requires_grad_());
    }
    std::vector<std::function<Traced()>> ready;
    for (const Tensors& leaves : sets) ready.push_back(op.ready(leaves));
    const double ms = milliseconds(device, [&] {
      for (const auto& run_ready : ready) {
        const Traced traced = run_ready();
        Tensors grads;
        for (const Tensor& output : traced.outputs) grads.push_back(output.detach());
        gradients(traced, grads);
      }
    });
    return ms / kSets;
  };
  std::vector<double> composed, fused;
  double first_ms = 0;
  for (int i = 0; i < kWarmUps + kRuns; ++i) {
    const double composed_ms = run(ops::Kernels::kComposed), fused_ms = run(ops::Kernels::kFused);
    if (i == 0) first_ms = kSets * fused_ms;
    if (i < kWarmUps) continue;
    composed.push_back(composed_ms), fused.push_back(fused_ms);
  }
  Times times = {median(composed), median(fused)};
  if (op.runs_a_plan > 0) {
    const double plan_ms = std::max(0.0, first_ms - kSets * times.fused_ms);
    times.fused_ms += plan_ms / static_cast<double>(op.runs_a_plan);
  }
  return times;
}

// The times of the case that gains least.
Times least_gain(const KernelProof& proof, std::span<const Sizes> timed_at, at::Device device) {
  const Noise noise = [&](at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions(device).dtype(at::kFloat));
  };
  std::optional<Times> least;
  for (const Sizes& sizes : timed_at) {
    for (const Operator& op : proof.cases(sizes, noise)) {
      if (!op.is_timed) continue;
      const Times times = time_forms(op, device);
      if (!least || times.fused_ms * least->composed_ms > least->fused_ms * times.composed_ms)
        least = times;
    }
  }
  return *least;
}

// What is wrong with a comparison; empty: nothing.
std::string problem_of(const Operator& op, at::ScalarType dtype, const Comparison& found) {
  const double least = bound(dtype) * op.slack;
  const auto at = [&] { return op.name + " in " + toString(dtype) + ": "; };
  if (!(found.value_error <= least))
    return at() + c10::str("values differ by ", found.value_error, " of the largest one");
  if (!(found.gradient_error <= 2 * least))
    return at() + c10::str("gradients differ by ", found.gradient_error, " of the largest one");
  if (!found.values_repeat || (op.repeats && !found.gradients_repeat))
    return at() + "not the same bits twice";
  return {};
}

// What is wrong with the first case that is.
std::string first_problem(const KernelProof& proof, std::span<const Sizes> right_at,
                          at::Device device) {
  const Noise noise = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
  for (const Sizes& sizes : right_at) {
    for (const Operator& op : proof.cases(sizes, noise)) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        if (dtype == at::kFloat && proof.is_of_halves) continue;
        const std::string problem =
            problem_of(op, dtype, compare(op, dtype, device, ops::Kernels::kFused));
        if (!problem.empty()) return problem;
      }
    }
  }
  return {};
}

}  // namespace

std::span<const KernelProof> kernel_proofs() {
  return kKernelProofs;
}

std::vector<KernelProof> proofs_for(at::Device device) {
  std::vector<KernelProof> all(kKernelProofs.begin(), kKernelProofs.end());
  const int capability = ops::compute_capability(device);
  for (const AttentionProof& attention : attention_proofs()) {
    const ops::ProvenAttention record = {ops::AttentionKernel::kCudnn, capability, capability,
                                         attention.head_dim, attention.is_uniform};
    const ops::AttentionCase wanted = {.capability = capability,
                                       .dtype = at::kBFloat16,
                                       .head_dim = attention.head_dim,
                                       .is_uniform = attention.is_uniform};
    if (ops::attention_kernel(wanted, {&record, 1}) == record.kernel)
      all.push_back(attention.proof);
  }
  if (ops::can_record_graphs(device.type())) {
    for (const GraphProof& graphs : graph_proofs()) all.push_back(graphs.proof);
  }
  if (!device.is_cpu()) std::ranges::copy(rate_proofs(), std::back_inserter(all));
  return all;
}

std::span<const Sizes> small_sizes() {
  static const std::array kSmall = {
      Sizes{{24, 0, 33, 7}, 96, 64, 3, 16, 9, 32}, Sizes{{5, 0, 70, 1}, 101, 48, 3, 22, 7, 40},
      Sizes{{9, 0, 30}, 3072, 64, 3, 128, 8, 256}, Sizes{{20, 3}, 3079, 40, 3, 96, 5, 264}};
  return kSmall;
}

std::span<const Sizes> model_sizes() {
  static const std::array kModels = {Sizes{{1280, 1088}, 2304, 9216, 24, 96, 256, 256},
                                     Sizes{{4160, 4160}, 3072, 12288, 24, 128, 512, 128},
                                     Sizes{{8192, 1024}, 5120, 13824, 40, 128, 128, 512}};
  return kModels;
}

Verdict prove(const KernelProof& proof, std::span<const Sizes> right_at,
              std::span<const Sizes> timed_at, at::Device device) {
  Verdict verdict;
  verdict.op = proof.op;
  at::manual_seed(1);
  try {
    verdict.problem = first_problem(proof, right_at, device);
    if (!verdict.problem.empty()) return verdict;
    const Times times = least_gain(proof, timed_at, device);
    verdict.composed_ms = times.composed_ms, verdict.fused_ms = times.fused_ms;
  } catch (const Error& error) {
    verdict.problem = error.message();  // that the device has none, say
  }
  return verdict;
}

}  // namespace atelier::tune
