#include "atelier/ops/conv.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/file_pages.h"
#include "atelier/host/leaf_scope.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "ops/autograd_support.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ConvCall : torch::CustomClassHolder {
  WeightPtr weight, bias;
  std::vector<int64_t> stride, padding, dilation;  // one for each axis
  int64_t groups = 1;
  int64_t weight_edge = -1,
          bias_edge = -1;      // places in {x, weight's leaf, bias's leaf}; -1: absent
  int64_t weight_version = 0;  // of the leaf's values
  std::vector<int64_t> x_sizes;
  at::TensorOptions x_options;

  size_t axes() const { return stride.size(); }
  const char* name() const {
    static constexpr const char* kNames[] = {"conv1d", "conv2d", "conv3d"};
    return kNames[axes() - 1];
  }
  // The kernel's extent along each axis: the last sizes of the weight.
  at::IntArrayRef kernel() const { return weight->sizes().slice(weight->sizes().size() - axes()); }
  // Whether the last slice is used of a weight with a temporal axis that the convolution lacks.
  bool takes_slice() const { return axes() == 2 && weight->sizes().size() == 5; }
  // Values from the first to the last that a kernel meets along an axis.
  int64_t extent(size_t axis) const { return dilation[axis] * (kernel()[axis] - 1) + 1; }
  // What is fastest on the CPU.
  at::MemoryFormat channels_last() const {
    static constexpr at::MemoryFormat kFormats[] = {at::MemoryFormat::Contiguous,
                                                    at::MemoryFormat::ChannelsLast,
                                                    at::MemoryFormat::ChannelsLast3d};
    return kFormats[axes() - 1];
  }
};
using ConvCallPtr = c10::intrusive_ptr<ConvCall>;

// The weight as [out, in, kh, kw] or [out, in, kt, kh, kw]. On the CPU it is channels-last, which
// saves the convolution a reordering at each call.
Tensor draw_kernel(const ConvCall& call) {
  const Weight& weight = *call.weight;
  const auto dims = static_cast<int64_t>(call.axes()) + 2;
  if (const Tensor kept = weight.state().derived(); kept.defined()) {
    if (kept.dim() == dims) return kept;
    // A clip begins with a frame alone: its slice is made of the kernel that the later ones meet.
    if (call.takes_slice())
      return kept.select(2, kept.size(2) - 1).contiguous(at::MemoryFormat::ChannelsLast);
  }
  const Tensor drawn = weight.draw();
  const Tensor kernel = call.takes_slice() ? drawn.select(2, drawn.size(2) - 1) : drawn;
  const DryRun* dry = DryRun::of(drawn);
  const bool is_cpu = drawn.is_cpu() || (dry != nullptr && dry->like() == at::kCPU);
  const Tensor made =
      kernel.detach().contiguous(is_cpu ? call.channels_last() : at::MemoryFormat::Contiguous);
  // Nothing is held of a tensor that its store made for one product.
  if (weight.state().store()->is_resident() && !weight.state().is_trainable() &&
      !made.is_alias_of(drawn)) {
    weight.state().keep_derived(made);
    if (drawn._version() == 0) give_back_pages(drawn);  // never written to: it is what the file has
  }
  return made;
}

std::vector<int64_t> output_sizes(const ConvCall& call, at::IntArrayRef x) {
  std::vector<int64_t> sizes = {x[0], call.weight->sizes()[0]};
  for (size_t i = 0; i < call.axes(); ++i)
    sizes.push_back((x[i + 2] + 2 * call.padding[i] - call.extent(i)) / call.stride[i] + 1);
  return sizes;
}

// The operations of one pass: forward, or backward to the input or to the weight.
double flops_of(const ConvCall& call, const Tensor& output) {
  return 2.0 * static_cast<double>(output.numel()) *
         static_cast<double>(call.weight->sizes()[1] * c10::multiply_integers(call.kernel()));
}

