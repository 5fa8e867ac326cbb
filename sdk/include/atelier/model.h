// One loaded model: the weights of a family's components, and the maths between them.
#pragma once

#include <compare>
#include <functional>
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
      16;                    // pixels per denoiser token along each side; the schedule counts these
  bool takes_clips = false;  // of more than one frame
  int64_t pixel_channels = 3;  // of what is decoded: 3, or 4 with transparency
};

// What is to be made: how many frames, and their size in pixels. An image has one frame.
struct MediaTarget {
  int64_t frames = 1, height = 0, width = 0;
  auto operator<=>(const MediaTarget&) const = default;
};

// What is made where the user does not say it.
struct MediaDefaults {
  MediaTarget target = {1, 1024, 1024};
  double fps = 0.0;  // of a clip, frames per second; 0: images
  // Frames are pictures of one result, such as layers, and each becomes a file of its own.
  bool frames_are_pictures = false;
};

// A part of a long clip that is made at a time: its frames, the first of which may be those that
// the piece before it ended with.
struct Piece {
  int64_t first = 0, frames = 0;  // of the whole clip
  int64_t shared = 0;             // how many of them the piece before it has, too
};

struct EncodeInputs {
  std::string_view stage;  // of ModelFamily::encode_stages()
  Inputs values;           // those that the stage reads and that are given, on the compute device
  MediaTarget target = {};
  // Frames per second of what is made, in training those that the variant is made for; 0: it has no
  // rate.
  double fps = 0.0;
  bool is_negative = false;  // "prompt" is the one that guidance moves away from
  // What a stage that runs for each piece is given: the piece, and its shared frames as they were
  // made before, float32 [channels, shared, H, W] in [-1, 1], on the compute device; undefined:
  // there are none. `target` has the frames of the piece, `values` what runs beside it.
  std::optional<Piece> piece = std::nullopt;
  at::Tensor before_CTHW = {};
};

struct DenoiseInputs {
  at::Tensor x_BCTHW;  // noisy latents, compute dtype and device
  at::Tensor sigma_B;  // float32 in [0, 1]: 1 is pure noise, 0 is clean
  // One per sample, on the compute device; lengths may differ.
  std::span<const Conditioning* const> cond;
  // Which of the levels given to Model::prepare_levels() sigma_B holds, the same for all samples;
  // none: another one.
  std::optional<int64_t> level = std::nullopt;
  std::string_view denoiser = "dit";  // the component that runs: its sigma range holds sigma_B
  // The level that the solver goes to from sigma_B, float32; none: no step is made, as in training.
  std::optional<at::Tensor> next_sigma_B = std::nullopt;
  // Which step of a run this is, from 0, and how many it has; 0 steps: there is no run, as in
  // training.
  int64_t step = 0, steps = 0;
};

// Latents that are known already: a first frame, the surroundings of a hole.
struct GivenLatents {
  at::Tensor values_CTHW;
  // 1 where latents are made, 0 where they are given; or [C, T, H, W]. Where it is another number,
  // above 0, they are made and count so much in the loss.
  at::Tensor free_1THW;
  bool is_noised = false;  // the denoiser sees them with the noise of its level, else clean
};

// What the two branches of guidance predict.
struct GuideInputs {
  at::Tensor with_BCTHW, without_BCTHW;  // the velocities with and without the prompt
  double scale = 1.0;
  DenoiseInputs step;  // the call that gave the one with the prompt
};

// A sound that is made beside a clip, and written into its file.
struct Sound {
  at::Tensor samples_CN;    // float32 [channels, samples] in [-1, 1]; undefined: there is none
  int64_t sample_rate = 0;  // samples per second
};

// What Model::decode() is given of finished latents.
struct FinishedLatents {
  at::Tensor latents_BCTHW;
  int64_t skipped_frames = 0;  // of what is decoded, at its beginning, that are no part of the clip
};

// Gets frames in order, as they are decoded: float32 [B, LatentSpec::pixel_channels, frames, H, W]
// in [-1, 1], on the compute device.
using FrameSink = std::function<void(const at::Tensor& pixels_BCTHW)>;

// How many tokens a text has for its encoder, and how many the encoder takes.
struct TextLength {
  int64_t tokens = 0;  // of the whole text, those that the family adds among them
  int64_t limit = 0;   // that are encoded at most
};

// Not thread-safe: one thread at a time calls a model. Tensors that it returns own their storage
// and may outlive it. Grad mode is the caller's. Every block is run through `runner`. What only
// answers, latent_spec(), target(), latent_shape(), pieces() and text_length(), may be called from
// several threads at once, also while another call runs.
class ATELIER_API Model {
 public:
  virtual ~Model();

  // The module behind a component; its weights are declared and, until the host has filled them,
  // not loaded. Throws Error{kNotFound} for a component that this model was made without.
  virtual nn::Module& component(std::string_view name) = 0;

