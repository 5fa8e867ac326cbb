// The block of the denoiser, and what it is made of.
#pragma once

#include <memory>
#include <string>

#include "atelier/block.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"

#include "config.h"

namespace wan {

// Modulation, time and layer norms have it, whatever the rest is computed in.
inline constexpr atelier::WeightOptions kFloat32 = {.keeps_float32 = true};

// q, k and v of one attention, with norms over all heads of q and k, and what comes behind it.
class Attention final : public atelier::nn::Module {
 public:
  // With `sees_images` it has keys and values of its own for them.
  Attention(Module* parent, std::string name, const DitConfig& c, bool sees_images = false);
  ~Attention() override;

  // q, k and v of the rows of a clip, whose places turn q and k: [N, H, d] each.
  atelier::Tensors project(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const;
  // What follows behind attention: of what the rows saw, [N, D].
  at::Tensor finish(const at::Tensor& seen) const { return o_.forward(seen); }

  // From the rows of a clip to those of its prompt and, where `image` is defined, to those of its
  // images, and the sum of both.
  at::Tensor across(const at::Tensor& x, const atelier::Segments& rows, const at::Tensor& text,
                    const at::Tensor& text_offsets, const at::Tensor& image,
                    const at::Tensor& image_offsets) const;

 private:
  at::Tensor heads(const at::Tensor& x) const;

  int64_t head_dim_;
  atelier::nn::Linear q_, k_, v_, o_;
  atelier::nn::RMSNorm norm_q_, norm_k_;
  std::unique_ptr<atelier::nn::Linear> k_img_, v_img_;
  std::unique_ptr<atelier::nn::RMSNorm> norm_k_img_;
};

// Rows of an image encoder as the blocks read them.
class ImageEmbedding final : public atelier::nn::Module {
 public:
  ImageEmbedding(Module* parent, std::string name, const DitConfig& c);
  ~ImageEmbedding() override;

  // Returns [B L, D].
  at::Tensor forward(const atelier::PackedRows& images, at::ScalarType dtype) const;

 private:
  atelier::nn::LayerNorm norm_in_;
  atelier::nn::Linear in_, out_;
  atelier::nn::LayerNorm norm_out_;
  atelier::WeightPtr positions_;
};

// What makes values of the cells of their patches of rows.
class Head final : public atelier::nn::Module {
 public:
  Head(Module* parent, std::string name, const DitConfig& c);
  ~Head() override;

  // time_SD: float32, of the stretches of rows `levels`. Returns [N, values of a patch].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time_SD,
                     const atelier::Segments& levels) const;

 private:
  double eps_;
  atelier::WeightPtr modulation_;
  atelier::nn::Linear head_;
};

// Inputs: rows [N, D], cosines and sines of the rows, offsets of the samples' rows, offsets of
// those that have one noise level, time [S, 6 D] float32, rows of the prompts [B L, D] and their
// offsets, and where images are read the same of them. Output: rows.
//
// With keys and values of rows beside, which are seen too, and their offsets: outputs are rows, and
// the keys and values of one's own. Where the inputs end in front of kText, those alone.
class DitBlock : public atelier::Block {
 public:
  enum Input {
    kRows,
    kCos,
    kSin,
    kOffsets,
    kLevelOffsets,
    kTime,
    kText,
    kTextOffsets,
    kImage,
    kImageOffsets,
    kBesideKeys,
    kBesideValues,
    kBesideOffsets
  };

  DitBlock(Module* parent, std::string name, const DitConfig& c);
  ~DitBlock() override;

  std::string_view kind() const override { return "dit"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 protected:
  // The shifts, scales and gates of the rows' levels.
  std::vector<at::Tensor> modulation(const atelier::Tensors& in) const;
  // q, k and v of the rows, see Attention::project().
  atelier::Tensors project(const atelier::Tensors& in,
                           const std::vector<at::Tensor>& modulation) const;
  // The rows, which saw `seen` among themselves and beside.
  at::Tensor finish(const atelier::Tensors& in, const std::vector<at::Tensor>& modulation,
                    const at::Tensor& seen) const;

 private:
  double eps_;
  atelier::WeightPtr modulation_;
  Attention self_attn_, cross_attn_;
  atelier::nn::LayerNorm norm3_;
  atelier::nn::Linear up_, down_;
};

}  // namespace wan
