// The frame of a family's model: it owns the components and runs those that are what components
// usually are.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/component_family.h"
#include "atelier/nn/level_rows.h"
#include "atelier/segments.h"
#include "atelier/text/tokenizer.h"

namespace atelier {

// ---- What components usually are ----

// A model that reads texts.
class ATELIER_API TextEncoder : public nn::Module {
 public:
  using nn::Module::Module;
  ~TextEncoder() override;

  // ids: int64 [N], samples packed by `rows`. Returns [N, width()] in compute dtype.
  virtual at::Tensor forward(const at::Tensor& ids_N, const Segments& rows,
                             BlockRunner& runner) = 0;

  virtual int64_t vocabulary() const = 0;  // ids are below it
  virtual int64_t width() const = 0;
};

// Images and clips to latents and back. An image is a clip of one frame.
class ATELIER_API Autoencoder : public nn::Module {
 public:
  using nn::Module::Module;
  ~Autoencoder() override;

  // pixels_BCTHW: pixel_channels() values in [-1, 1] of any dtype, RGB first; H and W are multiples
  // of spatial_stride(). Returns
  // clean latents as the denoiser takes them, in the weights' dtype.
  virtual at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const = 0;

  // latents_BCTHW: as encode() gives them. `sink` gets float32 in [-1, 1].
  virtual void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                      const FrameSink& sink) const = 0;

  virtual int64_t channels() const = 0;        // of the latents
  virtual int64_t spatial_stride() const = 0;  // pixels per latent cell
  virtual int64_t pixel_channels() const;      // by default 3; 4 with transparency
};

// The usual name of what a text encoder gives.
inline constexpr const char* kPromptEmbeds = "prompt_embeds";

// An entry of the conditionings that a denoiser reads.
struct ConditioningEntry {
  std::string_view name = kPromptEmbeds;
  // Each sample has rows of its own number, [L, width]. 0: a tensor of any shape, which may be
  // absent.
  int64_t width = 0;
  // For an entry of rows: in Model::probe(), where they are padded to [B, L, width], the tensor
  // that says how many count; and the text encoder that gives them, or none.
  std::string_view lengths = "prompt_lengths", encoder = "text_encoder";
};

// Predicts velocities.
class ATELIER_API Denoiser : public nn::Module {
 public:
  using nn::Module::Module;
  ~Denoiser() override;

  // See Model::denoise. The model has checked `in` against the functions below, and in.sigma_B is
  // float32.
  virtual at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) = 0;

  virtual int64_t channels() const = 0;  // of the latents
  virtual int64_t patch() const = 0;     // latent cells per token along height and width
  virtual at::ScalarType dtype() const = 0;
  virtual std::vector<ConditioningEntry> entries() const = 0;

  // What is computed ahead for a schedule; by default nothing is, and this is null.
  virtual nn::NoiseLevels* levels();
};

// A denoiser that runs several calls as one derives from this, too.
class ATELIER_API PacksCalls {
 public:
  virtual ~PacksCalls();
  // See Model::denoise_all. The model has checked each call as for Denoiser::denoise(), which gives
  // what this one gives of the one call; there is at least one.
  virtual std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                              BlockRunner& runner) = 0;
};

// What the samples of several calls have, one call after the other.
struct CallSamples {
  at::Tensor sigma_B;
  std::vector<const Conditioning*> cond;
  std::vector<std::optional<int64_t>> levels;  // see NoiseLevels::step()
};
ATELIER_API CallSamples samples_of(std::span<const DenoiseInputs> calls);

// ---- The model ----

// A model made of rows of the family's table. It encodes, denoises, decodes and probes with
// whatever it has of TextEncoder, Autoencoder and Denoiser, the first of each in the order of the
// table. A family adds how its inputs become a Conditioning, and overrides what it does in another
// way. Blocks are those below a component, in order of declaration.
class ATELIER_API ComponentModel : public Model {
 public:
  // `rows`: those of the family. `latents`: as published, for what no loaded component says. Throws
  // Error{kInvalidArgument} when two parts are one component, when there is no such component, and
  // when parts do not belong together: latent channels, widths of texts, the tokenizer's size; and
  // Error{kEnvironment} when the pixel_multiple of `latents` is no multiple of its spatial_stride.
  ComponentModel(std::span<const ComponentRow> rows, std::span<const Detection> parts,
                 const ModelOptions& options, const LatentSpec& latents = {});
  ~ComponentModel() override;

