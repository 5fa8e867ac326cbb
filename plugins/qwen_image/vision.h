// The vision tower of the text encoder: what pictures become among the prompt's tokens.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/nn/layers.h"

#include "pictures.h"

namespace qwen_image {

// The defaults are the published ones, for what shapes do not tell.
struct VisionConfig {
  int64_t layers = 32, width = 1280, heads = 16, mlp_width = 3420;
  int64_t out_width = 3584;                           // of a token: that of the text encoder
  int64_t window = 112;                               // pixels along each side
  std::vector<bool> sees_all = std::vector<bool>(0);  // of each layer; others look in windows

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("out_width", out_width), fields("window", window);
    fields("sees_all", sees_all);
  }
};

// See ComponentRow. Spellings: "disk" (visual.blocks.0.…), "memory" (model.visual.blocks.0.…) and
// "llama_cpp" (v.blk.0.…; GGUF files, called mmproj).
std::optional<atelier::Detection> detect_vision(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields vision_fields(const atelier::Detection& part);
atelier::WeightMap vision_map(const atelier::Detection& part);
std::unique_ptr<atelier::nn::Module> make_vision(const atelier::Detection& part);

class VisionBlock;

class VisionTower final : public atelier::nn::Module {
 public:
  // `has_frames_apart`: what makes patches of the two frames are two weights, as in GGUF files.
  explicit VisionTower(const VisionConfig& config, bool has_frames_apart = false);
  ~VisionTower() override;

  // Rows of all pictures, see Patches. Returns their tokens, [L, out_width] in compute dtype.
  at::Tensor forward(const at::Tensor& patches, std::span<const PatchGrid> grids,
                     atelier::BlockRunner& runner) const;

  int64_t out_width() const { return config_.out_width; }

 private:
  at::Tensor patch_kernel() const;

  VisionConfig config_;
  atelier::WeightPtr patch_embed_, second_frame_;  // the latter null: both are in one
  std::vector<std::unique_ptr<VisionBlock>> blocks_;
  atelier::nn::RMSNorm merge_norm_;
  atelier::nn::Linear merge_in_, merge_out_;
};

}  // namespace qwen_image
