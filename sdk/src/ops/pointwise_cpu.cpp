// The fused pointwise kernels of the CPU: rows are shared out to threads, the loops are in
// cpu/row_kernels.inc.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ops/autograd_support.h"
#include "ops/cpu/row_kernels.h"
#include "ops/pointwise_kernels.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

// The loops for the best instruction set of this machine.
const RowKernels& loops_for(const Tensor& x) {
  static const RowKernels* const table = [] {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) return avx512_row_kernels();
    if (avx2) return avx2_row_kernels();
#endif
    return baseline_row_kernels();
  }();
  switch (x.scalar_type()) {
    case at::kDouble:
      return table[kFloat64];
    case at::kBFloat16:
      return table[kBFloat16];
    case at::kHalf:
      return table[kFloat16];
    default:
      return table[kFloat32];
  }
}

const char* at_element(const Tensor& t, int64_t element) {
  return static_cast<const char*>(t.const_data_ptr()) + element * t.element_size();
}
char* at_element(Tensor& t, int64_t element) {
  return static_cast<char*>(t.mutable_data_ptr()) + element * t.element_size();
}
// Null for an undefined tensor.
const void* at_element_or_null(const Tensor& t, int64_t element) {
  return t.defined() ? at_element(t, element) : nullptr;
}

// Rows that one call of a loop takes, all of one sample.
struct Chunk {
  int64_t first, count, sample;
};

// The cut depends on shapes only, so that sums come out the same whatever the number of threads.
std::vector<Chunk> chunks_of(const Segments& rows, int64_t width) {
  const int64_t step = std::max<int64_t>(64, 16384 / std::max<int64_t>(width, 1));
  std::vector<Chunk> chunks;
  for (int64_t s = 0; s < rows.count(); ++s) {
    for (int64_t first = rows.offset(s); first < rows.offset(s + 1); first += step) {
      chunks.push_back({first, std::min(step, rows.offset(s + 1) - first), s});
    }
  }
  return chunks;
}

template <typename F>
void for_each_chunk(const std::vector<Chunk>& chunks, const F& run) {
  at::parallel_for(0, chunks.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) run(chunks[c], c);
  });
}

// Sums over the rows of each sample, [S, width], gathered chunk by chunk.
class SampleSums {
 public:
  SampleSums(bool wanted, const Tensor& like, const std::vector<Chunk>& chunks, int64_t width) {
    if (!wanted) return;
    parts_ =
        at::zeros({static_cast<int64_t>(chunks.size()), width}, like.options().dtype(wide(like)));
  }

  void* of_chunk(int64_t c) {
    return parts_.defined() ? at_element(parts_, c * parts_.size(1)) : nullptr;
  }

  // Columns [first, first + width) of the sums, in the dtype of `like`.
  Tensor total(const std::vector<Chunk>& chunks, int64_t samples, int64_t first, int64_t width,
               const Tensor& like) const {
    const Tensor sums = wide_total(chunks, samples, first, width);
    return sums.defined() ? sums.to(like.scalar_type()) : sums;
  }

  // The total in the dtype that was summed in.
  Tensor wide_total(const std::vector<Chunk>& chunks, int64_t samples, int64_t first,
                    int64_t width) const {
    if (!parts_.defined()) return Tensor();
    const Tensor parts = parts_.narrow(1, first, width);
    Tensor sums = at::zeros({samples, width}, parts_.options());
    for (size_t c = 0; c < chunks.size();) {
      size_t end = c;
      while (end < chunks.size() && chunks[end].sample == chunks[c].sample) ++end;
      Tensor to = sums.select(0, chunks[c].sample);
      at::sum_out(to, parts.slice(0, c, end), 0);
      c = end;
    }
    return sums;
  }

 private:
  Tensor parts_;
};

Segments one_sample(int64_t rows) {
  return Segments({rows});
}

int64_t row_count(const Tensor& t) {
  return t.size(-1) == 0 ? 0 : t.numel() / t.size(-1);
}

// Rows of modulations as the loops take them, in the type of sums.
Tensor wide_rows(const Tensor& t) {
  return t.to(wide(t));
}

// Sums in the dtype of what they are the gradient of.
Tensor as_gradient(const Tensor& sums, const Tensor& of) {
  return sums.defined() ? sums.to(of.scalar_type()) : sums;
}

const char* row_of(const Tensor& rows, int64_t sample) {
  return at_element(rows, sample * rows.stride(0));
}