DryRun::Convolution described(const ConvCall& call, const Tensor& x, const Tensor& kernel) {
  return {.x = x.sizes().vec(),
          .kernel = kernel.sizes().vec(),
          .stride = call.stride,
          .padding = call.padding,
          .dilation = call.dilation,
          .groups = call.groups,
          .dtype = x.scalar_type()};
}

// What a convolution of tensors without values holds and multiplies.
Tensor convolve_dry(const ConvCall& call, const Tensor& x, const Tensor& kernel,
                    at::IntArrayRef sizes) {
  DryRun* const dry = DryRun::of(x);
  const bool is_cpu = dry != nullptr && dry->like() == at::kCPU;
  const Tensor formatted = is_cpu ? x.contiguous(call.channels_last()) : x;
  const Tensor output =
      at::empty(sizes, x.options().memory_format(formatted.suggest_memory_format()));
  if (dry == nullptr) return output;
  DryRun::Convolution made = described(call, x, kernel);
  made.has_bias = call.bias != nullptr;
  const Tensor scratch = dry->scratch_of(x, made);
  dry->add_product(flops_of(call, output));
  return output;
}

Tensor convolve(const ConvCall& call, const Tensor& x) {
  check_stop();
  return RecomputeScope::run(call.name(), [&](bool need_values) -> std::vector<Tensor> {
    const auto sizes = output_sizes(call, x.sizes());
    if (!need_values) return {stand_in(sizes, x.options())};
    const Tensor kernel = draw_kernel(call);
    // LibTorch has no convolution of meta tensors.
    if (x.is_meta()) return {convolve_dry(call, x, kernel, sizes)};
    const Tensor bias = call.bias ? call.bias->draw() : Tensor();
    const std::vector<int64_t> zeros(call.axes(), 0);
    const auto formatted = [&](const Tensor& t) {
      return x.is_cpu() ? t.contiguous(call.channels_last()) : t;
    };
    return {formatted(at::convolution(formatted(x), kernel, bias, call.stride, call.padding,
                                      call.dilation, /*transposed=*/false, zeros, call.groups))};
  })[0];
}

// {x's, the drawn kernel's}; undefined where they are not needed.
std::pair<Tensor, Tensor> gradients(const ConvCall& call, const Tensor& grad, const Tensor& x,
                                    bool needs_x, bool needs_kernel) {
  check_stop();
  const Tensor kernel = draw_kernel(call);
  if (!grad.is_meta()) {
    const std::vector<int64_t> zeros(call.axes(), 0);
    auto [grad_x, grad_kernel, grad_bias] = at::convolution_backward(
        grad, x, kernel, at::OptionalIntArrayRef(), call.stride, call.padding, call.dilation,
        /*transposed=*/false, zeros, call.groups, {needs_x, needs_kernel, false});
    return {grad_x, grad_kernel};
  }
  const Tensor grad_x = needs_x ? at::empty_like(x) : Tensor();
  const Tensor grad_kernel = needs_kernel ? at::empty_like(kernel) : Tensor();
  if (DryRun* dry = DryRun::of(grad)) {
    DryRun::Convolution made = described(call, x, kernel);
    made.needs_x = needs_x;
    made.needs_kernel = needs_kernel;
    const Tensor scratch = dry->scratch_of(grad, made);
    dry->add_product(flops_of(call, grad) * ((needs_x ? 1 : 0) + (needs_kernel ? 1 : 0)));
  }
  return {grad_x, grad_kernel};
}

