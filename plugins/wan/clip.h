// The image encoder: the vision tower of CLIP, up to the states in front of its last layer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/nn/layers.h"

namespace wan {

// The defaults are those of ViT-H/14, for what shapes do not tell.
struct ClipConfig {
  int64_t layers = 32;  // published; the last one is not run
  int64_t width = 1280, heads = 16, mlp_width = 5120;
  int64_t patch = 14;  // pixels along each side
  int64_t rows = 257;  // a class and the patches of a square
  double eps = 1e-5;
  bool has_batch_axes = false;  // class and positions have axes of length 1 in front

  // Pixels along each side of an image.
  int64_t image_side() const;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("patch", patch), fields("rows", rows);
    fields("eps", eps), fields("has_batch_axes", has_batch_axes);
  }
};

// See ComponentRow. Spellings: "original" (visual.transformer.0.attn.to_qkv.weight, beside a text
// tower that is not used), "transformers" (vision_model.encoder.layers.0.…) and "transformers_bare"
// (encoder.layers.0.…).
std::optional<atelier::Detection> detect_clip(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields clip_fields(const atelier::Detection& part);
atelier::WeightMap clip_map(const atelier::Detection& part);

class ClipBlock;

// Weights are called as the original checkpoint calls them, without "visual.".
class ClipVision final : public atelier::nn::Module {
 public:
  explicit ClipVision(const ClipConfig& config);
  ~ClipVision() override;

  // image: RGB [3, H, W] in [-1, 1], of any size: it is scaled until its shorter side fits, and the
  // middle is cut out. Returns [rows(), width()] in compute dtype.
  at::Tensor forward(const at::Tensor& image, atelier::BlockRunner& runner) const;

  int64_t rows() const { return config_.rows; }
  int64_t width() const { return config_.width; }

 private:
  ClipConfig config_;
  atelier::WeightPtr cls_embedding_, pos_embedding_, patch_embedding_;
  atelier::nn::LayerNorm pre_norm_;
  std::vector<std::unique_ptr<ClipBlock>> blocks_;
};

}  // namespace wan
