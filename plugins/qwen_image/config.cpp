#include "config.h"

#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/causal_vae.h"
#include "atelier/parts/language_model.h"

namespace qwen_image {

using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::refuse_kind;
using atelier::TensorIndex;
using std::to_string;

namespace {

constexpr const char* kPublishedOnly =
    "checkpoints of Qwen-Image, Qwen-Image-2512, -Edit and -Layered are loaded so far";

bool says_clean_references(const PartView& view) {
  return view.contains(kCleanMark) || view.index().contains(kCleanMark) ||
         view.index().config_flag("zero_cond_t").value_or(false);
}

DitConfig read_dit(const PartView& view) {
  DitConfig c = read_blocks(view);
  const int64_t out = view.dim("proj_out.weight", 0);
  if (out != c.channels * kPatch * kPatch) {
    refuse_kind("a Qwen-Image DiT with " + to_string(c.channels * kPatch * kPatch) + " input and " +
                    to_string(out) + " output channels",
                kPublishedOnly);
  }
  c.clean_references = says_clean_references(view);
  c.layered = view.contains(std::string(kAddedTime) + ".weight");
  return c;
}

// Which layers look back a window only. What is not said is as transformers has it.
void read_windows(const PartView& view, const std::string& home, TextEncoderConfig& c) {
  const TensorIndex& index = view.index();
  const std::string flag = home + "use_sliding_window", window = home + "sliding_window";
  const bool is_used =
      !index.has_null(flag) && index.config_flag(flag).value_or(false) && !index.has_null(window);
  c.window = is_used ? index.config_integer(window).value_or(4096) : 0;
  const int64_t first =
      is_used ? index.config_integer(home + "max_window_layers").value_or(80) : c.layers;
  for (int64_t i = 0; i < c.layers; ++i) c.windowed.push_back(i >= first);
  if (const auto listed = view.layer_windows(home + "layer_types", c.layers)) c.windowed = *listed;
  const bool any = std::find(c.windowed.begin(), c.windowed.end(), true) != c.windowed.end();
  if (first < 0 || c.window < 0 || (any && c.window == 0)) {
    view.refuse("has " + to_string(c.layers) + " layers, which " + home + "layer_types or " +
                    window + " in its config does not fit",
                kOwnConfig);
  }
}

// The published 64 pairs of channels: 16 turn with the time, 24 with row and column each.
std::array<int64_t, 3> usual_sections(int64_t head_dim) {
  const int64_t pairs = head_dim / 2;
  return {pairs / 4, pairs / 8 * 3, pairs - pairs / 4 - pairs / 8 * 3};
}

void read_sections(const PartView& view, const std::string& home, TextEncoderConfig& c) {
  const int64_t pairs = c.head_dim / 2;
  c.sections = usual_sections(c.head_dim);
  for (const char* field : kSectionFields) {
    const auto given = view.index().config_integers(home + field);
    if (!given) continue;
    const bool fits = given->size() == 3 &&
                      std::all_of(given->begin(), given->end(), [](int64_t n) { return n >= 0; }) &&
                      (*given)[0] + (*given)[1] + (*given)[2] == pairs;
    if (!fits)
      view.refuse("has heads of " + to_string(c.head_dim) + " channels, which " + home + field +
                      " in its config does not fit",
                  kOwnConfig);
    std::copy(given->begin(), given->end(), c.sections.begin());
  }
}

TextEncoderConfig read_text_encoder(const PartView& view, std::string_view spelling) {
  const TensorIndex& index = view.index();
  // Newer configs have an object of its own for the language model.
  const std::string home =
      atelier::has_fields(index.config(), "text_config.") ? "text_config." : "";
  const auto name = [&](const char* weight) { return spelled(spelling, weight); };
  const std::string tokens = name("embed_tokens.weight"),
                    q = name("layers.0.self_attn.q_proj.weight"),
                    k = name("layers.0.self_attn.k_proj.weight");
  TextEncoderConfig c;
  c.layers = view.block_count(name("layers.{}.self_attn.q_proj.weight"));
  c.width = view.dim(tokens, 1);
  c.vocabulary = view.dim(tokens, 0);
  c.mlp_width = view.dim(name("layers.0.mlp.gate_proj.weight"), 0);
  view.require_config(
      c.width == 3584 && c.mlp_width == 18944 && view.dim(q, 0) == 3584 && view.dim(k, 0) == 512,
      "num_attention_heads, rope_theta and rms_norm_eps");
  if (const auto heads = index.config_integer(home + "num_attention_heads")) {
    c.heads = *heads;
    c.head_dim = view.parts(q, 0, c.heads, kOwnConfig);
  } else {
    c.head_dim = 128;
    c.heads = view.parts(q, 0, c.head_dim, kOwnConfig);
  }
  c.kv_heads = view.parts(k, 0, c.head_dim, kOwnConfig);
  view.check_heads(c.heads, c.kv_heads, c.head_dim);
  read_windows(view, home, c);
  read_sections(view, home, c);
  c.rope_theta = atelier::rope_theta(index, home).value_or(1e6);
  c.eps = index.config_real(home + "rms_norm_eps").value_or(1e-6);
  if (!(c.rope_theta > 0) || !(c.eps >= 0))
    view.refuse("has rope_theta or rms_norm_eps below 0 in its config", kOwnConfig);
  return c;
}

}  // namespace

DitConfig read_blocks(const PartView& view) {
  constexpr const char* kDamaged = "the file may be damaged";
  const std::string block = "transformer_blocks.0.";
  DitConfig c{};
  c.layers = view.block_count("transformer_blocks.{}.img_mod.1.weight");
  c.width = view.dim("img_in.weight", 0);
  c.head_dim = view.dim(block + "attn.norm_q.weight", 0);
  c.heads = view.parts("img_in.weight", 0, c.head_dim, kDamaged);
  c.mlp_width = view.dim(block + "img_mlp.net.0.proj.weight", 0);
  c.text_width = view.dim("txt_in.weight", 1);
  c.channels = view.parts("img_in.weight", 1, kPatch * kPatch, kDamaged);
  view.require_config(c.width == 3072 && c.head_dim == 128 && c.mlp_width == 12288 &&
                          c.text_width == 3584 && c.channels == 16,
                      "axes_dims_rope");
  // The axes of 128 are 16, 56 and 56.
  c.axes = view.rope_axes("axes_dims_rope", c.head_dim,
                          {c.head_dim / 8, c.head_dim / 16 * 7, c.head_dim / 16 * 7});
  return c;
}

Detection detection_of_dit(const DitConfig& config, std::string prefix) {
  Detection part = atelier::detection_of("dit", "diffusers", config, std::move(prefix));
  if (!config.clean_references) part.config.erase(kCleanReferences);
  if (!config.layered) part.config.erase(kLayered);
  return part;
}

DitConfig dit_config(const Detection& part) {
  Detection whole = part;
  whole.config.try_emplace(kCleanReferences, false);
  whole.config.try_emplace(kLayered, false);
  return atelier::config_of<DitConfig>(whole);
}

bool has_clean_references(const Detection& dit) {
  return dit_config(dit).clean_references;
}

bool makes_layers(const Detection& dit) {
  return dit_config(dit).layered;
}

Detection detection_of_text_encoder(const TextEncoderConfig& config, std::string spelling,
                                    std::string prefix) {
  Detection part =
      atelier::detection_of("text_encoder", std::move(spelling), config, std::move(prefix));
  if (config.sections == usual_sections(config.head_dim)) part.config.erase(kSections);
  return part;
}

TextEncoderConfig text_encoder_config(const Detection& part) {
  Detection whole = part;
  const auto usual = usual_sections(part.integer("head_dim"));
  whole.config.try_emplace(kSections, std::vector<double>(usual.begin(), usual.end()));
  return atelier::config_of<TextEncoderConfig>(whole);
}

std::optional<Detection> detect_dit(const TensorIndex& checkpoint) {
  static constexpr std::string_view kMarkers[] = {"transformer_blocks.0.img_mod.1.weight",
                                                  "transformer_blocks.0.img_mod.1.qweight"};
  const auto prefix = atelier::find_prefix(checkpoint, atelier::kDenoiserPrefixes, kMarkers);
  if (!prefix) return std::nullopt;
  const PartView view(checkpoint, *prefix, "DiT");
  if (view.contains(kControlNetMark)) return std::nullopt;
  view.refuse_quantised();
  Detection part = detection_of_dit(read_dit(view), *prefix);
  if (makes_layers(part)) part.variant = kLayeredVariant;
  // What a config says counts more than what a path will say: see Family::assign().
  if (checkpoint.config_flag("zero_cond_t") == false) part.config.emplace(kCleanReferences, false);
  return part;
}

std::string spelled(std::string_view spelling, const std::string& weight) {
  if (spelling != kLlamaCpp) return weight;
  return atelier::parts::llama_cpp_name(weight, /*has_outer_norms=*/false);
}

std::optional<Detection> detect_text_encoder(const TensorIndex& checkpoint) {
  static constexpr std::string_view kPrefixes[] = {"", "text_encoder."};
  for (const auto& [spelling, stem] : {std::pair("memory", "model.language_model."),
                                       std::pair("disk", "model."), std::pair(kLlamaCpp, "")}) {
    const std::string marker = stem + spelled(spelling, "layers.0.self_attn.q_proj.bias");
    const std::string_view markers[] = {marker};
    const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, markers);
    if (!prefix) continue;
    const PartView view(checkpoint, *prefix + stem, "text encoder");
    view.refuse_quantised();
    Detection part =
        detection_of_text_encoder(read_text_encoder(view, spelling), spelling, *prefix);
    // GGUF files of the vision tower are others.
    if (spelling != kLlamaCpp) part.owns = {std::string(stem) + "*", "lm_head.*"};
    return part;
  }
  return std::nullopt;
}

std::optional<Detection> detect_vae(const TensorIndex& checkpoint) {
  const auto file = atelier::parts::find_causal_vae(checkpoint);
  if (!file || file->is_residual) return std::nullopt;
  return atelier::parts::detect_causal_vae(checkpoint, *file);
}

}  // namespace qwen_image
