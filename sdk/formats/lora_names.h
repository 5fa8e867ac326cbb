// What LoRA files call things, in every published spelling. Nothing else knows such a name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::formats {

// ---- Tensors ----

// What a tensor is of its layer's addition.
enum class LoraRole {
  kDown,
  kUp,
  kHada1Down,  // of LoHa: the first pair, and the second
  kHada1Up,
  kHada2Down,
  kHada2Up,
  kKron1,  // of LoKr: the left side, or its two factors
  kKron1Left,
  kKron1Right,
  kKron2,
  kKron2Left,
  kKron2Right,
  kDiff,       // of the weight itself
  kBiasDiff,   // of the bias
  kUpBias,     // of lora_B: of the bias, at the LoRA's scale
  kMagnitude,  // of DoRA
  kAlpha,
  kScale,  // what the product is multiplied by, in the place of an alpha
  kUnsupported,
  kUnknown
};

// What a tensor's name says: "transformer.a.b.lora_A.default.weight" is the kDown of
// "transformer.a.b".
struct LoraTensorName {
  std::string layer;  // as the file spells it, with its prefix, and dots for its "___lorahyphen___"
  LoraRole role = LoraRole::kUnknown;
  // kUp only: which of several that lie on a diagonal, from 0: "a.b.lora_up.blocks.0.weight".
  std::optional<int64_t> part = std::nullopt;
  std::string kind = {};  // kUnsupported only: what it is, "OFT"
};
LoraTensorName parse_lora_tensor(std::string_view name);

// Whether a file that holds a tensor of this name is a LoRA and no checkpoint.
bool is_lora_tensor(std::string_view name);

// What a tensor is called behind its layer's name and a dot where programs agree: "hada_w1_a",
// "diff_b", "alpha". kDown and kUp have many names: see LoraSpelling.
std::string_view lora_tensor_name(LoraRole role);

// ---- Layers ----

// A layer's name without the first of the prefixes that programs put before it, and what that
// prefix says. A path can have several: "base_model.model.transformer.blocks.0".
struct LoraLayerName {
  enum class Owner { kUnsaid, kDenoiser, kTextEncoder };
  Owner owner = Owner::kUnsaid;
  size_t text_encoder = 0;  // kTextEncoder only: which of the model's, from 0
  bool is_flat = false;     // underscores in `path` stand for dots
  std::string_view path;
};
// nullopt where the name begins with none of them.
std::optional<LoraLayerName> without_lora_prefix(std::string_view name);

// "lora_te2_" for text encoder 1: what kohya puts before its layers.
std::string kohya_text_prefix(size_t text_encoder);
// What the text encoders of published models are called, in their order.
std::span<const std::string_view> text_encoder_names();
// The components that files name by their names, "text_encoder.X", where no model says which there
// are.
std::span<const std::string_view> named_components();

// The name with underscores for dots.
std::string flat_lora_name(std::string_view name);

// ---- Files ----

// Names of one layer X with prefix P of the family ("transformer."):
//   diffusers  P X.lora_A.weight, P X.lora_B.weight; alpha in the metadata lora_adapter_metadata;
//              DoRA as P X.lora_magnitude_vector
//   comfy      diffusion_model.X.lora_A.weight, .lora_B.weight, .alpha
//   kohya      lora_unet_X_with_underscores.lora_down.weight, .lora_up.weight, .alpha
//   diffsynth  X.lora_A.default.weight, X.lora_B.default.weight; alpha is the rank (B is scaled)
// Layers of a component whose prefix is none, or its own name, are "text_encoder.X" in all of them,
// and in kohya lora_te_X: other components have no names there.
enum class LoraFormat { kDiffusers, kComfy, kKohya, kDiffsynth };

// How a format that files are written in names things.
struct LoraSpelling {
  // Where readers look for alpha: in the metadata, in a tensor of each layer, or nowhere: it is
  // multiplied into lora_B then.
  enum class Alpha { kMetadata, kTensor, kFolded };

  LoraFormat format;
  std::string_view name;
  std::string_view prefix = {};  // of a denoiser's layers
  std::string_view down, up;     // behind a layer's name
  Alpha alpha;
  bool has_family_prefix = false;   // where a family has a prefix of its own, that is used
  bool is_flat = false;             // underscores for dots
  bool has_all_forms = false;       // LoHa, LoKr, differences and biases have names, too
  std::string_view layers = {};     // the family's spelling that layers are named and cut in
  std::string_view magnitude = {};  // what DoRA's lengths are called, as a vector
  std::string_view warning = {};    // to be told before a file is written; empty for none
};
std::span<const LoraSpelling> lora_spellings();
const LoraSpelling& lora_spelling(LoraFormat format);

// The key of a file's metadata that names the component which its layers are of.
inline constexpr const char* kLoraComponentKey = "atelier.component";

}  // namespace atelier::formats
