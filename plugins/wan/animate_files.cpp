// Published files of Wan2.2-Animate's adapter, which lie in the denoiser's.
#include "atelier/part_view.h"

#include "animate.h"
#include "config.h"

namespace wan {

using atelier::Detection;
using atelier::PartSpelling;
using atelier::PartView;
using atelier::Renamed;

namespace {

constexpr std::string_view kAdapterOriginal[] = {"pose_patch_embedding.weight",
                                                 "face_adapter.fuser_blocks.0.linear1_q.weight"};
constexpr std::string_view kAdapterDiffusers[] = {"pose_patch_embedding.weight",
                                                  "face_adapter.0.to_q.weight"};

constexpr int64_t kPublishedInterval = 5;

// The original spelling, which the module has, and diffusers'.
constexpr Renamed kAdapterNames[] = {
    {"motion_encoder.dec.direction.weight", "motion_encoder.motion_synthesis_weight"},
    {"motion_encoder.enc.net_app.convs.0.0.", "motion_encoder.conv_in."},
    {"motion_encoder.enc.net_app.convs.0.1.", "motion_encoder.conv_in.act_fn."},
    {".conv1.0.", ".conv1."},
    {".conv1.1.", ".conv1.act_fn."},
    {".conv2.1.", ".conv2."},
    {".conv2.2.", ".conv2.act_fn."},
    {".skip.1.", ".conv_skip."},
    {"motion_encoder.enc.fc.", "motion_encoder.motion_network."},
    {"conv1_local.conv.", "conv1_local."},
    {"conv2.conv.", "conv2."},
    {"conv3.conv.", "conv3."},
    {"face_adapter.fuser_blocks.", "face_adapter."},
    {".linear1_q.", ".to_q."},
    {".linear2.", ".to_out."},
    {".q_norm.", ".norm_q."},
    {".k_norm.", ".norm_k."},
};

std::string diffusers_name(const std::string& path, size_t levels) {
  constexpr std::string_view kConvs = "motion_encoder.enc.net_app.convs.";
  if (!path.starts_with(kConvs) || path.starts_with(std::string(kConvs) + "0."))
    return atelier::renamed(path, kAdapterNames);
  const size_t dot = path.find('.', kConvs.size());
  const std::string number = path.substr(kConvs.size(), dot - kConvs.size());
  const std::string rest = path.substr(dot + 1);
  if (number == std::to_string(levels)) return "motion_encoder.conv_out." + rest;
  return "motion_encoder.res_blocks." + std::to_string(std::stoi(number) - 1) + "." +
         atelier::renamed(rest, kAdapterNames);
}

std::string level_name(const PartSpelling& names, size_t level) {
  return names.is_original ? "motion_encoder.enc.net_app.convs." + std::to_string(level)
                           : "motion_encoder.res_blocks." + std::to_string(level - 1);
}

// Channels of the pictures, from level to level, and of what they become.
void read_levels(const PartView& view, const PartSpelling& names, AnimateConfig& c) {
  c.levels = {view.dim(
      names.of("motion_encoder.enc.net_app.convs.0.0.weight", "motion_encoder.conv_in.weight"), 0)};
  const char* const conv = names.of(".conv2.1.weight", ".conv2.weight");
  while (view.contains(level_name(names, c.levels.size()) + conv))
    c.levels.push_back(view.dim(level_name(names, c.levels.size()) + conv, 0));
  c.style_width = view.dim(names.is_original ? level_name(names, c.levels.size()) + ".weight"
                                             : "motion_encoder.conv_out.weight",
                           0);
}

AnimateConfig read_animate(const PartView& view, const PartSpelling& names) {
  AnimateConfig c;
  c.width = view.dim("pose_patch_embedding.weight", 0);
  c.channels = view.dim("pose_patch_embedding.weight", 1);
  c.patch = view.dim("pose_patch_embedding.weight", 3);
  c.adapters = view.block_count(
      names.of("face_adapter.fuser_blocks.{}.linear1_q.weight", "face_adapter.{}.to_q.weight"));
  c.head_dim = view.dim(
      names.of("face_adapter.fuser_blocks.0.q_norm.weight", "face_adapter.0.norm_q.weight"), 0);
  const char* const interval = "inject_face_latents_blocks";
  c.interval = view.index().config_integer(interval).value_or(kPublishedInterval);
  read_levels(view, names, c);
  c.layers = view.block_count(
      names.of("motion_encoder.enc.fc.{}.weight", "motion_encoder.motion_network.{}.weight"));
  const char* const directions =
      names.of("motion_encoder.dec.direction.weight", "motion_encoder.motion_synthesis_weight");
  c.motion_width = view.dim(directions, 0);
  c.motions = view.dim(directions, 1);
  c.face_width = view.dim("face_encoder.out_proj.weight", 1);
  const char* const local =
      names.of("face_encoder.conv1_local.conv.weight", "face_encoder.conv1_local.weight");
  c.face_heads = view.parts(local, 0, c.face_width);
  c.flat_biases = !names.is_original;
  c.norm_eps = view.index().config_real("eps").value_or(1e-6);
  if (c.interval < 1 || c.width % c.head_dim != 0 || c.motions > c.motion_width)
    view.refuse("has numbers that do not belong together", atelier::kOwnConfig);
  return c;
}

}  // namespace

std::optional<Detection> detect_animate(const atelier::TensorIndex& checkpoint) {
  const auto names =
      atelier::find_spelling(checkpoint, kPrefixes, kAdapterOriginal, kAdapterDiffusers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "adapter of Animate");
  view.refuse_quantised();
  Detection part = atelier::detection_of(kAnimateAdapter, names->name(), read_animate(view, *names),
                                         names->prefix);
  part.variant = kAnimate;
  return part;
}

atelier::ConfigFields animate_fields(const Detection& part) {
  const auto c = atelier::config_of<AnimateConfig>(part);
  atelier::ConfigFields fields;
  fields.read({"inject_face_latents_blocks", "eps"})
      .told("latent_channels", {c.channels, nullptr})
      .told("motion_encoder_size", {c.face_side()})
      .told("motion_style_dim", {c.style_width})
      .told("motion_dim", {c.motions})
      .told("motion_encoder_dim", {c.motion_width})
      .told("face_encoder_hidden_dim", {c.face_width})
      .told("face_encoder_num_heads", {c.face_heads})
      // Fields of the denoiser are held against its tensors, others change nothing.
      .ignored({"*"});
  return fields;
}

atelier::WeightMap animate_map(const Detection& part) {
  const auto c = atelier::config_of<AnimateConfig>(part);
  AnimateAdapter adapter(c);
  if (part.spelling == "original") {
    atelier::WeightMap map = atelier::named_weights(adapter);
    // Blurs by 1, 3, 3, 1, which are made where they are needed.
    map.push_back({.from = "motion_encoder.enc.net_app.convs.*.kernel"});
    return map;
  }
  atelier::WeightMap map = atelier::named_weights(
      adapter, [&](const std::string& path) { return diffusers_name(path, c.levels.size()); });
  atelier::WeightMap joined;
  for (atelier::WeightRule& rule : map) {
    const size_t kv = rule.from.find(".linear1_kv.");
    if (kv == std::string::npos) {
      joined.push_back(std::move(rule));
      continue;
    }
    for (const char* half : {".to_k.", ".to_v."})
      joined.push_back(
          {.from = std::string(rule.from).replace(kv, 12, half), .to = rule.to, .axis = 0});
  }
  return joined;
}

}  // namespace wan