  // The blocks of a component in running order; empty when it has none.
  virtual std::vector<Block*> blocks(std::string_view component) = 0;

  virtual LatentSpec latent_spec() const = 0;

  // What is made of these inputs. Whatever the user did not say is 0 in `asked`, and may stay so:
  // it is then what ModelFamily::media_defaults() says, or of a clip to start from. Images and
  // clips of `inputs` are meta tensors of the sizes that their files have. By default `asked`.
  virtual MediaTarget target(const Inputs& inputs, const MediaTarget& asked) const;

  // The latents of one sample, [C, T, H, W], that the denoiser is given with these conditions: what
  // the stages made of its inputs, or nothing where only the target is known yet. By default
  // latent_spec() cells of the target.
  virtual std::vector<int64_t> latent_shape(const MediaTarget& target,
                                            const Conditioning& cond) const;

  // What is decoded of latents that are finished: without what was denoised beside the clip, behind
  // what it follows on. By default the latents as they are.
  virtual FinishedLatents to_decode(const at::Tensor& latents_BCTHW,
                                    const Conditioning& cond) const;

  // The pieces that a clip is made in, one after the other, each with the memory of one. They begin
  // at frame 0, follow on each other and end at the target's last frame or behind it; frames behind
  // it are cut off. By default none: the clip is made at once.
  virtual std::vector<Piece> pieces(const Inputs& inputs, const MediaTarget& target) const;

  // Whether a control beside a denoiser, of which inputs are given, does anything in step `step` of
  // a run of `steps`, see DenoiseInputs::step. One that does nothing in any of them is neither
  // loaded nor planned, and inputs that are for nothing but such ones are left out before anything
  // is made of them. By default it does.
  virtual bool runs(std::string_view control, const Inputs& inputs, int64_t step,
                    int64_t steps) const;

  // Runs one stage of ModelFamily::encode_stages() on the inputs of one sample. The entries of all
  // stages together are what denoise() is given. The stage that reads the input of
  // InputRole::kTarget gives "latents" in the VAE's dtype. Throws Error{kInvalidArgument} when an
  // input that the stage cannot do without is missing, when an image has a size that does not fit,
  // or when a text has more tokens than text_length() allows; a model that
  // ModelOptions::cuts_texts was given for drops the tokens that are too many, where the published
  // pipeline does.
  virtual Conditioning encode(const EncodeInputs& in, BlockRunner& runner) = 0;

  // How many tokens encode() makes of the text of `in`, before any are dropped. Images may be
  // left out of in.values, and in.stage may be empty. Reads no weights. Throws
  // Error{kInvalidArgument} when an input is missing, and Error{kUnsupported} when the model was
  // made without a tokenizer.
  virtual TextLength text_length(const EncodeInputs& in) const = 0;

  // Predicts the velocity, noise - clean, at `in.sigma_B`. Families differ in sign and in time
  // scale; the difference ends here.
  //
  // Returns [B, C, T, H, W] in the dtype of in.x_BCTHW, with storage of its own.
  // Throws Error{kInvalidArgument} when the conditioning lacks an entry or H, W do not fit.
  virtual at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) = 0;

  // What denoise() gives of each of `calls`, each with storage of its own. Calls may differ in
  // everything but `denoiser` and the dtype of latents: in size, prompts, noise level and step. A
  // family that packs rows runs all samples through its blocks in one pass. Each result is that of
  // its call alone, within the rounding of its dtype; of one call to the bit. By default one call
  // after the other.
  virtual std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                              BlockRunner& runner);

  // Weights of a denoiser's blocks that only the noise level reaches. When levels are prepared,
  // they are drawn then and not by denoise(). By default none.
  virtual std::vector<WeightPtr> level_weights(std::string_view denoiser);

  // Computes ahead what depends on nothing but the noise level, once for each of `sigmas`, and
  // keeps it on the compute device until forget_levels(); denoise() uses it where
  // DenoiseInputs::level is set, to the same bits. Adapters that change in between make it stale.
  // By default nothing is kept.
  virtual void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                              BlockRunner& runner);
  virtual void forget_levels();

  // Combines the velocities with and without the prompt, and may call denoise() for what else
  // guides. By default without + scale * (with - without).
  virtual at::Tensor guide(const GuideInputs& in, BlockRunner& runner);

  // Latents [B, C, T, H, W] to pixels: `sink` gets all frames, in one call or several.
  virtual void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                      const FrameSink& sink) = 0;

  // The sound of a clip whose latents, [1, C, T, H, W] before to_decode(), are finished. It is
  // asked for before the frames, and not of clips that are made in pieces. By default there is
  // none.
  virtual Sound decode_sound(const at::Tensor& latents_1CTHW, const Conditioning& cond,
                             BlockRunner& runner);

  // What is known of latents of these sizes beforehand; sampler and loss leave it as it is. By
  // default nothing.
  virtual std::optional<GivenLatents> given(const Conditioning& cond,
                                            at::IntArrayRef latents_CTHW) const;

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
