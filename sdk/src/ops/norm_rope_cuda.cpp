#include "atelier/host/upload.h"

#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"
#include "ops/norm_rope.h"

namespace atelier::ops::cuda {

// Defined in norm_rope.cu.
extern const RowKernel norm_rope_rows, norm_rope_backward_rows;

namespace {

using at::Tensor;

// Rows of the grid are heads, columns are pairs.
void put_heads(RowArguments& arguments, const Tensor& x, const Tensor& weight, const Tensor& cos,
               const Tensor& sin, int64_t heads, RopeLayout layout, double eps) {
  arguments.halves = layout == RopeLayout::kHalves;
  arguments.heads = heads;
  arguments.cos = cos.const_data_ptr<float>();
  arguments.sin = sin.const_data_ptr<float>();
  arguments.eps = static_cast<float>(eps);
  if (weight.defined()) arguments.weight = input_of(weight, 0);
  if (!x.defined()) return;
  arguments.x = input_of(x, x.stride(0));
  arguments.head_stride = x.stride(1);
  arguments.x.is_aligned &= x.stride(1) * x.element_size() % 16 == 0;
}

// Second halves of heads begin at an address of their own.
void align_halves(RowArguments& arguments, int64_t half_bytes, const Tensor& cos,
                  const Tensor& sin) {
  const bool is_even = half_bytes % 16 == 0;
  for (Input* from : {&arguments.x, &arguments.grad, &arguments.weight})
    from->is_aligned &= is_even;
  arguments.out.is_aligned &= is_even;
  const int64_t half = cos.size(1);
  arguments.are_angles_aligned = is_aligned(cos.const_data_ptr(), half, sizeof(float)) &&
                                 is_aligned(sin.const_data_ptr(), half, sizeof(float));
}

// Its samples in heads, and where their rows stand among those of both streams, on the device.
struct StreamHeads {
  Segments heads;
  Tensor offsets;  // keeps rows_before alive; undefined where one sample needs none
  const int64_t* rows_before = nullptr;

  StreamHeads(const StreamRows& stream, int64_t count, at::Device device)
      : heads(Segments::from_tensor(stream.rows.own_offsets() * count)) {
    if (stream.others.total() == 0) return;
    offsets = offsets_on(stream.others, device);
    rows_before = offsets.const_data_ptr<int64_t>() + (stream.is_first ? 0 : 1);
  }
};

void norm_rope_forward(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                       RopeLayout layout, double eps, const StreamRows& stream, Tensor& out) {
  const StreamHeads place(stream, x.size(1), x.device());
  RowCall call(norm_rope_rows, x, place.heads, x.size(2) / 2, weight.defined(), 0);
  put_heads(call.arguments, x, weight, cos, sin, x.size(1), layout, eps);
  call.arguments.rows_before = place.rows_before;
  call.arguments.out = output_of(out);
  align_halves(call.arguments, x.size(2) / 2 * x.element_size(), cos, sin);
  call.run();
}

void norm_rope_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                        const Tensor& cos, const Tensor& sin, RopeLayout layout, double eps,
                        const StreamRows& stream, Tensor& grad_x, Tensor& grad_weight) {
  const int64_t heads = grad.size(1), width = grad.size(2);
  const StreamHeads place(stream, heads, grad.device());
  RowCall call(norm_rope_backward_rows, grad, place.heads, width / 2, weight.defined(),
               grad_weight.defined() ? 2 : 0);
  put_heads(call.arguments, weight.defined() ? x : Tensor(), weight, cos, sin, heads, layout, eps);
  call.arguments.rows_before = place.rows_before;
  call.arguments.grad = input_of(grad, grad.stride(0));
  call.arguments.out = output_of(grad_x);
  align_halves(call.arguments, width / 2 * grad.element_size(), cos, sin);
  const Tensor totals = call.run();
  if (!grad_weight.defined()) return;
  const Tensor sums = totals.size(0) == 1 ? totals[0] : totals.sum(0);
  const Tensor channels = layout == RopeLayout::kHalves ? sums : sums.transpose(0, 1);
  grad_weight.copy_(channels.reshape({width}));
}

const DeviceKernels norm_rope(row_device(), norm_rope_kernels,
                              {.forward = norm_rope_forward,
                               .backward = norm_rope_backward,
                               .limits = {.widest_row_bytes = kWidestRowBytes}});

}  // namespace
}  // namespace atelier::ops::cuda
