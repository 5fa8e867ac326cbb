// CLIP: the model that reads texts, and the one that looks at images.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/config_fields.h"
#include "atelier/parts/brief_detection.h"

namespace atelier::parts {

// ---- Texts ----

// The defaults are those of ViT-L/14.
struct ClipTextConfig {
  int64_t layers = 12, width = 768, heads = 12, mlp_width = 3072, vocabulary = 49408;
  int64_t positions = 77;  // tokens of a text, at most
  double eps = 1e-5;
  bool quick_gelu = true;  // x * sigmoid(1.702 x) instead of GELU
  // The first token of this id is the one that is pooled; 2, as old configs say it: that of the
  // largest id.
  int64_t end_token = 2;
  // What is given, side by side, as transformers counts `hidden_states`: 0 is in front of the first
  // layer, -1 behind the last one, -2 in front of it.
  std::vector<int64_t> states = {-1};
  bool norms_states = true;  // the last norm follows each of them
  bool pools = false;        // the row of the end token is given, too, behind the last norm
  int64_t projection = 0;    // width to which that row is projected; 0: it is not

  int64_t layers_before(int64_t state) const { return state < 0 ? layers + 1 + state : state; }
  int64_t layers_run() const;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("vocabulary", vocabulary);
    fields("positions", positions), fields("eps", eps), fields("quick_gelu", quick_gelu);
    fields("end_token", end_token), fields("states", states);
    fields("norms_states", norms_states), fields("pools", pools), fields("projection", projection);
  }
};

enum class ClipPooling { kNone, kPlain, kProjected };

// Which of CLIP's text models a family reads prompts with, and what of it.
struct ClipTextUse {
  std::span<const int64_t> states;  // see ClipTextConfig
  bool norms_states = true;
  ClipPooling pooling = ClipPooling::kNone;
  std::string_view component = "text_encoder";
  // What stands before its names in a single file of all components.
  std::string_view bundle_prefix = "text_encoders.clip_l.transformer.";
};

// Says whether a checkpoint holds such a model. Its variant is left empty. Without a config it has
// the numbers of ViT-L/14, ViT-H/14 or ViT-bigG/14, by its widths. Spellings: "transformers"
// (text_model.encoder.layers.0.…) and "transformers_bare" (encoder.layers.0.…), behind no prefix,
// the component's name or that of a bundle. Throws Error{kInvalidArgument} when shapes and
// config.json contradict each other, Error{kNotFound} when a projection is used and missing, and
// Error{kUnsupported} for quantised files.
std::optional<Detection> detect_clip_text(const TensorIndex& checkpoint, const ClipTextUse& use);

// See ModelFamily.
ConfigFields clip_text_fields(const Detection& part);
WeightMap clip_text_map(const Detection& part);

// A small one for tests, whose numbers shapes alone do not tell: its files have a config.
Detection tiny_clip_text(const ClipTextUse& use);

class EncoderLayer;

// Weights are called as transformers calls them, without "text_model.".
class ClipText final : public TextEncoder {
 public:
  explicit ClipText(const ClipTextConfig& config);
  ~ClipText() override;

  struct Encoded {
    at::Tensor states_ND;  // [N, width()]
    at::Tensor pooled_SD;  // a row for each sample; undefined: none is given
  };
  // ids: int64 [N], samples packed by `rows`. Throws Error{kInvalidArgument} for a longer sample
  // than there are positions.
  Encoded encode(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner);

  // The states alone.
  at::Tensor forward(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner) override;

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width * std::ssize(config_.states); }
  // The width of a pooled row.
  int64_t pooled_width() const { return config_.projection ? config_.projection : config_.width; }

 private:
  at::Tensor embedded(const at::Tensor& ids_N, const Segments& rows) const;
  at::Tensor pooled(const at::Tensor& last_ND, const at::Tensor& ids_N, const Segments& rows) const;

  ClipTextConfig config_;
  nn::Embedding token_embedding_;
  WeightPtr position_embedding_;
  std::vector<std::unique_ptr<EncoderLayer>> layers_;
  std::unique_ptr<nn::LayerNorm> norm_;     // null: no state is behind it
  std::unique_ptr<nn::Linear> projection_;  // null: there is none
};

// The row of a family that reads prompts with it. `use` is static.
template <const ClipTextUse& use>
constexpr ComponentRow clip_text_row(std::string_view help,
                                     std::string_view tokenizer = "tokenizer") {
  return {.spec = {.name = use.component, .role = Role::kTextEncoder, .help = help},
          .detect = [](const TensorIndex& in) { return detect_clip_text(in, use); },
          .config_fields = clip_text_fields,
          .weight_map = clip_text_map,
          .make = make_part<ClipText, ClipTextConfig>,
          .tiny = [] { return tiny_clip_text(use); },
          .spellings = {"transformers", "transformers_bare"},
          .tokenizer = tokenizer};
}

