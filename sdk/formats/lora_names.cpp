#include "formats/lora_names.h"

#include <algorithm>
#include <array>

namespace atelier::formats {

namespace {

struct Marker {
  std::string_view text;
  LoraRole role;
  std::string_view parameter = {};  // what stands for the layer's weight: ".modulation"
};
// What stands between a layer's name and ".weight", with an adapter's name between: ".default".
constexpr Marker kFactors[] = {
    {".lora_linear_layer.down", LoraRole::kDown},
    {".lora_linear_layer.up", LoraRole::kUp},
    {"_lora.down", LoraRole::kDown},
    {"_lora.up", LoraRole::kUp},
    {".lora.down", LoraRole::kDown},
    {".lora.up", LoraRole::kUp},
    {".lora_down", LoraRole::kDown},
    {".lora_up", LoraRole::kUp},
    {".lora_A", LoraRole::kDown},
    {".lora_B", LoraRole::kUp},
    {".hada_w1_b", LoraRole::kHada1Down},
    {".hada_w1_a", LoraRole::kHada1Up},
    {".hada_w2_b", LoraRole::kHada2Down},
    {".hada_w2_a", LoraRole::kHada2Up},
    {".lokr_w1", LoraRole::kKron1},
    {".lokr_w1_a", LoraRole::kKron1Left},
    {".lokr_w1_b", LoraRole::kKron1Right},
    {".lokr_w2", LoraRole::kKron2},
    {".lokr_w2_a", LoraRole::kKron2Left},
    {".lokr_w2_b", LoraRole::kKron2Right},
    {".dora_scale", LoraRole::kMagnitude},
    {".lora_magnitude_vector", LoraRole::kMagnitude},
};
// What a name ends with.
constexpr Marker kEnds[] = {
    {".alpha", LoraRole::kAlpha},
    {".alpha_scale", LoraRole::kScale},
    {".diff", LoraRole::kDiff},
    {".diff_b", LoraRole::kBiasDiff},
    {".w_norm", LoraRole::kDiff},
    {".b_norm", LoraRole::kBiasDiff},
    {".diff_m", LoraRole::kDiff, ".modulation"},
};

struct OtherForm {
  std::string_view text, kind;
};
// Additions that are not supported. The text stands behind a layer's name and a dot, and may be
// followed by a dot and more.
constexpr OtherForm kOtherForms[] = {
    {"hada_t1", "LoHa of a convolution"},
    {"hada_t2", "LoHa of a convolution"},
    {"lokr_t1", "LoKr of a convolution"},
    {"lokr_t2", "LoKr of a convolution"},
    {"lora_mid", "LoCon with a middle factor"},
    {"oft_diag", "OFT"},
    {"oft_blocks", "OFT"},
    {"set_weight", "a replaced weight (.set_weight)"},
    {"reshape_weight", "a reshaped weight (.reshape_weight)"},
};

using Owner = LoraLayerName::Owner;

struct Prefix {
  std::string_view text;
  Owner owner;
  bool is_flat = false;
  size_t text_encoder = 0;
};
// The longer of two that begin alike comes first.
constexpr Prefix kPrefixes[] = {
    {"base_model.model.", Owner::kUnsaid},
    {"transformer.", Owner::kDenoiser},
    {"model.diffusion_model.", Owner::kDenoiser},
    {"diffusion_model.", Owner::kDenoiser},
    {"unet.", Owner::kDenoiser},
    {"pipe.dit.", Owner::kDenoiser},
    {"dit.", Owner::kDenoiser},
    {"lora_unet__", Owner::kDenoiser, /*is_flat=*/true},
    {"lora_unet_", Owner::kDenoiser, /*is_flat=*/true},
    {"lora_transformer_", Owner::kDenoiser, /*is_flat=*/true},
    {"lycoris_", Owner::kDenoiser, /*is_flat=*/true},
    {"lora_te_", Owner::kTextEncoder, /*is_flat=*/true, 0},
    {"lora_te1_", Owner::kTextEncoder, /*is_flat=*/true, 0},
    {"lora_te2_", Owner::kTextEncoder, /*is_flat=*/true, 1},
    {"lora_te3_", Owner::kTextEncoder, /*is_flat=*/true, 2},
};

constexpr std::array<std::string_view, 5> kComponents = {"text_encoder", "text_encoder_2",
                                                         "text_encoder_3", "transformer_2", "vae"};
constexpr size_t kTextEncoders = 3;  // of them

constexpr LoraSpelling kSpellings[] = {
    {.format = LoraFormat::kDiffusers,
     .name = "diffusers",
     .prefix = "transformer.",
     .down = ".lora_A.weight",
     .up = ".lora_B.weight",
     .alpha = LoraSpelling::Alpha::kMetadata,
     .has_family_prefix = true,
     .layers = "diffusers",
     .magnitude = "lora_magnitude_vector"},
    {.format = LoraFormat::kComfy,
     .name = "comfy",
     .prefix = "diffusion_model.",
     .down = ".lora_A.weight",
     .up = ".lora_B.weight",
     .alpha = LoraSpelling::Alpha::kTensor,
     .has_all_forms = true,
     .layers = "original"},
    {.format = LoraFormat::kKohya,
     .name = "kohya",
     .prefix = "lora_unet_",
     .down = ".lora_down.weight",
     .up = ".lora_up.weight",
     .alpha = LoraSpelling::Alpha::kTensor,
     .is_flat = true,
     .has_all_forms = true,
     .layers = "original"},
    {.format = LoraFormat::kDiffsynth,
     .name = "diffsynth",
     .down = ".lora_A.default.weight",
     .up = ".lora_B.default.weight",
     .alpha = LoraSpelling::Alpha::kFolded,
     .layers = "original",
     .warning = "--lora_format diffsynth: DiffSynth-Studio reads it for models that it has; most "
                "pipelines of diffusers load such a file and change nothing (docs/lora.md says "
                "which)"},
};

// Where the last dots of a name are, the last one first. A factor's marker holds one of them, so
// that no long name is searched from end to end for each marker.
class LastDots {
 public:
  explicit LastDots(std::string_view name) : name_(name) {
    for (size_t at = name.size(); num_dots_ < places_.size() && at > 0;) {
      at = name.rfind('.', at - 1);
      if (at == std::string_view::npos) break;
      places_[num_dots_++] = at;
    }
  }