// (x - mean) / deviation * factor + shift; shift and factor: [S, D] in the type of sums.
Tensor norm_scale(const Tensor& x, const Tensor& shift, const Tensor& factor, const Segments& rows,
                  double eps) {
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    loops.norm_scale(at_element(x, c.first * width), row_of(shift, c.sample),
                     row_of(factor, c.sample), at_element(out, c.first * width), c.count, width,
                     eps);
  });
  return out;
}

// {x, shift, factor}: the last two [S, D] in the type of sums, undefined unless `wanted`. `added`
// may be undefined.
std::array<Tensor, 3> norm_scale_backward(const Tensor& grad, const Tensor& x, const Tensor& factor,
                                          const Tensor& added, const Segments& rows, double eps,
                                          bool wanted) {
  Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(wanted, x, chunks, 2 * width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.norm_scale_backward(at_element(grad, first), at_element(x, first),
                              row_of(factor, c.sample), at_element_or_null(added, first),
                              at_element(grad_x, first), sums.of_chunk(i), c.count, width, eps);
  });
  return {grad_x, sums.wide_total(chunks, rows.count(), 0, width),
          sums.wide_total(chunks, rows.count(), width, width)};
}

Tensor norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                     const Segments& rows, double eps) {
  return norm_scale(x, wide_rows(shift), wide_rows(scale) + 1, rows, eps);
}

std::array<Tensor, 3> norm_modulate_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& scale, const Tensor& added,
                                             const Segments& rows, double eps, bool modulation) {
  const auto [grad_x, of_shift, of_scale] =
      norm_scale_backward(grad, x, wide_rows(scale) + 1, added, rows, eps, modulation);
  return {grad_x, as_gradient(of_shift, scale), as_gradient(of_scale, scale)};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const auto row = [&](const Tensor& t) { return t.to(wide(x)).unsqueeze(0); };
  return norm_scale(x, row(bias), row(weight), one_sample(row_count(x)), eps);
}

std::array<Tensor, 3> layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                          double eps, bool weight_grad) {
  const Tensor factor = weight.to(wide(x)).unsqueeze(0);
  const auto [grad_x, of_bias, of_weight] =
      norm_scale_backward(grad, x, factor, Tensor(), one_sample(row_count(x)), eps, weight_grad);
  if (!weight_grad) return {grad_x, Tensor(), Tensor()};
  return {grad_x, as_gradient(of_weight.squeeze(0), weight),
          as_gradient(of_bias.squeeze(0), weight)};
}

Tensor gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows) {
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const Tensor gates = wide_rows(gate);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.gate_residual(at_element(x, first), at_element(y, first), row_of(gates, c.sample),
                        at_element(out, first), c.count, width);
  });
  return out;
}

std::array<Tensor, 2> gate_residual_backward(const Tensor& grad, const Tensor& y,
                                             const Tensor& gate, const Segments& rows,
                                             bool gate_grad) {
  Tensor grad_y = at::empty_like(grad);
  const int64_t width = grad.size(1);
  const RowKernels& loops = loops_for(grad);
  const Tensor gates = wide_rows(gate);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(gate_grad, grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.gate_residual_backward(at_element(grad, first), at_element_or_null(y, first),
                                 row_of(gates, c.sample), at_element(grad_y, first),
                                 sums.of_chunk(i), c.count, width);
  });
  return {grad_y, as_gradient(sums.wide_total(chunks, rows.count(), 0, width), gate)};
}

std::array<Tensor, 2> gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                  const Tensor& gate, const Tensor& shift,
                                                  const Tensor& scale, const Segments& rows,
                                                  double eps) {
  Tensor sum = at::empty_like(x), out = at::empty_like(x);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const Tensor gates = wide_rows(gate), shifts = wide_rows(shift), factors = wide_rows(scale) + 1;
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.gate_residual_norm_scale(at_element(x, first), at_element(y, first),
                                   row_of(gates, c.sample), row_of(shifts, c.sample),
                                   row_of(factors, c.sample), at_element(sum, first),
                                   at_element(out, first), c.count, width, eps);
  });
  return {sum, out};
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(one_sample(row_count(x)), width), [&](const Chunk& c, int64_t) {
    loops.rms_norm(at_element(x, c.first * width), weight.const_data_ptr(),
                   at_element(out, c.first * width), c.count, width, eps);
  });
  return out;
}

std::array<Tensor, 2> rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                        double eps, bool weight_grad) {
  Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(one_sample(row_count(x)), width);
  SampleSums sums(weight_grad, x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.rms_norm_backward(at_element(grad, first), at_element(x, first), weight.const_data_ptr(),
                            at_element(grad_x, first), sums.of_chunk(i), c.count, width, eps);
  });
  const Tensor total = sums.total(chunks, 1, 0, width, x);
  return {grad_x, total.defined() ? total.view({width}) : total};
}

