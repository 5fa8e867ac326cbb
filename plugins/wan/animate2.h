// Wan2.2-Animate-2: the clip that is made follows a driving clip. Both go through the same blocks,
// the driving clip clean and with a text and an image of its own. In each block all rows that are
// made see each other, and those of a frame the driving clip's rows of the same frame, under one
// softmax. In front of the clip stands the reference image, which is denoised with it:
//
//   made      ref 0 1 2
//               \  \ \ \.
//   driving        0 1 2
#pragma once

#include <memory>
#include <vector>

#include "addition.h"
#include "dit_block.h"
#include "variant.h"

namespace wan {

class Embeddings;

// Conditioning: latents of the driving clip, [C, T, H, W], where the latents that are denoised have
// T + 1 frames; rows of its text and of its first frame; and what says by being there that nothing
// of the driving clip is kept from step to step.
inline constexpr const char *kDrivingClip = "driving_clip", *kDrivingEmbeds = "driving_embeds",
                            *kDrivingImage = "driving_image_embeds",
                            *kKeepsNothing = "keeps_nothing";

// Beside latents that are learnt: how many of their frames are not those of the clip, by its
// length.
inline constexpr const char* kLeadingFrames = "leading_frames";

// Inputs: rows of a driving clip, as those of DitBlock, kImageOffsets the last of them. Outputs:
// its keys and values, and its rows. In the last block, whose rows nothing reads, the inputs end in
// front of kText, and there are no rows among the outputs.
//
// Or rows that are made, and behind them keys and values of a driving clip, or the inputs of its
// rows; then offsets of each frame of each sample, of both clips. Outputs: rows, and those of the
// driving clip where it runs beside.
class DrivenBlock final : public DitBlock {
 public:
  DrivenBlock(Module* parent, std::string name, const DitConfig& c)
      : DitBlock(parent, std::move(name), c), first_frame_bias_(c.first_frame_bias) {}
  ~DrivenBlock() override;

  std::string_view kind() const override { return "driven"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  atelier::Tensors drive(const atelier::Tensors& in) const;

  double first_frame_bias_;
};

// Runs the driving clip beside the one that is made. Its rows depend neither on noise nor on the
// prompt: keys and values of a clip may be kept for all steps.
class Driving final : public Addition {
 public:
  // All of one denoiser.
  Driving(const DitConfig& config, const Embeddings& embeddings, const ImageEmbedding& images,
          const std::vector<std::unique_ptr<DitBlock>>& blocks)
      : config_(config), embeddings_(embeddings), images_(images), blocks_(blocks) {}
  ~Driving() override;

  void begin(Pass& pass) override;
  bool replace(int64_t index, DitBlock& block, Pass& pass) override;

  // From here on keys and values are kept, those of the clips of the last call, until forget().
  void keep() { keeps_ = true; }
  void forget();

 private:
  atelier::Tensors first_inputs(const Pass& pass) const;
  void reach(int64_t index);
  bool has_kept(const Pass& pass) const;

  const DitConfig& config_;
  const Embeddings& embeddings_;
  const ImageEmbedding& images_;
  const std::vector<std::unique_ptr<DitBlock>>& blocks_;
  atelier::Tensors driving_;            // inputs of the next block; empty: its keys are kept
  at::Tensor frames_, driving_frames_;  // offsets
  bool keeps_ = false;
  std::vector<atelier::Tensors> kept_of_;  // what they were made of, by sample
  std::vector<atelier::Tensors> kept_;     // keys and values, by block
};

// What it is given.
class DrivenInputs final : public Variant {
 public:
  using Variant::Variant;
  ~DrivenInputs() override = default;

  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  std::optional<std::vector<int64_t>> ids(const atelier::EncodeInputs& in) const override;
  // In the shape of the reference image, and as long as the driving clip.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  void prepare_levels(std::string_view denoiser) override;
  void forget_levels() override;
  at::Tensor encode_leading(const atelier::Inputs& values, atelier::Conditioning& made,
                            atelier::BlockRunner& runner) override;
  int64_t leading_frames(const atelier::Conditioning& cond) const override;

 private:
  std::vector<int64_t> driving_ids(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_driving_text(const atelier::EncodeInputs& in,
                                            atelier::BlockRunner& runner);
  atelier::Conditioning encode_driving(const atelier::EncodeInputs& in,
                                       atelier::BlockRunner& runner);

  Driving* keeps_ = nullptr;  // keeps keys and values until forget_levels()
};

}  // namespace wan
