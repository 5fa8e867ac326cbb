#include "atelier/nn/layers.h"

#include "atelier/ops/pointwise.h"

namespace atelier::nn {

Linear::Linear(Module* parent, std::string name, int64_t in, int64_t out, bool bias,
               WeightOptions options)
    : Module(parent, std::move(name)),
      weight(declare("weight", {out, in}, options)),
      bias(bias ? declare("bias", {out}, options) : nullptr) {}
Linear::~Linear() = default;

at::Tensor Linear::forward(const at::Tensor& x) const {
  return ops::linear(x, weight, bias, adapters);
}

Embedding::Embedding(Module* parent, std::string name, int64_t count, int64_t width)
    : Module(parent, std::move(name)), weight(declare("weight", {count, width})) {}
Embedding::~Embedding() = default;

at::Tensor Embedding::forward(const at::Tensor& ids) const {
  return ops::embedding(ids, weight);
}

RMSNorm::RMSNorm(Module* parent, std::string name, int64_t width, double eps)
    : Module(parent, std::move(name)), weight(declare("weight", {width})), eps(eps) {}
RMSNorm::~RMSNorm() = default;

at::Tensor RMSNorm::forward(const at::Tensor& x) const {
  return ops::rms_norm(x, weight->draw(), eps);
}

LayerNorm::LayerNorm(Module* parent, std::string name, int64_t width, double eps,
                     WeightOptions options)
    : Module(parent, std::move(name)),
      weight(declare("weight", {width}, options)),
      bias(declare("bias", {width}, options)),
      eps(eps) {}
LayerNorm::~LayerNorm() = default;

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  return ops::layer_norm(x, weight->draw(), bias->draw(), eps);
}

GroupNorm::GroupNorm(Module* parent, std::string name, int64_t channels, int64_t groups, double eps)
    : Module(parent, std::move(name)),
      weight(declare("weight", {channels})),
      bias(declare("bias", {channels})),
      groups(groups),
      eps(eps) {}
GroupNorm::~GroupNorm() = default;

at::Tensor GroupNorm::forward(const at::Tensor& x, bool silu) const {
  return ops::group_norm(x, weight->draw(), bias->draw(), groups, eps, silu);
}

Conv1d::Conv1d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
               ops::ConvOptions options, bool bias)
    : Module(parent, std::move(name)),
      weight(declare("weight", {out, in / options.groups, kernel})),
      bias(bias ? declare("bias", {out}) : nullptr),
      options(options) {}
Conv1d::~Conv1d() = default;

at::Tensor Conv1d::forward(const at::Tensor& x) const {
  return ops::conv1d(x, weight, bias, options);
}

Conv2d::Conv2d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
               ops::ConvOptions options, bool bias)
    : Module(parent, std::move(name)),
      weight(declare("weight", {out, in / options.groups, kernel, kernel})),
      bias(bias ? declare("bias", {out}) : nullptr),
      options(options) {}
Conv2d::~Conv2d() = default;

at::Tensor Conv2d::forward(const at::Tensor& x) const {
  return ops::conv2d(x, weight, bias, options);
}

Conv3d::Conv3d(Module* parent, std::string name, int64_t in, int64_t out,
               std::array<int64_t, 3> kernel, ops::Conv3dOptions options)
    : Module(parent, std::move(name)),
      weight(declare("weight", {out, in, kernel[0], kernel[1], kernel[2]})),
      bias(declare("bias", {out})),
      options(options) {}
Conv3d::~Conv3d() = default;

at::Tensor Conv3d::forward(const at::Tensor& x) const {
  return ops::conv3d(x, weight, bias, options);
}

}  // namespace atelier::nn