// What a normal row is multiplied with, [S, D] in the type of sums: weight * by_sample, where
// by_sample is 1 + scale, the tanh of a gate, or undefined.
struct RmsFactor {
  RmsFactor(const Tensor& weight, const Tensor& by_sample, int64_t samples)
      : weight(weight.to(wide(weight))), by_sample(by_sample) {
    rows = by_sample.defined() ? (this->weight * by_sample).contiguous()
                               : this->weight.expand({samples, weight.size(0)}).contiguous();
  }
  static RmsFactor of_scale(const Tensor& weight, const Tensor& scale, const Segments& rows) {
    return {weight, scale.defined() ? scale.to(wide(scale)) + 1 : Tensor(), rows.count()};
  }
  static RmsFactor of_gate(const Tensor& weight, const Tensor& gate, const Segments& rows) {
    return {weight, gate.defined() ? at::tanh(gate.to(wide(gate))) : Tensor(), rows.count()};
  }

  const void* row(int64_t sample) const { return row_of(rows, sample); }
  // From the sums over the rows of each sample, [S, D].
  Tensor weight_gradient(const Tensor& sums) const {
    return (by_sample.defined() ? sums * by_sample : sums).sum(0);
  }
  Tensor sample_gradient(const Tensor& sums) const { return sums * weight; }
  Tensor gate_gradient(const Tensor& sums) const {
    return sample_gradient(sums) * (1 - by_sample.square());
  }

  Tensor weight, by_sample, rows;
};

Tensor rms_scale(const Tensor& x, const Tensor& added, const RmsFactor& factor,
                 const Segments& rows, double eps) {
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.rms_scale(at_element(x, first), at_element_or_null(added, first), factor.row(c.sample),
                    at_element(out, first), c.count, width, eps);
  });
  return out;
}

// {x, sums over the rows of each sample when `wanted`}
std::array<Tensor, 2> rms_scale_backward(const Tensor& grad, const Tensor& x,
                                         const RmsFactor& factor, const Segments& rows, double eps,
                                         bool wanted) {
  Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(wanted, x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.rms_scale_backward(at_element(grad, first), at_element(x, first), factor.row(c.sample),
                             nullptr, at_element(grad_x, first), sums.of_chunk(i), c.count, width,
                             eps);
  });
  return {grad_x, sums.wide_total(chunks, rows.count(), 0, width)};
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                         const Segments& rows, double eps) {
  return rms_scale(x, Tensor(), RmsFactor::of_scale(weight, scale, rows), rows, eps);
}

std::array<Tensor, 3> rms_norm_modulate_backward(const Tensor& grad, const Tensor& x,
                                                 const Tensor& weight, const Tensor& scale,
                                                 const Segments& rows, double eps, bool weight_grad,
                                                 bool scale_grad) {
  const RmsFactor factor = RmsFactor::of_scale(weight, scale, rows);
  const auto [grad_x, sums] =
      rms_scale_backward(grad, x, factor, rows, eps, weight_grad || scale_grad);
  return {grad_x, weight_grad ? as_gradient(factor.weight_gradient(sums), weight) : Tensor(),
          scale_grad ? as_gradient(factor.sample_gradient(sums), scale) : Tensor()};
}

Tensor rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                         const Segments& rows, double eps) {
  return rms_scale(y, x, RmsFactor::of_gate(weight, gate, rows), rows, eps);
}

std::array<Tensor, 3> rms_gate_residual_backward(const Tensor& grad, const Tensor& y,
                                                 const Tensor& weight, const Tensor& gate,
                                                 const Segments& rows, double eps, bool weight_grad,
                                                 bool gate_grad) {
  const RmsFactor factor = RmsFactor::of_gate(weight, gate, rows);
  const auto [grad_y, sums] =
      rms_scale_backward(grad, y, factor, rows, eps, weight_grad || gate_grad);
  return {grad_y, weight_grad ? as_gradient(factor.weight_gradient(sums), weight) : Tensor(),
          gate_grad ? as_gradient(factor.gate_gradient(sums), gate) : Tensor()};
}

