// What a published VACE is, and which denoiser it stands beside.
#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"

#include "tables.h"
#include "vace.h"

namespace wan {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartSpelling;
using atelier::PartView;
using std::to_string;

namespace {

constexpr std::string_view kOriginalMarkers[] = {"vace_blocks.0.cross_attn.norm_k.weight"};
constexpr std::string_view kDiffusersMarkers[] = {"vace_blocks.0.attn2.norm_k.weight"};
constexpr const char* kPatches = "vace_patch_embedding.weight";

// Blocks of the published models, and of the denoiser from one hint to the next.
struct Published {
  int64_t width, blocks, step;
};
constexpr Published kPublished[] = {{1536, 15, 2}, {5120, 8, 5}};

// Behind which of the denoiser's blocks hints are added, as the config says it or as published.
std::vector<int64_t> read_places(const PartView& view, int64_t width, int64_t blocks) {
  const auto* known = std::ranges::find_if(
      kPublished, [&](const Published& one) { return one.width == width && one.blocks == blocks; });
  view.require_config(known != std::end(kPublished), "num_heads, eps and vace_layers");
  std::vector<int64_t> places;
  if (const auto said = view.index().config_integers("vace_layers")) {
    places = *said;
  } else if (known != std::end(kPublished)) {
    for (int64_t i = 0; i < blocks; ++i) places.push_back(i * known->step);
  } else {
    view.refuse("has no vace_layers in its config", kOwnConfig);
  }
  const bool ascend = std::ranges::adjacent_find(places, std::greater_equal<>()) == places.end();
  if (std::ssize(places) != blocks || places.front() != 0 || !ascend)
    view.refuse("has " + to_string(blocks) + " blocks, and vace_layers in its config are not as " +
                    "many ascending numbers from 0",
                kOwnConfig);
  return places;
}

VaceConfig read_vace(const PartView& view, const PartSpelling& names) {
  const std::string block = "vace_blocks.0.";
  VaceConfig c;
  c.width = view.dim(kPatches, 0);
  c.channels = view.dim(kPatches, 1);
  c.patch = view.dim(kPatches, 3);
  c.mlp_width = view.dim(block + names.of("ffn.0.weight", "ffn.net.0.proj.weight"), 0);
  c.places = read_places(
      view, c.width,
      view.block_count(names.of("vace_blocks.{}.modulation", "vace_blocks.{}.scale_shift_table")));
  if (c.channels <= kMaskChannels || c.channels % 2 != 0)
    view.refuse("reads " + to_string(c.channels) + " channels, those of two clips and a mask of " +
                to_string(kMaskChannels) + " expected");
  c.heads = read_heads(view, c.width);
  c.norm_eps = read_eps(view);
  return c;
}

}  // namespace

std::optional<Detection> detect_vace(const atelier::TensorIndex& checkpoint) {
  const auto names =
      atelier::find_spelling(checkpoint, kPrefixes, kOriginalMarkers, kDiffusersMarkers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "VACE");
  view.refuse_quantised();
  const VaceConfig config = read_vace(view, *names);
  Detection part = atelier::detection_of("vace", names->name(), config, names->prefix);
  part.variant = config.width < 5120 ? kSmallVace : kVace;
  part.owns = {"vace_blocks.*", "vace_patch_embedding.*"};
  return part;
}

ConfigFields vace_fields(const Detection& part) {
  const auto c = atelier::config_of<VaceConfig>(part);
  ConfigFields fields;
  fields.of_diffusers({kDiffusersVaceClass, kOriginalVaceClass, kFunVaceClass})
      .told("dim", {c.width})
      .told("attention_head_dim", {c.width / c.heads})
      .told("ffn_dim", {c.mlp_width})
      .told("vace_in_dim", {c.channels})
      .told("vace_in_channels", {c.channels})
      .read({"num_heads", "num_attention_heads", "eps", "vace_layers"})
      .fixed("cross_attn_norm", {true})
      .fixed("qk_norm", {"rms_norm_across_heads", true})
      .fixed("window_size", {std::vector<double>{-1, -1}})
      .fixed("added_kv_proj_dim", {nullptr})
      // About the denoiser, which a config describes as well.
      .ignored({"num_layers", "in_dim", "out_dim", "in_channels", "out_channels", "freq_dim",
                "text_dim", "text_len", "model_type", "patch_size", "image_dim",
                "pos_embed_seq_len", "rope_max_seq_len"});
  return fields;
}

int64_t check_vace(std::span<const Detection> parts) {
  const auto find = [&](std::string_view component) {
    return std::ranges::find(parts, component, &Detection::component);
  };
  int64_t blocks = 0;
  for (const auto& [beside, name] : {std::pair("dit", "vace"), std::pair("dit2", "vace2")}) {
    const auto dit = find(beside), vace = find(name);
    if (vace == parts.end()) continue;
    const auto v = atelier::config_of<VaceConfig>(*vace);
    blocks = std::ssize(v.places);
    if (dit == parts.end()) continue;
    const auto d = atelier::parts::whole_config_of<DitConfig>(*dit);
    if (d.width == v.width && d.heads == v.heads && d.patch == v.patch &&
        d.layers > v.places.back() && v.channels == 2 * d.channels + kMaskChannels)
      continue;
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "the " + std::string(name) + " is not made for the " + beside +
                             ": it has " + to_string(v.width) + " channels, and adds to block " +
                             to_string(v.places.back()) + "; the " + beside + " has " +
                             to_string(d.width) + " and " + to_string(d.layers) + " blocks",
                         "pass the VACE that is published with the DiT");
  }
  return blocks;
}

}  // namespace wan
