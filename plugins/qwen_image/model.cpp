// Shape letters: B samples, C latent channels, T frames (1), H and W height and width of latents, L
// tokens, D width.
#include "model.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

namespace qwen_image {

using atelier::allow_only;
using atelier::Error;
using atelier::ErrorCode;
using atelier::lengths_of;
using atelier::named_tensor;
using atelier::NamedTensors;
using atelier::pack_rows;
using atelier::Segments;
using atelier::shape_text;

namespace {

constexpr const char* kPromptEmbeds = "prompt_embeds";

[[noreturn]] void invalid(const std::string& message, const std::string& hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

const std::string& prompt_of(const atelier::Inputs& inputs) {
  const auto found = inputs.find("prompt");
  const auto* prompt = found == inputs.end() ? nullptr : std::get_if<std::string>(&found->second);
  if (!prompt) invalid("prompt: missing, or not a text");
  return *prompt;
}

void one_frame(int64_t frames) {
  if (frames != 1) {
    throw Error(ErrorCode::kUnsupported,
                std::to_string(frames) + " frames: this family makes still pictures",
                "give one frame");
  }
}

}  // namespace

QwenImage::QwenImage(std::span<const atelier::Detection> parts,
                     const atelier::ModelOptions& options)
    : cuts_texts_(options.cuts_texts) {
  for (const atelier::Detection& part : parts) {
    const bool twice = (part.component == "text_encoder" && text_encoder_) ||
                       (part.component == "vae" && vae_) || (part.component == "dit" && dit_);
    if (twice) invalid("two checkpoints hold the " + part.component, "give one");
    if (part.component == "text_encoder") {
      text_encoder_ = std::make_unique<TextEncoder>(text_encoder_config(part));
    } else if (part.component == "vae") {
      vae_ = std::make_unique<Vae>(vae_config(part));
    } else if (part.component == "dit") {
      dit_ = std::make_unique<Dit>(dit_config(part));
    } else {
      invalid("this family has no component '" + part.component + "'");
    }
  }
  if (text_encoder_ && dit_ && text_encoder_->config().width != dit_->config().text_width) {
    invalid("the text encoder gives " + std::to_string(text_encoder_->config().width) +
                " values a token, the DiT takes " + std::to_string(dit_->config().text_width),
            "pass the text encoder that is published with the DiT");
  }
  if (vae_ && dit_ && vae_->config().channels != dit_->config().channels) {
    invalid("the VAE has " + std::to_string(vae_->config().channels) +
                " latent channels, the DiT " + std::to_string(dit_->config().channels),
            "pass the VAE that is published with the DiT");
  }
  const auto file = options.files.find("tokenizer");
  if (file == options.files.end()) return;
  const auto tokenizer = atelier::text::Tokenizer::load(file->second);
  if (text_encoder_ && tokenizer->size() > text_encoder_->config().vocabulary) {
    invalid("the tokenizer has " + std::to_string(tokenizer->size()) +
                " tokens, the text encoder " + std::to_string(text_encoder_->config().vocabulary),
            "pass the tokenizer that is published with the text encoder");
  }
  prompts_.emplace(tokenizer);
}

QwenImage::~QwenImage() = default;

template <class Part>
Part& QwenImage::loaded(const std::unique_ptr<Part>& part, std::string_view name) const {
  if (!part) {
    throw Error(ErrorCode::kNotFound, "the " + std::string(name) + " is not loaded",
                "add its files to --model_paths");
  }
  return *part;
}

const PromptTemplate& QwenImage::prompts() const {
  if (!prompts_) {
    throw Error(ErrorCode::kUnsupported, "the tokenizer is not loaded",
                "add the published tokenizer folder to --model_paths");
  }
  return *prompts_;
}

atelier::nn::Module& QwenImage::component(std::string_view name) {
  if (name == "text_encoder") return loaded(text_encoder_, name);
  if (name == "vae") return loaded(vae_, name);
  if (name == "dit") return loaded(dit_, name);
  throw Error(ErrorCode::kNotFound, "no component '" + std::string(name) + "' has tensors",
              "components with tensors are text_encoder, vae and dit");
}

std::vector<atelier::Block*> QwenImage::blocks(std::string_view component) {
  if (component == "text_encoder" && text_encoder_) return text_encoder_->blocks();
  if (component == "vae" && vae_) return vae_->blocks();
  if (component == "dit" && dit_) return dit_->blocks();
  return {};
}

atelier::LatentSpec QwenImage::latent_spec() const {
  const int64_t stride = vae_ ? vae_->config().stride() : 8;
  const int64_t channels = vae_   ? vae_->config().channels
                           : dit_ ? dit_->config().channels
                                  : std::ssize(kLatentMean);
  return {.channels = channels,
          .spatial_stride = stride,
          .temporal_stride = 1,
          .pixel_multiple = kPatch * stride,
          .token_stride = kPatch * stride};
}

atelier::Conditioning QwenImage::encode_text(const atelier::Inputs& inputs,
                                             atelier::BlockRunner& runner) {
  std::vector<int64_t> ids = prompts().tokens(prompt_of(inputs));
  const int64_t skip = prompts().skip(), longest = skip + kLongestPrompt;
  if (std::ssize(ids) > longest) {
    if (!cuts_texts_) {
      invalid("prompt: " + std::to_string(std::ssize(ids) - skip) + " tokens, at most " +
                  std::to_string(kLongestPrompt) + " are encoded",
              "shorten the prompt");
    }
    ids.resize(static_cast<size_t>(longest));  // the template's end with it
  }
  TextEncoder& encoder = loaded(text_encoder_, "text_encoder");
  const int64_t length = std::ssize(ids);
  const at::Tensor hidden = encoder.forward(at::tensor(ids, at::kLong), Segments({length}), runner);
  return {{kPromptEmbeds, hidden.narrow(0, skip, length - skip).clone()}};
}

atelier::TextLength QwenImage::text_length(const atelier::Inputs& inputs) const {
  const PromptTemplate& prompts = this->prompts();
  return {.tokens = std::ssize(prompts.tokens(prompt_of(inputs))) - prompts.skip(),
          .limit = kLongestPrompt};
}

at::Tensor QwenImage::encode_media(const at::Tensor& pixels, atelier::BlockRunner& runner) {
  const Vae& vae = loaded(vae_, "vae");
  if (pixels.dim() != 4 || pixels.size(0) != 3) {
    invalid("picture of shape " + shape_text(pixels) + ", [3, T, H, W] expected");
  }
  one_frame(pixels.size(1));
  const int64_t stride = vae.config().stride(), H = pixels.size(2), W = pixels.size(3);
  if (H < 1 || W < 1 || H % stride != 0 || W % stride != 0) {
    invalid("picture of " + std::to_string(W) + " x " + std::to_string(H) +
            " pixels: both sides are multiples of " + std::to_string(stride));
  }
  return vae.encode(pixels.permute({1, 0, 2, 3}), runner).permute({1, 0, 2, 3}).contiguous();
}

at::Tensor QwenImage::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  Dit& dit = loaded(dit_, "dit");
  const at::Tensor& x = in.x_BCTHW;
  if (x.dim() != 5 || x.size(0) < 1 || x.size(1) != dit.config().channels) {
    invalid("latents of shape " + shape_text(x) + ", [B, " + std::to_string(dit.config().channels) +
            ", 1, H, W] expected");
  }
  one_frame(x.size(2));
  if (x.size(3) < kPatch || x.size(4) < kPatch || x.size(3) % kPatch != 0 ||
      x.size(4) % kPatch != 0) {
    invalid("latents of shape " + shape_text(x) + ": height and width are even",
            "height and width in pixels are multiples of " +
                std::to_string(latent_spec().pixel_multiple));
  }
  const int64_t B = x.size(0);
  if (in.sigma_B.dim() != 1 || in.sigma_B.size(0) != B || std::ssize(in.cond) != B) {
    invalid(std::to_string(B) + " samples with sigmas of shape " + shape_text(in.sigma_B) +
            " and " + std::to_string(in.cond.size()) + " conditionings");
  }
  std::vector<at::Tensor> prompts;
  for (const atelier::Conditioning* cond : in.cond) {
    const at::Tensor& prompt = named_tensor(*cond, kPromptEmbeds, 2);
    if (prompt.size(0) < 1 || prompt.size(1) != dit.config().text_width) {
      invalid("prompt_embeds of shape " + shape_text(prompt) + ", [L, " +
              std::to_string(dit.config().text_width) + "] expected");
    }
    prompts.push_back(prompt);
  }
  return dit.forward(x, in.sigma_B.to(at::kFloat), prompts, in.level, runner);
}

std::vector<atelier::WeightPtr> QwenImage::level_weights() {
  return dit_ ? dit_->level_weights() : std::vector<atelier::WeightPtr>();
}

void QwenImage::prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner) {
  loaded(dit_, "dit").prepare_levels(sigmas, runner);
}