  nn::Module& component(std::string_view name) override;
  std::vector<Block*> blocks(std::string_view component) override;
  LatentSpec latent_spec() const override;

  // Throws Error{kUnsupported} for clips in a family of still images.
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner, const FrameSink& sink) override;

  // Checks latents, noise levels and conditionings, then runs the component in.denoiser.
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override;
  // One pass where the component packs calls (see PacksCalls). A family that overrides denoise()
  // for such a component overrides this as well. Throws Error{kInvalidArgument} where calls name
  // several components.
  std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                      BlockRunner& runner) override;

  std::vector<WeightPtr> level_weights(std::string_view denoiser) override;
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      BlockRunner& runner) override;
  void forget_levels() override;

  // A text encoder: "input_ids" [B, L] and "lengths" to "hidden". An autoencoder: "image"
  // [B, 3, H, W] or "clip" [B, 3, T, H, W], of pixel_channels(), to "latents" [B, C, T', H', W'],
  // or back. A denoiser: "latents", "sigma" and its entries, rows padded and with their lengths, to
  // "velocity".
  NamedTensors probe(std::string_view component, const NamedTensors& inputs,
                     BlockRunner& runner) override;

  std::vector<int64_t> tokenize(std::string_view text) const override;

 protected:
  // Returns a component as its own class. Throws Error{kNotFound} when it is not loaded.
  template <class Part>
  Part& loaded(std::string_view name) {
    return dynamic_cast<Part&>(component(name));
  }

  bool has_tokenizer(std::string_view name = "tokenizer") const;
  // Throws Error{kUnsupported} when it was not given.
  const text::Tokenizer& tokenizer(std::string_view name = "tokenizer") const;

  // Drops the last of `ids` when the text is longer than the encoder takes and texts are cut;
  // otherwise throws Error{kInvalidArgument}. `note` follows the number of tokens in the message.
  // An end token that was appended before is dropped with them: put it back as the last one.
  void cut_to_limit(std::vector<int64_t>& ids, const TextLength& length,
                    std::string_view note = {}) const;

  // Runs a text encoder on the tokens of one text: [L, width].
  at::Tensor encode_ids(std::string_view encoder, const std::vector<int64_t>& ids,
                        BlockRunner& runner);

  // "latents" of input `name`, an image or a clip, as the stage of InputRole::kTarget gives them. A
  // list of images gives one latent frame for each: [C, N, H, W].
  // Throws Error{kUnsupported} for clips in a family of still images.
  Conditioning encode_latents(const Inputs& inputs, std::string_view name, BlockRunner& runner);

 private:
  struct Component {
    std::string name;
    std::unique_ptr<nn::Module> module;  // null: not loaded
    std::vector<Block*> blocks;
  };

  Component* find(std::string_view name);
  template <class Part>
  std::vector<Part*> all() const;
  template <class Part>
  Part& first(const char* what) const;
  void check_parts();
  void load_tokenizer(const ComponentRow& row, const ModelOptions& options);
  void check_latents(const at::Tensor& latents_BCTHW, int64_t channels, int64_t patch) const;
  // `in` as the denoiser takes it.
  DenoiseInputs checked(const Denoiser& denoiser, const DenoiseInputs& in) const;
  at::Tensor run(Denoiser& denoiser, const DenoiseInputs& in, BlockRunner& runner) const;
  NamedTensors probe_media(Autoencoder& autoencoder, const NamedTensors& inputs,
                           BlockRunner& runner) const;
  NamedTensors probe_denoiser(Denoiser& denoiser, const NamedTensors& inputs,
                              BlockRunner& runner) const;

  LatentSpec latents_;
  bool cuts_texts_;
  std::vector<Component> components_;  // all that the family has with tensors, in its order
  std::map<std::string_view, std::shared_ptr<const text::Tokenizer>> tokenizers_;
};

}  // namespace atelier