// ---- Images ----

// The defaults are those of ViT-H/14, for what shapes do not tell.
struct ClipVisionConfig {
  int64_t layers = 32;  // as published; those are run that the states need
  int64_t width = 1280, heads = 16, mlp_width = 5120;
  int64_t patch = 14;  // pixels along each side
  int64_t rows = 257;  // a class and the patches of a square
  double eps = 1e-5;
  bool has_batch_axes = false;  // class and positions have axes of length 1 in front
  bool quick_gelu = false;      // x * sigmoid(1.702 x) instead of GELU
  // What is given, side by side, as transformers counts `hidden_states`: -2 is in front of the last
  // layer, and no norm follows.
  std::vector<int64_t> states = {-2};

  static constexpr std::array<const char*, 2> kLater = {"quick_gelu", "states"};

  int64_t layers_before(int64_t state) const { return state < 0 ? layers + 1 + state : state; }
  int64_t layers_run() const;
  // Pixels along each side of an image.
  int64_t image_side() const;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("patch", patch), fields("rows", rows);
    fields("eps", eps), fields("has_batch_axes", has_batch_axes);
    fields("quick_gelu", quick_gelu), fields("states", states);
  }
};

// Which of CLIP's vision models a family looks at images with, and what of it.
struct ClipVisionUse {
  // What its `hidden_act` may be: "gelu", "quick_gelu". A config without one means the latter.
  std::span<const std::string_view> activations;
  std::span<const int64_t> states;  // see ClipVisionConfig
  std::string_view component = "image_encoder";
};

// Says whether a checkpoint holds such a model. Its variant is left empty. Without a config it has
// the numbers of ViT-H/14, ViT-L/14 or ViT-bigG/14, by its widths. Spellings: "original"
// (visual.transformer.0.attn.to_qkv.weight, beside a text tower that is not used), "transformers"
// (vision_model.encoder.layers.0.…) and "transformers_bare" (encoder.layers.0.…). Throws
// Error{kInvalidArgument} when shapes and config.json contradict each other, and
// Error{kUnsupported} for quantised files.
std::optional<Detection> detect_clip_vision(const TensorIndex& checkpoint,
                                            const ClipVisionUse& use);

// See ModelFamily.
ConfigFields clip_vision_fields(const Detection& part, const ClipVisionUse& use);
WeightMap clip_vision_map(const Detection& part);

// A small one for tests, of images of 28 pixels.
Detection tiny_clip_vision(const ClipVisionUse& use);

class ClipVisionBlock;

// Weights are called as the original checkpoint calls them, without "visual.".
class ClipVision final : public nn::Module {
 public:
  explicit ClipVision(const ClipVisionConfig& config);
  ~ClipVision() override;

  // image: RGB [3, H, W] in [-1, 1], of any size: it is scaled until its shorter side fits, and the
  // middle is cut out. Returns [rows(), width()] in compute dtype.
  at::Tensor forward(const at::Tensor& image, BlockRunner& runner) const;
  // pixels: RGB [3, side(), side()] in [-1, 1], which are looked at as they are.
  at::Tensor look(const at::Tensor& pixels, BlockRunner& runner) const;

  int64_t side() const { return config_.image_side(); }
  int64_t rows() const { return config_.rows; }
  int64_t width() const { return config_.width * std::ssize(config_.states); }

 private:
  at::Tensor look_at(const at::Tensor& levels, BlockRunner& runner) const;

  ClipVisionConfig config_;
  WeightPtr cls_embedding_, pos_embedding_, patch_embedding_;
  nn::LayerNorm pre_norm_;
  std::vector<std::unique_ptr<ClipVisionBlock>> blocks_;
};

// The row of a family that looks at images with it. `use` is static. A component that only some
// variants have is not required, and has no tiny part.
template <const ClipVisionUse& use>
constexpr ComponentRow clip_vision_row(std::string_view help, bool required = true,
                                       std::string_view variants = "*") {
  return {.spec = {.name = use.component,
                   .role = Role::kImageEncoder,
                   .required = required,
                   .help = help,
                   .variants = variants},
          .detect = [](const TensorIndex& in) { return detect_clip_vision(in, use); },
          .config_fields = [](const Detection& part) { return clip_vision_fields(part, use); },
          .weight_map = clip_vision_map,
          .make = make_brief_part<ClipVision, ClipVisionConfig>,
          .tiny = required ? +[] { return tiny_clip_vision(use); } : nullptr};
}

}  // namespace atelier::parts
