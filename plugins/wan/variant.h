// What some variants are given beside prompts and images, and how their latents lie.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"

namespace wan {

class Wan;

// A model has one of each, also without a denoiser that would say which variant it is, as stages
// that are cached run without one. Where the inputs or conditions that are its own are not there,
// it does nothing.
class Variant {
 public:
  explicit Variant(Wan& model) : model_(model) {}
  virtual ~Variant() = default;
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  // The published one, which stands in the place of an empty one; empty: that of most variants.
  virtual std::string_view negative_prompt() const;

  // Runs a stage of its own; nullopt: it is none of those.
  virtual std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                                      atelier::BlockRunner& runner);
  // The tokens of the text that such a stage reads; nullopt: it is none, or reads the prompt.
  virtual std::optional<std::vector<int64_t>> ids(const atelier::EncodeInputs& in) const;

  // See Model.
  virtual atelier::MediaTarget target(const atelier::Inputs& inputs,
                                      const atelier::MediaTarget& asked) const;
  virtual bool runs(std::string_view control, const atelier::Inputs& inputs) const;
  virtual std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                             const atelier::MediaTarget& target) const;
  // How many frames latents have that do not lie as others do, and what is decoded of them;
  // nullopt: they lie as others.
  virtual std::optional<int64_t> latent_frames(const atelier::Conditioning& cond) const;
  virtual std::optional<atelier::FinishedLatents> to_decode(
      const at::Tensor& latents_BCTHW, const atelier::Conditioning& cond) const;
  virtual void prepare_levels(std::string_view denoiser);
  virtual void forget_levels();

  // Latents in front of those of the clip that is learnt, [C, n, H, W], for training. They stay in
  // `made`, or something that says how many they are. Undefined: there are none.
  virtual at::Tensor encode_leading(const atelier::Inputs& values, atelier::Conditioning& made,
                                    atelier::BlockRunner& runner);
  // How many there are.
  virtual int64_t leading_frames(const atelier::Conditioning& cond) const;

  // Denoises with what runs beside the denoiser; nullopt: nothing does.
  virtual std::optional<at::Tensor> denoise(const atelier::DenoiseInputs& in,
                                            atelier::BlockRunner& runner);
  // See Model; nullopt: as of most variants.
  virtual std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                                     at::IntArrayRef latents_CTHW) const;
  virtual std::optional<at::Tensor> guide(const atelier::GuideInputs& in);

 protected:
  Wan& model_;
};

}  // namespace wan
