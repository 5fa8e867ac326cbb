#include "model.h"

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"

#include "config.h"

namespace qwen_image {

QwenImage::QwenImage(std::span<const atelier::ComponentRow> rows,
                     std::span<const atelier::Detection> parts,
                     const atelier::ModelOptions& options)
    : ComponentModel(rows, parts, options) {
  if (has_tokenizer()) prompts_.emplace(tokenizer());
}

QwenImage::~QwenImage() = default;

const PromptTemplate& QwenImage::prompts() const {
  tokenizer();  // or throws
  return *prompts_;
}

atelier::Conditioning QwenImage::encode(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner) {
  if (in.stage == "latents") return encode_latents(in.values, "image", runner);
  std::vector<int64_t> ids = prompts().tokens(atelier::text_input(in.values, "prompt"));
  const int64_t skip = prompts().skip();
  // The template's end goes first.
  cut_to_limit(ids, {.tokens = std::ssize(ids) - skip, .limit = kLongestPrompt});
  const at::Tensor hidden = encode_ids("text_encoder", ids, runner);
  return {{atelier::kPromptEmbeds, hidden.narrow(0, skip, std::ssize(ids) - skip).clone()}};
}

atelier::TextLength QwenImage::text_length(const atelier::EncodeInputs& in) const {
  const std::vector<int64_t> ids = prompts().tokens(atelier::text_input(in.values, "prompt"));
  return {.tokens = std::ssize(ids) - prompts().skip(), .limit = kLongestPrompt};
}

at::Tensor QwenImage::guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                            double scale) const {
  const at::Tensor with = with_BCTHW.to(at::kFloat), without = without_BCTHW.to(at::kFloat);
  const at::Tensor combined = without + (with - without) * scale;
  const int64_t B = with.size(0), T = with.size(2), H = with.size(3) / kPatch,
                W = with.size(4) / kPatch;
  const auto tokens = [&](const at::Tensor& v) { return v.view({B, -1, T, H, kPatch, W, kPatch}); };
  // The squares of a token's values, summed: [B, 1, T, H, 1, W, 1].
  const auto squares = [&](const at::Tensor& v) {
    return tokens(v).square().sum({1, 4, 6}, /*keepdim=*/true);
  };
  const at::Tensor ratio = at::sqrt(squares(with) / squares(combined).clamp_min(1e-30));
  return (tokens(combined) * ratio).view(with.sizes()).to(with_BCTHW.scalar_type());
}

}  // namespace qwen_image