std::array<Tensor, 2> rms_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                      const Tensor& weight, const Tensor& gate,
                                                      const Tensor& next_weight,
                                                      const Tensor& scale, const Segments& rows,
                                                      double eps) {
  Tensor sum = at::empty_like(x), out = at::empty_like(x);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const RmsFactor gated = RmsFactor::of_gate(weight, gate, rows);
  const RmsFactor scaled = RmsFactor::of_scale(next_weight, scale, rows);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    for (int64_t r = c.first; r < c.first + c.count; ++r) {
      const int64_t at = r * width;
      loops.rms_scale(at_element(y, at), at_element(x, at), gated.row(c.sample),
                      at_element(sum, at), 1, width, eps);
      loops.rms_scale(at_element(sum, at), nullptr, scaled.row(c.sample), at_element(out, at), 1,
                      width, eps);
    }
  });
  return {sum, out};
}

std::array<Tensor, 6> rms_gate_residual_norm_modulate_backward(
    const Tensor& grad_sum, const Tensor& grad, const Tensor& x, const Tensor& y,
    const Tensor& weight, const Tensor& gate, const Tensor& next_weight, const Tensor& scale,
    const Segments& rows, double eps, std::array<bool, 4> wanted) {
  Tensor grad_x = at::empty_like(x), grad_y = at::empty_like(y);
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const RmsFactor gated = RmsFactor::of_gate(weight, gate, rows);
  const RmsFactor scaled = RmsFactor::of_scale(next_weight, scale, rows);
  const auto chunks = chunks_of(rows, width);
  // The sum is made again, row by row.
  Tensor sums = at::empty({static_cast<int64_t>(chunks.size()), width}, x.options());
  SampleSums of_gate(wanted[0] || wanted[1], x, chunks, width);
  SampleSums of_scale(wanted[2] || wanted[3], x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    char* const sum = at_element(sums, i * width);
    for (int64_t r = c.first; r < c.first + c.count; ++r) {
      const int64_t at = r * width;
      loops.rms_scale(at_element(y, at), at_element(x, at), gated.row(c.sample), sum, 1, width,
                      eps);
      loops.rms_scale_backward(at_element(grad, at), sum, scaled.row(c.sample),
                               at_element_or_null(grad_sum, at), at_element(grad_x, at),
                               of_scale.of_chunk(i), 1, width, eps);
      loops.rms_scale_backward(at_element(grad_x, at), at_element(y, at), gated.row(c.sample),
                               nullptr, at_element(grad_y, at), of_gate.of_chunk(i), 1, width, eps);
    }
  });
  const Tensor gate_sums = of_gate.wide_total(chunks, rows.count(), 0, width);
  const Tensor scale_sums = of_scale.wide_total(chunks, rows.count(), 0, width);
  return {grad_x,
          grad_y,
          wanted[0] ? as_gradient(gated.weight_gradient(gate_sums), weight) : Tensor(),
          wanted[1] ? as_gradient(gated.gate_gradient(gate_sums), gate) : Tensor(),
          wanted[2] ? as_gradient(scaled.weight_gradient(scale_sums), next_weight) : Tensor(),
          wanted[3] ? as_gradient(scaled.sample_gradient(scale_sums), scale) : Tensor()};
}

// The rows of a chunk, sample by sample: run(first, count, where the first stands in the join).
template <typename F>
void for_each_sample(const Chunk& c, const StreamRows& stream, const F& run) {
  for (int64_t s = 0; s < stream.rows.count(); ++s) {
    const int64_t first = std::max(c.first, stream.rows.offset(s));
    const int64_t end = std::min(c.first + c.count, stream.rows.offset(s + 1));
    if (first < end) run(first, end - first, first + stream.before(s));
  }
}

void norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
               RopeLayout layout, double eps, const StreamRows& stream, Tensor& out) {
  const int64_t heads = x.size(1), width = x.size(2), half = width / 2;
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(one_sample(x.size(0)), heads * width), [&](const Chunk& c, int64_t) {
    for_each_sample(c, stream, [&](int64_t first, int64_t count, int64_t joined) {
      loops.norm_rope(at_element(x, first * x.stride(0)), x.stride(0), x.stride(1),
                      at_element_or_null(weight, 0), at_element(cos, first * half),
                      at_element(sin, first * half), layout == RopeLayout::kHalves,
                      at_element(out, joined * heads * width), count, heads, width, eps);
    });
  });
}