void QwenImage::forget_levels() {
  if (dit_) dit_->forget_levels();
}

at::Tensor QwenImage::decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner) {
  const Vae& vae = loaded(vae_, "vae");
  if (latents_BCTHW.dim() != 5 || latents_BCTHW.size(1) != vae.config().channels) {
    invalid("latents of shape " + shape_text(latents_BCTHW) + ", [B, " +
            std::to_string(vae.config().channels) + ", 1, H, W] expected");
  }
  one_frame(latents_BCTHW.size(2));
  return vae.decode(latents_BCTHW.select(2, 0), runner).unsqueeze(2);
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

NamedTensors QwenImage::probe(std::string_view component, const NamedTensors& inputs,
                              atelier::BlockRunner& runner) {
  if (component == "text_encoder") {
    TextEncoder& encoder = loaded(text_encoder_, component);
    allow_only(inputs, {"input_ids", "lengths"});
    const at::Tensor& ids = named_tensor(inputs, "input_ids", 2);
    if (ids.scalar_type() != at::kLong || ids.numel() == 0)
      invalid("tensor 'input_ids': int64 [B, L] expected");
    if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= encoder.config().vocabulary) {
      invalid("tensor 'input_ids': ids from 0 to " +
              std::to_string(encoder.config().vocabulary - 1) + " expected");
    }
    const int64_t L = ids.size(1);
    const std::vector<int64_t> lengths = lengths_of(inputs, "lengths", ids.size(0), L);
    const Segments rows(lengths);
    const at::Tensor packed = encoder.forward(pack_rows(ids, lengths), rows, runner);
    std::vector<at::Tensor> padded;
    for (int64_t s = 0; s < rows.count(); ++s) {
      padded.push_back(at::constant_pad_nd(packed.narrow(0, rows.offset(s), rows.length(s)),
                                           {0, 0, 0, L - rows.length(s)}));
    }
    return {{"hidden", at::stack(padded)}};
  }
  if (component == "vae") {
    const Vae& vae = loaded(vae_, component);
    allow_only(inputs, {"image", "latents"});
    if (inputs.contains("image") == inputs.contains("latents")) {
      invalid("tensors 'image' (to encode) and 'latents' (to decode): one of them is expected");
    }
    if (inputs.contains("latents")) {
      return {{"image", decode(named_tensor(inputs, "latents", 5), runner).select(2, 0)}};
    }
    const at::Tensor& image = named_tensor(inputs, "image", 4);
    const int64_t stride = vae.config().stride();
    if (image.size(1) != 3 || image.numel() == 0 || image.size(2) % stride != 0 ||
        image.size(3) % stride != 0) {
      invalid("tensor 'image': shape " + shape_text(image) + ", [B, 3, H, W] with multiples of " +
              std::to_string(stride) + " expected");
    }
    return {{"latents", vae.encode(image, runner).unsqueeze(2)}};
  }
  if (component == "dit") {
    allow_only(inputs, {"latents", "sigma", "prompt_embeds", "prompt_lengths"});
    const at::Tensor& embeds = named_tensor(inputs, "prompt_embeds", 3);
    const std::vector<int64_t> lengths =
        lengths_of(inputs, "prompt_lengths", embeds.size(0), embeds.size(1));
    std::vector<atelier::Conditioning> cond;
    for (size_t b = 0; b < lengths.size(); ++b) {
      cond.push_back(
          {{kPromptEmbeds, embeds.select(0, static_cast<int64_t>(b)).narrow(0, 0, lengths[b])}});
    }
    std::vector<const atelier::Conditioning*> pointers;
    for (const atelier::Conditioning& c : cond) pointers.push_back(&c);
    const at::Tensor latents =
        named_tensor(inputs, "latents", 5).to(loaded(dit_, component).dtype());
    return {{"velocity", denoise({latents, named_tensor(inputs, "sigma", 1), pointers}, runner)}};
  }
  invalid("component '" + std::string(component) + "' cannot be probed",
          "components with tensors are text_encoder, vae and dit");
}

std::vector<int64_t> QwenImage::tokenize(std::string_view text) const {
  return prompts().tokenizer().encode(text);
}

}  // namespace qwen_image
