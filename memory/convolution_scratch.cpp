#include "memory/convolution_scratch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "memory/live_bytes.h"
#include "memory/transfer_device.h"

namespace atelier::memory {
namespace {

using Convolution = ops::DryRun::Convolution;

constexpr double kMostFlops = 5e7;   // of one that is made as it is
constexpr int64_t kFewColumns = 64;  // of the outputs of others
constexpr int64_t kFewRows = 4;      // and twice as many
// LibTorch makes convolutions of fewer inputs in another way.
constexpr int64_t kManyInputs = 32768;

at::Tensor channels_last(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  constexpr at::MemoryFormat kFormats[] = {at::MemoryFormat::Contiguous,
                                           at::MemoryFormat::ChannelsLast,
                                           at::MemoryFormat::ChannelsLast3d};
  return at::zeros(sizes, at::TensorOptions(at::kCPU).dtype(dtype))
      .contiguous(kFormats[sizes.size() - 3]);
}

std::vector<int64_t> dilation_of(const Convolution& made) {
  return made.dilation.empty() ? std::vector<int64_t>(made.stride.size(), 1) : made.dilation;
}

// Values from the first to the last that a kernel meets along an axis.
int64_t extent(const Convolution& made, size_t axis) {
  return dilation_of(made)[axis] * (made.kernel[axis + 2] - 1) + 1;
}

int64_t output_side(const Convolution& made, size_t axis) {
  return (made.x[axis + 2] + 2 * made.padding[axis] - extent(made, axis)) / made.stride[axis] + 1;
}

std::vector<int64_t> output_of(const Convolution& made) {
  std::vector<int64_t> sizes = {made.x[0], made.kernel[0]};
  for (size_t axis = 0; axis < made.stride.size(); ++axis) sizes.push_back(output_side(made, axis));
  return sizes;
}

double outputs_of(const Convolution& made) {
  return static_cast<double>(c10::multiply_integers(output_of(made)));
}

// A convolution with an output of `side` along an axis, where it is larger.
Convolution cut(Convolution made, size_t axis, int64_t side) {
  if (output_side(made, axis) > side)
    made.x[axis + 2] = (side - 1) * made.stride[axis] + extent(made, axis) - 2 * made.padding[axis];
  return made;
}

int64_t measured_scratch(const Convolution& made) {
  const at::NoGradGuard no_grad;
  const HostScope beside;
  const at::Tensor x = channels_last(made.x, made.dtype);
  const at::Tensor kernel = channels_last(made.kernel, made.dtype);
  const std::vector<int64_t> dilation = dilation_of(made), zeros(made.stride.size(), 0);
  if (made.needs_x || made.needs_kernel) {
    const at::Tensor grad = channels_last(output_of(made), made.dtype);
    const LiveBytes live(at::kCPU);
    const auto [grad_x, grad_kernel, none] = at::convolution_backward(
        grad, x, kernel, at::OptionalIntArrayRef(), made.stride, made.padding, dilation,
        /*transposed=*/false, zeros, made.groups, {made.needs_x, made.needs_kernel, false});
    int64_t given = 0;
    for (const at::Tensor& t : {grad_x, grad_kernel})
      given += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
    return std::max<int64_t>(0, live.peak() - given);
  }
  const at::Tensor bias =
      made.has_bias ? at::zeros({made.kernel[0]}, kernel.options()) : at::Tensor();
  const LiveBytes live(at::kCPU);
  const at::Tensor output = at::convolution(x, kernel, bias, made.stride, made.padding, dilation,
                                            /*transposed=*/false, zeros, made.groups)
                                .contiguous(x.suggest_memory_format());
  return std::max<int64_t>(0, live.peak() - static_cast<int64_t>(output.nbytes()));
}

int64_t found_scratch(const Convolution& made) {
  const double flops = 2.0 * outputs_of(made) *
                       static_cast<double>(c10::multiply_integers(made.kernel) / made.kernel[0]);
  // Convolutions of groups and of spaced kernels are few, and made in ways that change with the
  // size.
  const bool is_dense =
      made.groups == 1 &&
      std::ranges::all_of(dilation_of(made), [](int64_t dilation) { return dilation == 1; });
  if (flops <= kMostFlops || !is_dense) return measured_scratch(made);
  const size_t columns = made.stride.size() - 1;
  const bool is_line = columns == 0;  // a row of outputs is one alone
  const size_t rows = is_line ? 0 : columns - 1;
  const Convolution narrow = is_line ? made : cut(made, columns, kFewColumns);
  const int64_t inputs_of_row =
      c10::multiply_integers(narrow.x) / narrow.x[rows + 2] * narrow.stride[rows];
  const int64_t count = std::max(kFewRows, kManyInputs / inputs_of_row + 1);
  const Convolution few = cut(narrow, rows, count), more = cut(narrow, rows, 2 * count);
  const auto least = static_cast<double>(measured_scratch(few));
  const double added = outputs_of(more) - outputs_of(few);
  if (added <= 0) return measured_scratch(made);
  const double of_one = (static_cast<double>(measured_scratch(more)) - least) / added;
  return std::llround(least + std::max(0.0, of_one) * (outputs_of(made) - outputs_of(few)));
}

}  // namespace

int64_t convolution_scratch(const Convolution& convolution) {
  using Sizes = std::vector<int64_t>;
  using Key =
      std::tuple<Sizes, Sizes, Sizes, Sizes, Sizes, int64_t, at::ScalarType, bool, bool, bool>;
  static std::mutex mutex;
  static std::map<Key, int64_t> known;
  const Key key = {convolution.x,           convolution.kernel,       convolution.stride,
                   convolution.padding,     dilation_of(convolution), convolution.groups,
                   convolution.dtype,       convolution.has_bias,     convolution.needs_x,
                   convolution.needs_kernel};
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(key, 0);
  if (is_new) place->second = found_scratch(convolution);
  return place->second;
}

}  // namespace atelier::memory