std::array<Tensor, 2> norm_rope_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                         const Tensor& cos, const Tensor& sin, RopeLayout layout,
                                         double eps, const StreamRows& stream, bool weight_grad) {
  const int64_t heads = grad.size(1), width = grad.size(2), half = width / 2;
  Tensor grad_x = at::empty({stream.rows.total(), heads, width}, grad.options());
  const int64_t row_stride = x.defined() ? x.stride(0) : 0;
  const int64_t head_stride = x.defined() ? x.stride(1) : 0;
  const RowKernels& loops = loops_for(grad);
  const auto chunks = chunks_of(one_sample(grad_x.size(0)), heads * width);
  SampleSums sums(weight_grad, grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    for_each_sample(c, stream, [&](int64_t first, int64_t count, int64_t joined) {
      loops.norm_rope_backward(
          at_element(grad, joined * heads * width), at_element_or_null(x, first * row_stride),
          row_stride, head_stride, at_element_or_null(weight, 0), at_element(cos, first * half),
          at_element(sin, first * half), layout == RopeLayout::kHalves,
          at_element(grad_x, first * heads * width), sums.of_chunk(i), count, heads, width, eps);
    });
  });
  const Tensor total = sums.total(chunks, 1, 0, width, grad);
  return {grad_x, total.defined() ? total.view({width}) : total};
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  Tensor out = at::empty(gate.sizes(), gate.options());
  const int64_t width = gate.size(1);
  const RowKernels& loops = loops_for(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    loops.swiglu(at_element(gate, c.first * gate.stride(0)), gate.stride(0),
                 at_element(up, c.first * up.stride(0)), up.stride(0),
                 at_element(out, c.first * width), c.count, width);
  });
  return out;
}

std::array<Tensor, 2> swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  Tensor grad_gate = at::empty(gate.sizes(), gate.options());
  Tensor grad_up = at::empty(up.sizes(), up.options());
  const int64_t width = gate.size(1);
  const RowKernels& loops = loops_for(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.swiglu_backward(at_element(grad, first), at_element(gate, c.first * gate.stride(0)),
                          gate.stride(0), at_element(up, c.first * up.stride(0)), up.stride(0),
                          at_element(grad_gate, first), at_element(grad_up, first), c.count, width);
  });
  return {grad_gate, grad_up};
}

constexpr int64_t kElementsPerChunk = 16384;

Tensor gelu_tanh(const Tensor& x) {
  Tensor out = at::empty_like(x);
  const RowKernels& loops = loops_for(x);
  at::parallel_for(0, x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.gelu_tanh(at_element(x, begin), at_element(out, begin), end - begin);
  });
  return out;
}

Tensor gelu_tanh_backward(const Tensor& grad, const Tensor& x) {
  Tensor grad_x = at::empty_like(x);
  const RowKernels& loops = loops_for(x);
  at::parallel_for(0, x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.gelu_tanh_backward(at_element(grad, begin), at_element(x, begin),
                             at_element(grad_x, begin), end - begin);
  });
  return grad_x;
}

Tensor channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  Tensor out = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(one_sample(row_count(x)), width), [&](const Chunk& c, int64_t) {
    loops.channel_norm(at_element(x, c.first * width), gamma.const_data_ptr(), silu,
                       at_element(out, c.first * width), c.count, width);
  });
  return out;
}

std::array<Tensor, 2> channel_norm_backward(const Tensor& grad, const Tensor& x,
                                            const Tensor& gamma, bool silu, bool gamma_grad) {
  Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(one_sample(row_count(x)), width);
  SampleSums sums(gamma_grad, x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.channel_norm_backward(at_element(grad, first), at_element(x, first),
                                gamma.const_data_ptr(), silu, at_element(grad_x, first),
                                sums.of_chunk(i), c.count, width);
  });
  const Tensor total = sums.total(chunks, 1, 0, width, x);
  return {grad_x, total.defined() ? total.view({width}) : total};
}

}  // namespace

const PointwiseKernels pointwise_kernels = {norm_modulate,
                                            norm_modulate_backward,
                                            gate_residual,
                                            gate_residual_backward,
                                            gate_residual_norm_modulate,
                                            layer_norm,
                                            layer_norm_backward,
                                            rms_norm,
                                            rms_norm_backward,
                                            rms_norm_modulate,
                                            rms_norm_modulate_backward,
                                            rms_gate_residual,
                                            rms_gate_residual_backward,
                                            rms_gate_residual_norm_modulate,
                                            rms_gate_residual_norm_modulate_backward,
                                            norm_rope,
                                            norm_rope_backward,
                                            swiglu,
                                            swiglu_backward,
                                            gelu_tanh,
                                            gelu_tanh_backward,
                                            channel_norm,
                                            channel_norm_backward,
                                            /*takes_float64=*/true,
                                            /*widest_row_bytes=*/0};

}  // namespace atelier::ops::cpu
