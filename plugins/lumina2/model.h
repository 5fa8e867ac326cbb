// One loaded Lumina-Image 2.0: tokenizer, text encoder, VAE and denoiser, and the maths between
// them.
#pragma once

#include <memory>

#include "atelier/model.h"
#include "atelier/model_family.h"

#include "autoencoder.h"
#include "dit.h"
#include "gemma2.h"

namespace lumina2 {

class Lumina2 final : public atelier::Model {
 public:
  // Throws Error{kInvalidArgument} when the parts do not belong together.
  Lumina2(std::span<const atelier::Detection> parts, const atelier::ModelOptions& options);
  ~Lumina2() override;

  atelier::nn::Module& component(std::string_view name) override;
  std::vector<atelier::Block*> blocks(std::string_view component) override;
  atelier::LatentSpec latent_spec() const override;

  // Gives "prompt_embeds": [L, text_width], in compute dtype. Reads "prompt", "system_prompt" (by
  // default the published one) and "is_negative": negative and empty prompts have no system prompt.
  atelier::Conditioning encode_text(const atelier::Inputs& inputs,
                                    atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::Inputs& inputs) const override;
  at::Tensor encode_media(const at::Tensor& pixels, atelier::BlockRunner& runner) override;
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;
  std::vector<atelier::WeightPtr> level_weights() override;
  void prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner) override;
  void forget_levels() override;
  at::Tensor decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner) override;

  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;
  std::vector<int64_t> tokenize(std::string_view text) const override;

 private:
  const atelier::text::Tokenizer& tokenizer() const;
  template <class Part>
  Part& loaded(const std::unique_ptr<Part>& part, std::string_view name) const;
  atelier::NamedTensors probe_text_encoder(const atelier::NamedTensors& inputs,
                                           atelier::BlockRunner& runner);
  atelier::NamedTensors probe_vae(const atelier::NamedTensors& inputs,
                                  atelier::BlockRunner& runner);
  atelier::NamedTensors probe_dit(const atelier::NamedTensors& inputs,
                                  atelier::BlockRunner& runner);

  bool cuts_texts_;
  std::shared_ptr<const atelier::text::Tokenizer> tokenizer_;
  std::unique_ptr<Gemma2> text_encoder_;
  std::unique_ptr<Autoencoder> vae_;
  std::unique_ptr<Dit> dit_;
};

}  // namespace lumina2