struct ConvFunction : torch::autograd::Function<ConvFunction> {
  static Tensor forward(AutogradContext* ctx, at::TensorList inputs, const ConvCallPtr& call) {
    // Without a trained weight only the shape and the memory format of x are needed.
    ctx->save_for_backward({call->weight_edge >= 0 ? inputs[0] : Tensor()});
    call->x_sizes = inputs[0].sizes().vec();
    call->x_options = inputs[0].options().memory_format(inputs[0].suggest_memory_format());
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return convolve(*call, inputs[0]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto call =
        c10::static_intrusive_pointer_cast<ConvCall>(ctx->saved_data["call"].toCapsule());
    auto needed = [&](int64_t edge) { return edge >= 0 && ctx->needs_input_grad(edge); };
    const variable_list saved = ctx->get_saved_variables();
    if (needed(0) && call->weight_edge >= 0 &&
        call->weight->state().leaf()._version() != call->weight_version) {
      throw Error(ErrorCode::kInternal,
                  c10::str(call->name(), ": weight '", call->weight->name(),
                           "' was changed between the forward and the backward pass"));
    }
    const Tensor& grad = grads[0];
    constexpr int64_t kAllButChannels[] = {0, 2, 3, 4};
    if (needed(call->bias_edge))
      result[call->bias_edge] = grad.sum(at::IntArrayRef(kAllButChannels, 1 + call->axes()));
    if (!needed(0) && !needed(call->weight_edge)) return result;
    const Tensor x = saved[0].defined() ? saved[0] : at::empty(call->x_sizes, call->x_options);
    auto [grad_x, grad_kernel] = gradients(*call, grad, x, needed(0), needed(call->weight_edge));
    result[0] = grad_x;
    if (needed(call->weight_edge)) {
      if (call->takes_slice()) {
        Tensor whole = at::zeros(call->weight->sizes(), grad_kernel.options());
        whole.select(2, whole.size(2) - 1).copy_(grad_kernel);
        grad_kernel = whole;
      }
      result[call->weight_edge] = grad_kernel.contiguous();
    }
    return result;
  }
};

// x and the weight have as many axes as they should and the same channels, and the kernel has room.
bool fits(const ConvCall& call, const Tensor& x) {
  const at::IntArrayRef weight = call.weight->sizes();
  const size_t dims = call.axes() + 2;
  if (x.sizes().size() != dims || (weight.size() != dims && !call.takes_slice())) return false;
  for (size_t i = 0; i < call.axes(); ++i)
    if (x.sizes()[i + 2] + 2 * call.padding[i] < call.extent(i)) return false;
  return call.groups > 0 && weight[0] % call.groups == 0 && x.size(1) == weight[1] * call.groups;
}

Tensor convolution(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   int64_t groups) {
  auto call = c10::make_intrusive<ConvCall>();
  call->weight = weight;
  call->bias = bias;
  call->stride = stride.vec();
  call->padding = padding.vec();
  call->dilation = dilation.vec();
  call->groups = groups;
  if (!fits(*call, x)) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str(call->name(), ": x of shape ", x.sizes(), " does not fit weight '",
                         weight->name(), "' of shape ", weight->sizes()));
  }
  variable_list inputs{x};
  if (weight->state().leaf().defined()) {
    call->weight_edge = inputs.size();
    call->weight_version = weight->state().leaf()._version();
    inputs.push_back(LeafScope::place_of(weight->state().leaf()));
  }
  if (bias != nullptr && bias->state().leaf().defined()) {
    call->bias_edge = inputs.size();
    inputs.push_back(LeafScope::place_of(bias->state().leaf()));
  }
  if (!needs_graph(inputs)) return convolve(*call, x);
  return ConvFunction::apply(at::TensorList(inputs), call);
}

}  // namespace

Tensor conv1d(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
              ConvOptions options) {
  return convolution(x, weight, bias, {options.stride}, {options.padding}, {options.dilation},
                     options.groups);
}

Tensor conv2d(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
              ConvOptions options) {
  return convolution(x, weight, bias, {options.stride, options.stride},
                     {options.padding, options.padding}, {options.dilation, options.dilation},
                     options.groups);
}

Tensor conv3d(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
              Conv3dOptions options) {
  return convolution(x, weight, bias, options.stride, options.padding, {1, 1, 1}, /*groups=*/1);
}

}  // namespace atelier::ops
