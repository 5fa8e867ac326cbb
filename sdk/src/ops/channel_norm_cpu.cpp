#include "ops/channel_norm.h"
#include "ops/cpu/rows.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

void channel_norm_forward(const Tensor& x, const Tensor& gamma, bool silu, Tensor& out) {
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(one_sample(row_count(x)), width), [&](const Chunk& c, int64_t) {
    loops.channel_norm(at_element(x, c.first * width), gamma.const_data_ptr(), silu,
                       at_element(out, c.first * width), c.count, width);
  });
}

void channel_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& gamma, bool silu,
                           Tensor& grad_x, Tensor& grad_gamma) {
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(one_sample(row_count(x)), width);
  SampleSums sums(grad_gamma.defined(), x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.channel_norm_backward(at_element(grad, first), at_element(x, first),
                                gamma.const_data_ptr(), silu, at_element(grad_x, first),
                                sums.of_chunk(i), c.count, width);
  });
  put_gradient(sums.total(chunks, 1, 0, width), grad_gamma);
}

const DeviceKernels channel_norm(at::kCPU, channel_norm_kernels,
                                 {.forward = channel_norm_forward,
                                  .backward = channel_norm_backward,
                                  .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
