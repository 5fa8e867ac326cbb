// Wan2.2-Animate: a character moves as a pose and a face do, alone or in place of somebody.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atelier/component_family.h"
#include "atelier/model.h"

#include "addition.h"
#include "animate_face.h"
#include "variant.h"

namespace wan {

inline constexpr const char* kAnimateAdapter = "animate_adapter";

// Conditioning: latents of the pose's clip, [C, T, H, W]; and the clip of the face, bytes
// [3, F, S, S]. The denoiser's latents have a frame in front of T, that of the character.
inline constexpr const char *kAnimatePose = "animate_pose", *kAnimateFaces = "animate_faces";
// Beside latents that are learnt: that they have this frame, int64 [1].
inline constexpr const char* kAnimateCharacter = "animate_character";

// Inputs: rows of the latents [N, D], rows of the faces, and offsets of both by latent frame.
// Output: the former, each frame's with what it sees of its face.
class FaceAdapter final : public atelier::Block {
 public:
  FaceAdapter(Module* parent, std::string name, const AnimateConfig& c);
  ~FaceAdapter() override;

  std::string_view kind() const override { return "face_adapter"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  int64_t head_dim_;
  double eps_;
  atelier::nn::Linear kv_, q_, out_;
  atelier::nn::RMSNorm norm_q_, norm_k_;
};

// Weights are called as the published file calls them.
class AnimateAdapter final : public atelier::nn::Module {
 public:
  explicit AnimateAdapter(const AnimateConfig& config);
  ~AnimateAdapter() override;

  // pose: latents. Returns [B, T H' W', D] of their tokens.
  at::Tensor pose_rows(const at::Tensor& pose_BCTHW) const;
  // faces: a clip [B, 3, F, S, S], bytes or in [-1, 1]. Returns [B, T + 1, rows, D]: zeros in
  // front.
  at::Tensor face_rows(const at::Tensor& faces_BCFHW, atelier::BlockRunner& runner);
  // The adapter behind block `index`; null: none.
  FaceAdapter* behind(int64_t index) const;
  // "pose" [B, C, T, h, w] becomes "pose_rows", "faces" [B, 3, F, S, S] "face_rows", and "rows"
  // [B, L, D] with "face_rows" [B, T, rows, D] "adapted", [adapters, B, L, D].
  atelier::NamedTensors probe(const atelier::NamedTensors& inputs, atelier::BlockRunner& runner);

 private:
  at::ScalarType dtype() const;

  AnimateConfig config_;
  atelier::nn::Conv3d pose_;
  atelier::WeightPtr directions_;
  MotionEncoder motion_;
  FaceEncoder face_;
  std::vector<std::unique_ptr<FaceAdapter>> adapters_;
};

// Runs the adapter between the denoiser's blocks.
class Animation final : public Addition {
 public:
  explicit Animation(AnimateAdapter& adapter) : adapter_(adapter) {}

  void begin(Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  AnimateAdapter& adapter_;
  at::Tensor faces_, frame_offsets_, face_offsets_;
};

// What it is given.
class AnimateInputs final : public Variant {
 public:
  // Throws where the adapter is not made for the denoiser.
  AnimateInputs(Wan& model, std::span<const atelier::Detection> parts);
  ~AnimateInputs() override = default;

  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  // As long and large as the clip of the pose.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  at::Tensor encode_leading(const atelier::Inputs& values, atelier::Conditioning& made,
                            atelier::BlockRunner& runner) override;
  int64_t leading_frames(const atelier::Conditioning& cond) const override;
  std::optional<at::Tensor> denoise(const atelier::DenoiseInputs& in,
                                    atelier::BlockRunner& runner) override;

 private:
  atelier::Conditioning encode_clip(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
};

std::optional<atelier::Detection> detect_animate(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields animate_fields(const atelier::Detection& part);
atelier::WeightMap animate_map(const atelier::Detection& part);

}  // namespace wan
