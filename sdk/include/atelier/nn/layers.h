// The layers that families are written with: thin owners of weights over the operators.
#pragma once

#include <vector>

#include "atelier/nn/module.h"
#include "atelier/ops/conv.h"
#include "atelier/ops/linear.h"

namespace atelier::nn {

// y = x Wᵀ + b, and the sum of its adapters. Weights: "weight" [out, in] and, with bias, "bias"
// [out].
class ATELIER_API Linear : public Module {
 public:
  // `options` are those of both weights.
  Linear(Module* parent, std::string name, int64_t in, int64_t out, bool bias = true,
         WeightOptions options = {});
  ~Linear() override;

  // x: [..., in], in the dtype of the weights. Returns [..., out].
  at::Tensor forward(const at::Tensor& x) const;

  int64_t in_features() const { return weight->sizes()[1]; }
  int64_t out_features() const { return weight->sizes()[0]; }

  WeightPtr weight, bias;              // bias may be null
  std::vector<ops::Adapter> adapters;  // the host's: applied in order, see ops::linear
};

// Rows of a table. Weight: "weight" [count, width].
class ATELIER_API Embedding : public Module {
 public:
  Embedding(Module* parent, std::string name, int64_t count, int64_t width);
  ~Embedding() override;

  // ids: int64 of any shape. Returns [..., width].
  at::Tensor forward(const at::Tensor& ids) const;

  WeightPtr weight;
};

// x / rms(x) * weight over the last axis; the variance in float32. Weight: "weight" [width].
class ATELIER_API RMSNorm : public Module {
 public:
  RMSNorm(Module* parent, std::string name, int64_t width, double eps = 1e-6);
  ~RMSNorm() override;

  // x: [..., width]. Returns the same shape and dtype.
  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight;
  double eps;
};

// (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, in float32. Weights:
// "weight" [width] and "bias" [width].
class ATELIER_API LayerNorm : public Module {
 public:
  // `options` are those of both weights, which may be float32 beside an x of 16 bits.
  LayerNorm(Module* parent, std::string name, int64_t width, double eps = 1e-5,
            WeightOptions options = {});
  ~LayerNorm() override;

  // x: [..., width]. Returns the same shape and dtype.
  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight, bias;
  double eps;
};

// Norms of groups of channels, (x - mean) / sqrt(variance + eps) * weight + bias, in float32.
// Weights: "weight" [channels] and "bias" [channels].
class ATELIER_API GroupNorm : public Module {
 public:
  GroupNorm(Module* parent, std::string name, int64_t channels, int64_t groups, double eps = 1e-6);
  ~GroupNorm() override;

  // x: [B, channels, ...]. `silu`: of the result. Returns the same shape and dtype.
  at::Tensor forward(const at::Tensor& x, bool silu = false) const;

  WeightPtr weight, bias;
  int64_t groups;
  double eps;
};

// Weights: "weight" [out, in / groups, kernel] and, with bias, "bias" [out].
class ATELIER_API Conv1d : public Module {
 public:
  Conv1d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
         ops::ConvOptions options = {}, bool bias = true);
  ~Conv1d() override;

  // x: [B, in, L]. Returns [B, out, L'].
  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight, bias;  // bias may be null
  ops::ConvOptions options;
};

// Weights: "weight" [out, in / groups, kernel, kernel] and, with bias, "bias" [out].
class ATELIER_API Conv2d : public Module {
 public:
  Conv2d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
         ops::ConvOptions options = {}, bool bias = true);
  ~Conv2d() override;

  // x: [B, in, H, W]. Returns [B, out, H', W'].
  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight, bias;  // bias may be null
  ops::ConvOptions options;
};

// Weights: "weight" [out, in, kt, kh, kw] and "bias" [out].
class ATELIER_API Conv3d : public Module {
 public:
  // `kernel`: kt, kh, kw.
  Conv3d(Module* parent, std::string name, int64_t in, int64_t out, std::array<int64_t, 3> kernel,
         ops::Conv3dOptions options = {});
  ~Conv3d() override;

  // x: [B, in, T, H, W]. Returns [B, out, T', H', W'].
  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight, bias;
  ops::Conv3dOptions options;
};

}  // namespace atelier::nn