  // Where `text`, which holds a dot, begins for the last time; npos: at none of the dots.
  size_t find(std::string_view text) const {
    const size_t before_dot = text.find('.');
    for (size_t i = 0; i < num_dots_; ++i) {
      if (places_[i] < before_dot) break;
      const size_t at = places_[i] - before_dot;
      if (name_.substr(at).starts_with(text)) return at;
    }
    return std::string_view::npos;
  }

 private:
  std::string_view name_;
  std::array<size_t, 5> places_ = {};  // of ".lora_linear_layer.down.default.weight", and one more
  size_t num_dots_ = 0;
};

// What some published files have for dots, and in front of all names.
constexpr std::string_view kHyphen = "___lorahyphen___", kHyphenPrefix = "lora___lorahyphen___";

std::string without_hyphens(std::string_view name) {
  name.remove_prefix(kHyphenPrefix.size());
  std::string dotted;
  for (size_t at = name.find(kHyphen); at != std::string_view::npos; at = name.find(kHyphen)) {
    dotted.append(name.substr(0, at)).append(".");
    name.remove_prefix(at + kHyphen.size());
  }
  return dotted.append(name);
}

// "" | ".NAME", before ".weight" or the end: what may follow a factor's marker.
bool is_adapter_name(std::string_view text) {
  return text.empty() ||
         (text.size() > 1 && text.front() == '.' && text.find('.', 1) == std::string_view::npos);
}

// 2 of ".blocks.2".
std::optional<int64_t> part_named(std::string_view text) {
  constexpr std::string_view kBlocks = ".blocks.";
  constexpr size_t kMaxDigits = 3;
  if (!text.starts_with(kBlocks)) return std::nullopt;
  text.remove_prefix(kBlocks.size());
  if (text.empty() || text.size() > kMaxDigits ||
      text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  int64_t number = 0;
  for (const char digit : text) number = 10 * number + (digit - '0');
  return number;
}

// "lora_B.bias" and "lora_B.default.bias": nullopt for another name.
std::optional<LoraTensorName> factor_named(std::string_view name, const LastDots& dots,
                                           const Marker& marker) {
  const size_t at = dots.find(marker.text);
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  constexpr std::string_view kWeight = ".weight", kBias = ".bias";
  std::string_view rest = name.substr(at + marker.text.size());
  const bool is_bias = rest.ends_with(kBias);
  if (is_bias) {
    rest.remove_suffix(kBias.size());
  } else if (rest.ends_with(kWeight)) {
    rest.remove_suffix(kWeight.size());
  }
  const std::string layer(name.substr(0, at));
  const auto part = part_named(rest);
  if (part && marker.role == LoraRole::kUp && !is_bias)
    return LoraTensorName{.layer = layer, .role = marker.role, .part = part};
  if (!is_adapter_name(rest)) return std::nullopt;
  if (!is_bias) return LoraTensorName{layer, marker.role};
  if (marker.role == LoraRole::kUp) return LoraTensorName{layer, LoraRole::kUpBias};
  return LoraTensorName{
      .layer = layer, .role = LoraRole::kUnsupported, .kind = "a bias within a LoRA"};
}

// Looks at each part of a name between two dots once, the last one first: any number of them may
// follow the form, and the time grows with the name's length alone.
std::optional<LoraTensorName> other_form_named(std::string_view name) {
  size_t end = name.size();
  while (end > 0) {
    const size_t dot = name.rfind('.', end - 1);
    if (dot == std::string_view::npos || dot == 0) break;  // there is no layer before it
    const std::string_view part = name.substr(dot + 1, end - dot - 1);
    const auto form = std::ranges::find(kOtherForms, part, &OtherForm::text);
    if (form != std::end(kOtherForms))
      return LoraTensorName{.layer = std::string(name.substr(0, dot)),
                            .role = LoraRole::kUnsupported,
                            .kind = std::string(form->kind)};
    end = dot;
  }
  return std::nullopt;
}

}  // namespace

LoraTensorName parse_lora_tensor(std::string_view name) {
  if (name.starts_with(kHyphenPrefix)) return parse_lora_tensor(without_hyphens(name));
  for (const Marker& marker : kEnds) {
    if (name.size() <= marker.text.size() || !name.ends_with(marker.text)) continue;
    std::string layer(name.substr(0, name.size() - marker.text.size()));
    return {layer.append(marker.parameter), marker.role};
  }
  const LastDots dots(name);
  for (const Marker& marker : kFactors) {
    if (auto found = factor_named(name, dots, marker)) return *std::move(found);
  }
  if (auto found = other_form_named(name)) return *std::move(found);
  return {std::string(name)};
}

bool is_lora_tensor(std::string_view name) {
  const auto prefix = without_lora_prefix(name);
  if (prefix && prefix->is_flat) return true;
  const LoraRole role = parse_lora_tensor(name).role;
  return role != LoraRole::kUnknown && role != LoraRole::kAlpha && role != LoraRole::kScale &&
         role != LoraRole::kDiff && role != LoraRole::kBiasDiff;
}

std::string_view lora_tensor_name(LoraRole role) {
  const auto name_in = [&](std::span<const Marker> markers) -> std::string_view {
    const auto found = std::ranges::find(markers, role, &Marker::role);
    return found == markers.end() ? std::string_view() : found->text.substr(1);
  };
  const std::string_view name = name_in(kFactors);
  return name.empty() ? name_in(kEnds) : name;
}

std::optional<LoraLayerName> without_lora_prefix(std::string_view name) {
  for (const Prefix& prefix : kPrefixes) {
    if (name.starts_with(prefix.text))
      return LoraLayerName{prefix.owner, prefix.text_encoder, prefix.is_flat,
                           name.substr(prefix.text.size())};
  }
  return std::nullopt;
}

std::string kohya_text_prefix(size_t text_encoder) {
  const auto found = std::ranges::find_if(kPrefixes, [&](const Prefix& prefix) {
    return prefix.owner == Owner::kTextEncoder && prefix.text_encoder == text_encoder;
  });
  return found == std::end(kPrefixes) ? std::string() : std::string(found->text);
}

std::span<const std::string_view> text_encoder_names() {
  return std::span(kComponents).first(kTextEncoders);
}

std::span<const std::string_view> named_components() {
  return kComponents;
}

std::string flat_lora_name(std::string_view name) {
  std::string flat(name);
  std::ranges::replace(flat, '.', '_');
  return flat;
}

std::span<const LoraSpelling> lora_spellings() {
  return kSpellings;
}

const LoraSpelling& lora_spelling(LoraFormat format) {
  return *std::ranges::find(kSpellings, format, &LoraSpelling::format);
}

}  // namespace atelier::formats
