// Video-As-Prompt: a clip shows what is to happen to an image. It is the prompt of a second branch,
// with embeddings and blocks of its own, beside a denoiser of image to video. At every fourth block
// both see each other; between them the branch waits:
//
//   denoiser  0 1 2 3 4 5 ... 36 ... 39
//             |       |        |
//   branch    0       1        9
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "atelier/component_family.h"

#include "addition.h"
#include "config.h"
#include "dit.h"
#include "variant.h"

namespace wan {

// Conditioning: latents of the clip, [C, T, H, W], and what is known of it beside them,
// [given_channels, T, H, W]; rows of its text and of its first frame.
inline constexpr const char *kVapClip = "vap_clip", *kVapKnown = "vap_known",
                            *kVapEmbeds = "vap_embeds", *kVapImage = "vap_image_embeds";

// The input that is the clip, and how many frames are made with it where nothing else is said.
inline constexpr const char* kVapVideo = "vap_video";
inline constexpr int64_t kVapFrames = 49;

inline constexpr int64_t kVapStride = 4;  // blocks of the denoiser for one of the branch

// Weights are called as those of the denoiser; blocks are counted from 0.
class Vap final : public atelier::nn::Module {
 public:
  // config.layers: of the branch.
  explicit Vap(const DitConfig& config);
  ~Vap() override;

  const DitConfig& config() const { return config_; }
  const Embeddings& embeddings() const { return embeddings_; }
  const ImageEmbedding& images() const { return images_; }
  int64_t layers() const { return std::ssize(blocks_); }
  DitBlock& block(int64_t i) const { return *blocks_[static_cast<size_t>(i)]; }

 private:
  DitConfig config_;
  Embeddings embeddings_;
  ImageEmbedding images_;
  std::vector<std::unique_ptr<DitBlock>> blocks_;
};

// Runs the branch beside the denoiser, in one call.
class VapBranch final : public Addition {
 public:
  explicit VapBranch(const Vap& vap) : vap_(vap) {}
  ~VapBranch() override;

  void begin(Pass& pass) override;
  bool replace(int64_t index, DitBlock& block, Pass& pass) override;

 private:
  const Vap& vap_;
  atelier::Tensors branch_;  // inputs of its next block
};

// What it is given.
class VapInputs final : public Variant {
 public:
  using Variant::Variant;
  ~VapInputs() override = default;

  // Its own stages, and given_clip where there is a clip: what is known of that, too.
  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  std::optional<std::vector<int64_t>> ids(const atelier::EncodeInputs& in) const override;
  // As many frames as the branch was trained with.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::optional<at::Tensor> denoise(const atelier::DenoiseInputs& in,
                                    atelier::BlockRunner& runner) override;

 private:
  std::vector<int64_t> vap_ids(const atelier::EncodeInputs& in) const;
  at::Tensor known(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
};

// The tensors of a denoiser that `checkpoint` holds beside those of a branch, as globs; none: it
// holds no branch.
std::vector<std::string> without_vap(const atelier::TensorIndex& checkpoint,
                                     const std::string& prefix);

std::optional<atelier::Detection> detect_vap(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields vap_fields(const atelier::Detection& part);
atelier::WeightMap vap_map(const atelier::Detection& part);

}  // namespace wan
