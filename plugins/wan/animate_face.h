// Faces of Wan2.2-Animate: pictures of a face become a motion each, and those become rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"

namespace wan {

struct AnimateConfig {
  int64_t width, head_dim;         // of the denoiser
  int64_t channels, patch;         // of the pose's latents, and cells per token
  int64_t adapters, interval;      // an adapter stands behind every so many blocks from block 0 on
  std::vector<int64_t> levels;     // channels of a picture, each level half as wide and high
  int64_t style_width, layers;     // of what a picture becomes, and of layers that read it
  int64_t motions, motion_width;   // directions that a motion is made of, and its width
  int64_t face_width, face_heads;  // of a frame's rows, and how many it has
  bool flat_biases;                // biases of convolutions are [C], else [1, C, 1, 1]
  double norm_eps;

  int64_t face_side() const;  // of a picture, in pixels

  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width), fields("head_dim", head_dim);
    fields("channels", channels), fields("patch", patch);
    fields("adapters", adapters), fields("interval", interval), fields("levels", levels);
    fields("style_width", style_width), fields("layers", layers);
    fields("motions", motions), fields("motion_width", motion_width);
    fields("face_width", face_width), fields("face_heads", face_heads);
    fields("flat_biases", flat_biases), fields("norm_eps", norm_eps);
  }
};

// One step of the motion encoder from pictures to half their size.
class FaceLevel final : public atelier::nn::Module {
 public:
  FaceLevel(Module* parent, std::string name, int64_t in, int64_t out, bool flat_biases);

  at::Tensor forward(const at::Tensor& x_BCHW) const;

 private:
  atelier::WeightPtr conv1_, bias1_, conv2_, bias2_, skip_;
};

// Inputs: pictures [B, 3, S, S] in [-1, 1] and the directions of motions, float32 [M, motions].
// Output: a motion of each, [B, M].
class MotionEncoder final : public atelier::Block {
 public:
  MotionEncoder(Module* parent, std::string name, const AnimateConfig& c);
  ~MotionEncoder() override;

  std::string_view kind() const override { return "motion_encoder"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  atelier::WeightPtr conv_in_, bias_in_;
  std::vector<std::unique_ptr<FaceLevel>> levels_;
  atelier::WeightPtr conv_out_;
  std::vector<std::unique_ptr<atelier::nn::Linear>> layers_;
};

// Input: motions [B, F, M] of F frames. Output: rows [B, T, face_heads + 1, D] of T latent frames;
// those of one see its frames and earlier ones.
class FaceEncoder final : public atelier::Block {
 public:
  FaceEncoder(Module* parent, std::string name, const AnimateConfig& c);
  ~FaceEncoder() override;

  std::string_view kind() const override { return "face_encoder"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  int64_t heads_;
  atelier::WeightPtr padding_;
  atelier::nn::Conv1d conv1_, conv2_, conv3_;
  atelier::nn::Linear out_;
};

}  // namespace wan
