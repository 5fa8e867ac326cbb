// LongCat-Video: a denoiser of its own between Wan's text encoder and the VAE of Wan 2.1. Frames
// that are known stand in front of those that are made, and look at nothing else.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/shared_rows.h"

#include "variant.h"

namespace wan {

inline constexpr const char* kLongCat = "longcat-video";

// Frames that are made at once, and those of them that a piece behind the first one has from the
// piece before it.
inline constexpr int64_t kLongCatFrames = 93, kLongCatShared = 13;

// Conditioning: latents of the clip's first frames, [C, n, H, W].
inline constexpr const char* kKnownClip = "known_clip";

struct LongCatConfig {
  int64_t layers, width, heads, mlp_width, text_width;
  int64_t time_width;        // cosines and sines of a noise level
  int64_t modulation_width;  // of what the blocks are told of it
  int64_t channels;          // of the latents, in and out
  int64_t patch;             // latent cells per token along height and width

  int64_t head_dim() const { return width / heads; }

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("time_width", time_width), fields("modulation_width", modulation_width);
    fields("channels", channels), fields("patch", patch);
  }
};

// The rows of all samples, and where some of them are known, those that are and those that are not.
struct LongCatRows {
  struct Parts {
    atelier::Segments known, made;
  };
  atelier::Segments all;
  std::optional<Parts> parts = std::nullopt;
};

// Inputs: rows [N, D], cosines and sines of the rows, offsets of the samples' rows, offsets of
// those that have one noise level, what is told of the level [S, modulation width] float32, rows of
// the prompts [B L, D] and their offsets, and where some rows are known the offsets of a sample's
// known rows and of its others. Output: rows.
class LongCatBlock final : public atelier::Block {
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
    kKnownOffsets,
    kMadeOffsets
  };

  LongCatBlock(Module* parent, std::string name, const LongCatConfig& c);
  ~LongCatBlock() override;

  std::string_view kind() const override { return "dit"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  at::Tensor heads(const at::Tensor& x) const;
  at::Tensor among_rows(const at::Tensor& x, const atelier::Tensors& in,
                        const LongCatRows& rows) const;
  at::Tensor to_text(const at::Tensor& x, const atelier::Tensors& in,
                     const atelier::Segments& rows) const;

  int64_t head_dim_;
  atelier::nn::Linear modulation_;
  atelier::nn::Linear qkv_, proj_;
  atelier::nn::RMSNorm q_norm_, k_norm_;
  atelier::nn::LayerNorm text_norm_;
  atelier::nn::Linear text_q_, text_kv_, text_proj_;
  atelier::nn::RMSNorm text_q_norm_, text_k_norm_;
  atelier::nn::Linear gate_, down_, up_;
};

// Weights are called as the published files call them. Modulation, time and layer norms are float32
// whatever the rest is computed in. Not thread-safe: tables of the last shapes are kept between
// calls.
class LongCat final : public atelier::Denoiser, public atelier::SharesRows {
 public:
  explicit LongCat(const LongCatConfig& config);
  ~LongCat() override;

  // Reads "prompt_embeds": [L, text_width] of each sample, L at most kTextRows. Where a sample has
  // a "known_clip", its latents begin with those frames, which are told noise level 0.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return config_.patch; }
  at::ScalarType dtype() const override { return patches_.weight->draw().scalar_type(); }
  std::vector<atelier::ConditioningEntry> entries() const override;
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.heads; }

 private:
  at::Tensor text(const atelier::PackedRows& prompts, at::ScalarType dtype) const;
  const atelier::nn::Waves& waves(int64_t B, int64_t T, int64_t H, int64_t W, at::Device device);

  LongCatConfig config_;
  atelier::nn::Conv3d patches_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::Linear text_in_, text_out_;
  std::vector<std::unique_ptr<LongCatBlock>> blocks_;
  atelier::nn::Linear head_modulation_, head_;
  // By samples, and sizes of the latents.
  atelier::nn::RecentTables<std::pair<std::vector<int64_t>, at::Device>, atelier::nn::Waves> waves_;
};

// ---- Files ----

// Whether a part is this denoiser, and not the one of other variants.
bool is_longcat(const atelier::Detection& part);
// See ComponentRow.
std::optional<atelier::Detection> detect_longcat(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields longcat_fields(const atelier::Detection& part);
std::vector<std::string> longcat_targets();

// What it is given.
class LongCatInputs final : public Variant {
 public:
  LongCatInputs(Wan& model, std::span<const atelier::Detection> parts)
      : Variant(model), is_longcat_(std::ranges::any_of(parts, is_longcat)) {}
  ~LongCatInputs() override = default;

  std::string_view negative_prompt() const override;
  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  // Throws where what is given does not go before a clip of so many frames.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                             at::IntArrayRef latents_CTHW) const override;
  // The velocity of CFG-Zero*: the one without the prompt is brought as near to the one with it as
  // one factor for the whole sample can. Frames of a clip that is followed are left out of account.
  std::optional<at::Tensor> guide(const atelier::GuideInputs& in) override;

 private:
  bool is_longcat_;
};

}  // namespace wan
