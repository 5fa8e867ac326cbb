#include "ops/cpu/rows.h"
#include "ops/norm_rope.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

// The rows of a chunk, sample by sample: run(first, count, where the first stands in the join).
template <typename F>
void for_each_sample(const Chunk& c, const StreamRows& stream, const F& run) {
  for (int64_t s = 0; s < stream.rows.count(); ++s) {
    const int64_t first = std::max(c.first, stream.rows.offset(s));
    const int64_t end = std::min(c.first + c.count, stream.rows.offset(s + 1));
    if (first < end) run(first, end - first, first + stream.before(s));
  }
}

void norm_rope_forward(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
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

void norm_rope_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                        const Tensor& cos, const Tensor& sin, RopeLayout layout, double eps,
                        const StreamRows& stream, Tensor& grad_x, Tensor& grad_weight) {
  const int64_t heads = grad.size(1), width = grad.size(2), half = width / 2;
  const int64_t row_stride = x.defined() ? x.stride(0) : 0;
  const int64_t head_stride = x.defined() ? x.stride(1) : 0;
  const RowKernels& loops = loops_for(grad);
  const auto chunks = chunks_of(one_sample(grad_x.size(0)), heads * width);
  SampleSums sums(grad_weight.defined(), grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    for_each_sample(c, stream, [&](int64_t first, int64_t count, int64_t joined) {
      loops.norm_rope_backward(
          at_element(grad, joined * heads * width), at_element_or_null(x, first * row_stride),
          row_stride, head_stride, at_element_or_null(weight, 0), at_element(cos, first * half),
          at_element(sin, first * half), layout == RopeLayout::kHalves,
          at_element(grad_x, first * heads * width), sums.of_chunk(i), count, heads, width, eps);
    });
  });
  put_gradient(sums.total(chunks, 1, 0, width), grad_weight);
}

const DeviceKernels norm_rope(at::kCPU, norm_rope_kernels,
                              {.forward = norm_rope_forward,
                               .backward = norm_rope_backward,
                               .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
