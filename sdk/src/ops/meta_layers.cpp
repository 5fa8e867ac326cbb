// Shapes, dtypes and strides of what LibTorch's layers give, by what it gives on the CPU.
#include <array>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>

#include "atelier/host/dry_run.h"

#include "ops/meta_kernels.h"

namespace atelier::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

Tensor made(const Tensor& like, IntArrayRef sizes,
            at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return at::empty(sizes, like.options().memory_format(format));
}

Tensor made_as(const Tensor& like, IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}

Tensor like_if(bool is_needed, const Tensor& tensor) {
  return is_needed ? at::empty_like(tensor) : Tensor();
}

// The sizes of `tensor` with others at the end.
Sizes with_last(const Tensor& tensor, IntArrayRef last) {
  Sizes sizes = tensor.sizes().vec();
  TORCH_CHECK(sizes.size() >= last.size(), "a tensor of ", sizes.size(), " axes is too small");
  std::ranges::copy(last, sizes.end() - static_cast<int64_t>(last.size()));
  return sizes;
}

// ---- Convolutions ----

struct ConvolutionCall {
  IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  static int64_t at(IntArrayRef values, size_t axis) {
    return values.size() == 1 ? values[0] : values[axis];
  }
  Sizes output_sizes(const Tensor& x, const Tensor& kernel) const;
  // What LibTorch counts as its work in one pass: each element that is multiplied with a kernel.
  double flops(const Tensor& x, const Tensor& kernel, const Tensor& output) const {
    const Tensor& walked = transposed ? x : output;
    return 2.0 * static_cast<double>(walked.numel()) *
           static_cast<double>(kernel.numel() / kernel.size(0));
  }
  // How convolution_scratch() knows it; nullopt: it does not.
  std::optional<DryRun::Convolution> described(const Tensor& x, const Tensor& kernel) const;
};

Sizes ConvolutionCall::output_sizes(const Tensor& x, const Tensor& kernel) const {
  const int64_t in = transposed ? kernel.size(0) : kernel.size(1) * groups;
  TORCH_CHECK(x.dim() == kernel.dim() && x.size(1) == in, "a kernel of ", kernel.sizes(), " in ",
              groups, " groups does not fit an input of ", x.sizes());
  Sizes sizes = {x.size(0), transposed ? kernel.size(1) * groups : kernel.size(0)};
  for (size_t i = 0; i + 2 < static_cast<size_t>(x.dim()); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    const int64_t reach = at(dilation, i) * (kernel.size(axis) - 1) + 1;
    const int64_t margin = 2 * at(padding, i), step = at(stride, i);
    sizes.push_back(transposed ? (x.size(axis) - 1) * step - margin + reach + at(output_padding, i)
                               : (x.size(axis) + margin - reach) / step + 1);
    TORCH_CHECK(sizes.back() >= 0, "a kernel of ", kernel.sizes(), " is larger than an input of ",
                x.sizes());
  }
  return sizes;
}

std::optional<DryRun::Convolution> ConvolutionCall::described(const Tensor& x,
                                                              const Tensor& kernel) const {
  const size_t axes = static_cast<size_t>(x.dim()) - 2;
  if (transposed) return std::nullopt;
  DryRun::Convolution made;
  made.x = x.sizes().vec();
  made.kernel = kernel.sizes().vec();
  for (size_t i = 0; i < axes; ++i) {
    made.stride.push_back(at(stride, i));
    made.padding.push_back(at(padding, i));
    made.dilation.push_back(at(dilation, i));
  }
  made.groups = groups;
  made.dtype = x.scalar_type();
  return made;
}

at::MemoryFormat format_of(const Tensor& x, const Tensor& kernel) {
  const at::MemoryFormat of_x = x.suggest_memory_format();
  return of_x == at::MemoryFormat::Contiguous ? kernel.suggest_memory_format() : of_x;
}

Tensor convolution(const Tensor& x, const Tensor& kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  const ConvolutionCall call = {stride, padding, dilation, output_padding, transposed, groups};
  const Tensor y = made(x, call.output_sizes(x, kernel), format_of(x, kernel));
  DryRun* dry = DryRun::of(x);
  if (dry == nullptr) return y;
  dry->add_product(call.flops(x, kernel, y));
  if (auto described = call.described(x, kernel)) {
    described->has_bias = bias && bias->defined();
    const Tensor scratch = dry->scratch_of(x, *described);
  }
  return y;
}

