// One loaded model: the weights of a family's components, and the maths between them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atelier/block.h"
#include "atelier/conditioning.h"
#include "atelier/input.h"

namespace atelier {

// Shape letters used in this SDK: B batch, C latent channels, T latent frames (1 for images), H and
// W latent height and width, L tokens, D model width.

struct LatentSpec {
  int64_t channels = 16;        // C
  int64_t spatial_stride = 8;   // pixels per latent cell
  int64_t temporal_stride = 1;  // frames per latent frame after the first
  int64_t pixel_multiple = 16;  // height and width in pixels are multiples of this
  int64_t token_stride =
      16;  // pixels per denoiser token along each side; the schedule counts these
};

struct DenoiseInputs {
  at::Tensor x_BCTHW;  // noisy latents, compute dtype and device
  at::Tensor sigma_B;  // float32 in [0, 1]: 1 is pure noise, 0 is clean
  // One per sample, on the compute device; lengths may differ.
  std::span<const Conditioning* const> cond;
  // Which of the levels given to Model::prepare_levels() sigma_B holds, the same for all samples;
  // none: another one.
  std::optional<int64_t> level = std::nullopt;
};

// What the loss of one training sample compares the prediction with.
struct LossInputs {
  at::Tensor clean_CTHW;                  // latents to learn
  std::optional<at::Tensor> mask_CTHW;    // 1 where the loss counts; none: everywhere
  std::optional<at::Tensor> pinned_CTHW;  // replaces the noisy latents where the mask is 0
};

// How long a text is to the encoder.
struct TextLength {
  int64_t tokens = 0;  // of the whole text, those that the family adds among them
  int64_t limit = 0;   // that are encoded at most
};

// Not thread-safe: one thread at a time calls a model. Tensors that it returns own their storage
// and may outlive it. Grad mode is the caller's. Every block is run through `runner`. text_length()
// alone may be called from several threads at once.
class ATELIER_API Model {
 public:
  virtual ~Model();

  // The module behind a component; its weights are declared and, until the host has filled them,
  // not loaded. Throws Error{kNotFound} for a component that this model was made without.
  virtual nn::Module& component(std::string_view name) = 0;

  // The blocks of a component in running order; empty when it has none.
  virtual std::vector<Block*> blocks(std::string_view component) = 0;

  virtual LatentSpec latent_spec() const = 0;

  // Encodes the prompt of one sample: inputs "prompt" and whatever else the family's text encoder
  // reads. Phase encode. Throws Error{kInvalidArgument} when an input is missing, or when there are
  // more tokens than text_length() allows; a model that ModelOptions::cuts_texts was given for
  // drops the tokens that are too many, where the published pipeline does.
  virtual Conditioning encode_text(const Inputs& inputs, BlockRunner& runner) = 0;

  // How many tokens encode_text() makes of `inputs`, of which pictures may be left out, before any
  // are dropped. Reads no weights. Throws Error{kInvalidArgument} when an input is missing, and
  // Error{kUnsupported} when the model was made without a tokenizer.
  virtual TextLength text_length(const Inputs& inputs) const = 0;

  // Encodes one picture, float32 [3, T, H, W] in [-1, 1], into clean latents [C, T', H', W'], in
  // the VAE's dtype. Phase encode. Throws Error{kInvalidArgument} when H, W are no multiples of the
  // spatial stride.
  virtual at::Tensor encode_media(const at::Tensor& pixels, BlockRunner& runner) = 0;

  // Predicts the velocity, noise - clean, at `in.sigma_B`. Families differ in sign and in time
  // scale; the difference ends here. Phase denoise.
  //
  // Returns [B, C, T, H, W] in the dtype of in.x_BCTHW, with storage of its own.
  // Throws Error{kInvalidArgument} when the conditioning lacks an entry or H, W do not fit.
  virtual at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) = 0;

  // Weights of the denoiser's blocks that only the noise level reaches. When levels are prepared,
  // they are drawn then and not by denoise(). By default none.
  virtual std::vector<WeightPtr> level_weights();

  // Computes ahead what depends on nothing but the noise level, once for each of `sigmas`, and
  // keeps it on the compute device until forget_levels(); denoise() uses it where
  // DenoiseInputs::level is set, to the same bits. Adapters that change in between make it stale.
  // By default nothing is kept.
  virtual void prepare_levels(std::span<const float> sigmas, BlockRunner& runner);
  virtual void forget_levels();

  // Combines the velocities with and without the prompt. By default without + scale * (with -
  // without).
  virtual at::Tensor guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                           double scale) const;

  // Latents [B, C, T, H, W] to pixels, float32 [B, 3, T', H', W'] in [-1, 1]. Phase decode.
  virtual at::Tensor decode(const at::Tensor& latents_BCTHW, BlockRunner& runner) = 0;

  // By default: clean is cond["latents"], and the loss counts everywhere.
  virtual LossInputs loss_inputs(const Conditioning& cond) const;

  // Runs one component on named tensors and names what it gives: how numerics are compared with
  // other implementations. Names and shapes are documented in the plugin's README. Differentiable
  // in its floating inputs. Throws Error{kInvalidArgument} naming the tensors that are missing or
  // not known.
  virtual NamedTensors probe(std::string_view component, const NamedTensors& inputs,
                             BlockRunner& runner) = 0;

  // Token ids of `text` as the family's tokenizer gives them, without template.
  // Throws Error{kUnsupported} when the model was made without a tokenizer.
  virtual std::vector<int64_t> tokenize(std::string_view text) const = 0;
};

}  // namespace atelier
