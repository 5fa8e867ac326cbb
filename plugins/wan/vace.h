// VACE: blocks beside the denoiser's that follow a clip, its mask and pictures of what is in it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atelier/component_family.h"
#include "atelier/nn/layers.h"

#include "addition.h"
#include "dit_block.h"
#include "variant.h"

namespace wan {

// Conditioning of what is followed. The clip is [2 C + kMaskChannels, T, H, W]: the latents of what
// stays of it, those of what is made anew, and which pixels of each latent cell these are. The
// pictures are latents [C, n, H, W], which are denoised in front of the clip's; absent: there are
// none. The scale of the hints is float32 [1], or has a number for each block; absent: 1.
inline constexpr const char *kVaceClip = "vace_clip", *kVaceReferences = "vace_references",
                            *kVaceScale = "vace_scale";
inline constexpr int64_t kMaskSide = 8;  // pixels of a latent cell along one side
inline constexpr int64_t kMaskChannels = kMaskSide * kMaskSide;

struct VaceConfig {
  int64_t width, heads, mlp_width;
  int64_t channels;  // of what is followed
  int64_t patch;
  double norm_eps;
  std::vector<int64_t> places;  // the denoiser's blocks behind which the hints are added, ascending

  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width), fields("heads", heads), fields("mlp_width", mlp_width);
    fields("channels", channels), fields("patch", patch), fields("norm_eps", norm_eps);
    fields("places", places);
  }
};

// Inputs: those of DitBlock, of rows of what is followed; the first block has the denoiser's rows
// behind them. Outputs: what is added to the denoiser's rows, and the rows of the next block.
class VaceBlock final : public DitBlock {
 public:
  VaceBlock(Module* parent, std::string name, const DitConfig& c, bool is_first);
  ~VaceBlock() override;

  std::string_view kind() const override { return before_ ? "vace_first" : "vace"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  std::unique_ptr<atelier::nn::Linear> before_;  // null: it is not the first
  atelier::nn::Linear after_;
};

// Weights are called as the original checkpoint calls them.
class Vace final : public atelier::nn::Module {
 public:
  explicit Vace(const VaceConfig& config);
  ~Vace() override;

  // What is followed, [B, channels, T, H, W], to rows of its tokens, [B T' H' W', D].
  at::Tensor patches(const at::Tensor& clip_BCTHW) const;
  int64_t channels() const { return channels_; }
  const std::vector<int64_t>& places() const { return places_; }
  VaceBlock& block(size_t number) { return *blocks_[number]; }
  // "rows" [B, T H W, D] of the denoiser in front of its first block, "control"
  // [B, channels, T, h, w], "time" [B, 6 D] and "text" [B, L, D] become "hints"
  // [blocks, B, T H W, D].
  atelier::NamedTensors probe(const atelier::NamedTensors& inputs, atelier::BlockRunner& runner);

 private:
  int64_t channels_, patch_, head_dim_;
  std::vector<int64_t> places_;
  atelier::nn::Conv3d patches_;
  std::vector<std::unique_ptr<VaceBlock>> blocks_;
};

// Adds the hints of one call. Each block runs when the denoiser is where its hint is added, so that
// one hint is held at a time.
class VaceHints final : public Addition {
 public:
  // Throws Error{kInvalidArgument} for what does not fit the latents. Samples without kVaceClip get
  // no hints.
  VaceHints(Vace& vace, const atelier::DenoiseInputs& in);

  void begin(Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  Vace& vace_;
  at::Tensor clip_BCTHW_, scale_BL_;
  at::Tensor rows_;   // of the next block
  at::Tensor first_;  // the denoiser's rows in front of its first block, until they are read
  size_t next_ = 0;
};

std::optional<atelier::Detection> detect_vace(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields vace_fields(const atelier::Detection& part);
atelier::WeightMap vace_map(const atelier::Detection& part);
// Returns how many blocks the VACE among the parts of a model has, 0 without one. Throws
// Error{kInvalidArgument} where it is not made for the denoiser that it stands beside.
int64_t check_vace(std::span<const atelier::Detection> parts);

// What it is given.
class VaceInputs final : public Variant {
 public:
  VaceInputs(Wan& model, std::span<const atelier::Detection> parts)
      : Variant(model), blocks_(check_vace(parts)) {}
  ~VaceInputs() override = default;

  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  // Where it follows a clip, what is made has that clip's size. Throws where it is told how much
  // counts, and there is nothing to follow.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  // Hints whose scales are all 0 are not made: the denoiser runs alone.
  bool runs(std::string_view control, const atelier::Inputs& inputs) const override;
  at::Tensor encode_leading(const atelier::Inputs& values, atelier::Conditioning& made,
                            atelier::BlockRunner& runner) override;
  int64_t leading_frames(const atelier::Conditioning& cond) const override;
  std::optional<at::Tensor> denoise(const atelier::DenoiseInputs& in,
                                    atelier::BlockRunner& runner) override;

 private:
  void check_scale(const atelier::Inputs& inputs) const;
  atelier::Conditioning encode_references(const atelier::Inputs& values, int64_t height,
                                          int64_t width, atelier::BlockRunner& runner);

  int64_t blocks_;  // 0: there is no VACE
};

}  // namespace wan