ThreeTensors convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& kernel,
                                  at::OptionalIntArrayRef bias_sizes, IntArrayRef stride,
                                  IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                  IntArrayRef output_padding, int64_t groups,
                                  std::array<bool, 3> mask) {
  const ConvolutionCall call = {stride, padding, dilation, output_padding, transposed, groups};
  const at::MemoryFormat format = format_of(x, kernel);
  ThreeTensors grads;
  if (mask[0]) std::get<0>(grads) = made(x, x.sizes(), format);
  if (mask[1]) std::get<1>(grads) = made(kernel, kernel.sizes(), format);
  if (mask[2]) std::get<2>(grads) = made(grad, bias_sizes.value_or(IntArrayRef(grad.size(1))));
  DryRun* dry = DryRun::of(grad);
  if (dry == nullptr) return grads;
  dry->add_product(call.flops(x, kernel, grad) * (int{mask[0]} + int{mask[1]}));
  if (auto described = call.described(x, kernel)) {
    described->needs_x = mask[0];
    described->needs_kernel = mask[1];
    const Tensor scratch = dry->scratch_of(grad, *described);
  }
  return grads;
}

// ---- Norms ----

// The dtype of means and deviations: float32 beside weights that are more exact than `x`.
at::ScalarType statistics_dtype(const Tensor& x, const OptionalTensor& weight) {
  const bool is_mixed = weight && weight->defined() && weight->scalar_type() != x.scalar_type();
  return is_mixed ? at::kFloat : x.scalar_type();
}

ThreeTensors layer_norm(const Tensor& x, IntArrayRef normalized, const OptionalTensor& weight,
                        const OptionalTensor&, double) {
  TORCH_CHECK(x.dim() >= std::ssize(normalized) &&
                  x.sizes().slice(static_cast<size_t>(x.dim()) - normalized.size()) == normalized,
              "a layer norm of ", normalized, " does not fit an input of ", x.sizes());
  const Sizes sizes = with_last(x, Sizes(normalized.size(), 1));
  const at::ScalarType dtype = statistics_dtype(x, weight);
  return {made(x, x.sizes()), made_as(x, sizes, dtype), made_as(x, sizes, dtype)};
}

ThreeTensors layer_norm_backward(const Tensor&, const Tensor& x, IntArrayRef, const Tensor&,
                                 const Tensor&, const OptionalTensor& weight,
                                 const OptionalTensor& bias, std::array<bool, 3> mask) {
  return {mask[0] ? made(x, x.sizes()) : Tensor(),
          like_if(mask[1] && weight && weight->defined(), weight.value_or(Tensor())),
          like_if(mask[2] && bias && bias->defined(), bias.value_or(Tensor()))};
}

ThreeTensors group_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor&,
                        int64_t n, int64_t, int64_t, int64_t groups, double) {
  const at::ScalarType dtype = statistics_dtype(x, weight);
  return {made(x, x.sizes(), x.suggest_memory_format()), made_as(x, {n, groups}, dtype),
          made_as(x, {n, groups}, dtype)};
}

ThreeTensors group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                                 const OptionalTensor& weight, int64_t, int64_t c, int64_t, int64_t,
                                 std::array<bool, 3> mask) {
  const Tensor& like = weight && weight->defined() ? *weight : x;
  return {mask[0] ? made(x, x.sizes(), x.suggest_memory_format()) : Tensor(),
          mask[1] ? made(like, c) : Tensor(), mask[2] ? made(like, c) : Tensor()};
}

// LibTorch lays the channels of an image out anew unless it is on the CPU.
Tensor group_norm_of_image(const Tensor& x, int64_t groups, const OptionalTensor& weight,
                           const OptionalTensor& bias, double eps, bool) {
  TORCH_CHECK(x.dim() >= 2 && groups > 0 && x.size(1) % groups == 0, "an input of ", x.sizes(),
              " has no ", groups, " groups of channels");
  const DryRun* dry = DryRun::of(x);
  const bool is_cpu = dry == nullptr || dry->like() == at::kCPU;
  const int64_t n = x.size(0), c = x.size(1);
  const int64_t positions = c10::multiply_integers(x.sizes().slice(2));
  return std::get<0>(at::native_group_norm(
      x.contiguous(is_cpu ? x.suggest_memory_format() : at::MemoryFormat::Contiguous), weight, bias,
      n, c, positions, groups, eps));
}

