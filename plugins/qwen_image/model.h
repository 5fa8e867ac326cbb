// One loaded Qwen-Image: tokenizer, text encoder, VAE and denoiser, and the maths between them.
#pragma once

#include <memory>
#include <optional>

#include "atelier/model.h"
#include "atelier/model_family.h"

#include "dit.h"
#include "text_encoder.h"
#include "vae.h"

namespace qwen_image {

class QwenImage final : public atelier::Model {
 public:
  // Throws Error{kInvalidArgument} when the parts do not belong together.
  QwenImage(std::span<const atelier::Detection> parts, const atelier::ModelOptions& options);
  ~QwenImage() override;

  atelier::nn::Module& component(std::string_view name) override;
  std::vector<atelier::Block*> blocks(std::string_view component) override;
  atelier::LatentSpec latent_spec() const override;

  // Gives "prompt_embeds": [L, text_width], in compute dtype.
  atelier::Conditioning encode_text(const atelier::Inputs& inputs,
                                    atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::Inputs& inputs) const override;
  at::Tensor encode_media(const at::Tensor& pixels, atelier::BlockRunner& runner) override;
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;
  std::vector<atelier::WeightPtr> level_weights() override;
  void prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner) override;
  void forget_levels() override;
  at::Tensor decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner) override;

  // Keeps each token's length: the combined velocity is scaled to the norm of `with`, over the
  // values of a token.
  at::Tensor guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                   double scale) const override;

  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;
  std::vector<int64_t> tokenize(std::string_view text) const override;

 private:
  const PromptTemplate& prompts() const;
  template <class Part>
  Part& loaded(const std::unique_ptr<Part>& part, std::string_view name) const;

  bool cuts_texts_;
  std::optional<PromptTemplate> prompts_;
  std::unique_ptr<TextEncoder> text_encoder_;
  std::unique_ptr<Vae> vae_;
  std::unique_ptr<Dit> dit_;
};

}  // namespace qwen_image