ThreeTensors batch_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&, bool training, double,
                        double) {
  const Sizes saved = {training ? x.size(1) : 0};
  const at::ScalarType dtype = statistics_dtype(x, weight);
  return {made(x, x.sizes(), x.suggest_memory_format()), made_as(x, saved, dtype),
          made_as(x, saved, dtype)};
}

ThreeTensors batch_norm_backward(const Tensor&, const Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, bool, double,
                                 std::array<bool, 3> mask) {
  const Tensor& like = weight && weight->defined() ? *weight : x;
  return {mask[0] ? made(x, x.sizes(), x.suggest_memory_format()) : Tensor(),
          mask[1] ? made(like, x.size(1)) : Tensor(), mask[2] ? made(like, x.size(1)) : Tensor()};
}

// ---- Attention ----

double attention_flops(const Tensor& q, const Tensor& k, bool causal) {
  return (causal ? 2.0 : 4.0) * static_cast<double>(q.numel()) * static_cast<double>(k.size(2));
}

TwoTensors flash_attention(const Tensor& q, const Tensor& k, const Tensor&, double, bool causal,
                           const OptionalTensor&, std::optional<double>) {
  if (DryRun* dry = DryRun::of(q)) dry->add_attention(attention_flops(q, k, causal));
  const Tensor sums =
      made_as(q, {q.size(0), q.size(2), q.size(1)}, at::toOpMathType(q.scalar_type()));
  return {at::empty_like(q), sums.transpose(1, 2)};
}

ThreeTensors flash_attention_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                      const Tensor& v, const Tensor&, const Tensor&, double,
                                      bool causal, const OptionalTensor&, std::optional<double>) {
  if (DryRun* dry = DryRun::of(q)) dry->add_attention(2.5 * attention_flops(q, k, causal));
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

// Without values LibTorch takes its composed form, which holds every score.
Tensor attention_of_heads(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& mask, double dropout, bool causal,
                          std::optional<double> scale, bool shares_keys) {
  const bool is_flash = q.dim() == 4 && k.dim() == 4 &&
                        q.sizes().slice(0, 2) == k.sizes().slice(0, 2) && k.sizes() == v.sizes() &&
                        dropout == 0 && !shares_keys && !(mask && mask->requires_grad());
  if (!is_flash)
    return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, {},
                                                              scale, shares_keys));
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
}

// ---- Rows, pads, pools and samples ----

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  Sizes sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return made(self, sizes);
}

Tensor take(const Tensor& self, const Tensor& index) {
  return made(self, index.sizes());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor&, int64_t rows, int64_t, bool) {
  return made(grad, {rows, grad.size(-1)});
}

Tensor unfold_backward(const Tensor& grad, IntArrayRef sizes, int64_t, int64_t, int64_t) {
  return made(grad, sizes);
}

Tensor reflection_pad2d(const Tensor& self, IntArrayRef padding) {
  return made(self,
              with_last(self, {self.size(-2) + padding[2] + padding[3],
                               self.size(-1) + padding[0] + padding[1]}),
              self.suggest_memory_format());
}

Tensor adaptive_avg_pool(const Tensor& self, IntArrayRef sizes) {
  return made(self, with_last(self, sizes), self.suggest_memory_format());
}

Tensor grid_sampler(const Tensor& x, const Tensor& grid, int64_t, int64_t, bool) {
  Sizes sizes = {x.size(0), x.size(1)};
  for (int64_t i = 1; i + 1 < grid.dim(); ++i) sizes.push_back(grid.size(i));
  return made(x, sizes);
}

TwoTensors grid_sampler_backward(const Tensor&, const Tensor& x, const Tensor& grid, int64_t,
                                 int64_t, bool, std::array<bool, 2> mask) {
  return {mask[0] ? made(x, x.sizes()) : Tensor(), made(grid, grid.sizes())};
}

Tensor im2col(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
              IntArrayRef stride) {
  int64_t places = 1;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    const int64_t side = self.size(static_cast<int64_t>(i) - 2);
    places *= (side + 2 * padding[i] - reach) / stride[i] + 1;
  }
  Sizes sizes = {self.size(-3) * kernel[0] * kernel[1], places};
  if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
  return made(self, sizes);
}

Tensor col2im(const Tensor& self, IntArrayRef output, IntArrayRef kernel, IntArrayRef, IntArrayRef,
              IntArrayRef) {
  Sizes sizes = {self.size(-2) / (kernel[0] * kernel[1]), output[0], output[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  return made(self, sizes);
}

// ---- Distances, places and Fourier transforms ----

Sizes distances_of(const Tensor& a, const Tensor& b, int64_t columns) {
  Sizes sizes = at::infer_size(a.sizes().slice(0, static_cast<size_t>(a.dim()) - 2),
                               b.sizes().slice(0, static_cast<size_t>(b.dim()) - 2));
  sizes.insert(sizes.end(), {a.size(-2), columns});
  return sizes;
}

Tensor cdist(const Tensor& a, const Tensor& b, double, std::optional<int64_t>) {
  return made(a, distances_of(a, b, b.size(-2)));
}

Tensor cdist_backward(const Tensor&, const Tensor& a, const Tensor& b, double, const Tensor&) {
  return made(a, distances_of(a, b, a.size(-1)));
}

Tensor places_of(const Tensor& values, bool is_int) {
  return made_as(values, values.sizes(), is_int ? at::kInt : at::kLong);
}

Tensor searchsorted(const Tensor&, const Tensor& values, bool is_int, bool,
                    std::optional<std::string_view>, const OptionalTensor&) {
  return places_of(values, is_int);
}

Tensor bucketize(const Tensor& values, const Tensor&, bool is_int, bool) {
  return places_of(values, is_int);
}

Tensor fft_complex(const Tensor& self, IntArrayRef, int64_t, bool) {
  return made(self, self.sizes());
}

Tensor fft_of_reals(const Tensor& self, IntArrayRef dim, int64_t, bool onesided) {
  Sizes sizes = self.sizes().vec();
  int64_t& last = sizes[static_cast<size_t>(at::maybe_wrap_dim(dim.back(), self.dim()))];
  if (onesided) last = last / 2 + 1;
  return made_as(self, sizes, at::toComplexType(self.scalar_type()));
}

Tensor fft_to_reals(const Tensor& self, IntArrayRef dim, int64_t, int64_t last) {
  Sizes sizes = self.sizes().vec();
  sizes[static_cast<size_t>(at::maybe_wrap_dim(dim.back(), self.dim()))] = last;
  return made_as(self, sizes, at::toRealValueType(self.scalar_type()));
}

}  // namespace

void add_layer_kernels(MetaLibrary& library) {
  library.add("convolution", &convolution);
  library.add("convolution_backward", &convolution_backward);

  library.add("native_layer_norm", &layer_norm);
  library.add("native_layer_norm_backward", &layer_norm_backward);
  library.add("native_group_norm", &group_norm);
  library.add("native_group_norm_backward", &group_norm_backward);
  library.add_composed("group_norm", &group_norm_of_image);
  library.add("native_batch_norm", &batch_norm);
  library.add("native_batch_norm_backward", &batch_norm_backward);

  library.add("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  library.add("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_attention_backward);
  library.add_composed("scaled_dot_product_attention", &attention_of_heads);

  library.add("index_select", &index_select);
  library.add("take", &take);
  library.add("embedding_dense_backward", &embedding_dense_backward);
  library.add("unfold_backward", &unfold_backward);
  library.add("reflection_pad2d", &reflection_pad2d);
  library.add("_adaptive_avg_pool2d", &adaptive_avg_pool);
  library.add("_adaptive_avg_pool3d", &adaptive_avg_pool);
  library.add("grid_sampler_2d", &grid_sampler);
  library.add("grid_sampler_2d_backward", &grid_sampler_backward);
  library.add("grid_sampler_3d", &grid_sampler);
  library.add("grid_sampler_3d_backward", &grid_sampler_backward);
  library.add("im2col", &im2col);
  library.add("col2im", &col2im);

  library.add("_cdist_forward", &cdist);
  library.add("_cdist_backward", &cdist_backward);
  library.add("searchsorted.Tensor", &searchsorted);
  library.add("bucketize.Tensor", &bucketize);
  library.add("_fft_c2c", &fft_complex);
  library.add("_fft_r2c", &fft_of_reals);
  library.add("_fft_c2r", &fft_to_reals);
}

}  // namespace atelier::ops
