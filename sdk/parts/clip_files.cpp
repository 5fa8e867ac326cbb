// How files hold CLIP's models: names, shapes, config.
#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/clip.h"

#include "clip_pixels.h"

namespace atelier::parts {
namespace {

// What shapes of published models do not tell.
struct Published {
  int64_t width, mlp_width, heads, layers;
  bool quick_gelu;
};
constexpr Published kTexts[] = {
    {768, 3072, 12, 12, true},    // ViT-L/14
    {1024, 4096, 16, 24, false},  // ViT-H/14
    {1280, 5120, 20, 32, false},  // ViT-bigG/14
};
constexpr Published kImages[] = {
    {1024, 4096, 16, 24, true},   // ViT-L/14
    {1280, 5120, 16, 32, false},  // ViT-H/14
    {1664, 8192, 16, 48, false},  // ViT-bigG/14
};

const Published* find_published(std::span<const Published> rows, int64_t width, int64_t mlp_width) {
  for (const Published& row : rows) {
    if (row.width == width && row.mlp_width == mlp_width) return &row;
  }
  return nullptr;
}

std::string activation_name(bool quick_gelu) {
  return quick_gelu ? "quick_gelu" : "gelu";
}

// Whether `hidden_act` says quick GELU; a config without one means it.
bool says_quick_gelu(const TensorIndex& index) {
  const auto said = index.config().find("hidden_act");
  return said == index.config().end() || said->second != ConfigValue(std::string("gelu"));
}

// Throws unless heads share the width, and the norms' epsilon is one.
void check_numbers(const PartView& view, int64_t width, int64_t heads, double eps) {
  if (heads >= 1 && width % heads == 0 && eps >= 0) return;
  view.refuse("has " + std::to_string(width) + " channels, which num_attention_heads or " +
                  "layer_norm_eps in its config does not fit",
              kOwnConfig);
}

// Throws unless all states are there.
template <class Config>
void check_states(const PartView& view, const Config& c) {
  for (const int64_t state : c.states) {
    if (c.layers_before(state) >= 0 && c.layers_before(state) <= c.layers) continue;
    view.refuse("has " + std::to_string(c.layers) + " layers, and state " + std::to_string(state) +
                " is used");
  }
}

// Layers as published. A file that was saved here lacks those that are not run, and its last norm,
// where that is not used: without a config's number they are those of the published widths, or such
// a file lacks as many as stand behind all states that are counted from the end.
template <class Config>
int64_t published_layers(const PartView& view, int64_t there, bool has_norm,
                         const Published* published, Config c) {
  int64_t unused = INT64_MAX;
  for (const int64_t state : c.states) {
    if (state < 0) unused = std::min(unused, -1 - state);
  }
  const int64_t whole = has_norm || unused == INT64_MAX ? there : there + unused;
  c.layers = view.index()
                 .config_integer("num_hidden_layers")
                 .value_or(published != nullptr ? published->layers : whole);
  check_states(view, c);
  if (c.layers < 1 || there < c.layers_run() || there > c.layers) {
    view.refuse("has " + std::to_string(there) + " layers, num_hidden_layers is " +
                    std::to_string(c.layers),
                kOwnConfig);
  }
  return c.layers;
}

// ---- Texts ----

constexpr const char* kTextModel = "text_model.";
constexpr const char* kProjection = "text_projection.weight";

std::string text_stem(std::string_view spelling) {
  return spelling == "transformers" ? kTextModel : "";
}

ClipTextConfig read_text(const PartView& view, const std::string& stem, const ClipTextUse& use) {
  const TensorIndex& index = view.index();
  ClipTextConfig c;
  c.states.assign(use.states.begin(), use.states.end());
  c.norms_states = use.norms_states;
  c.pools = use.pooling != ClipPooling::kNone;
  c.vocabulary = view.dim(stem + "embeddings.token_embedding.weight", 0);
  c.width = view.dim(stem + "embeddings.token_embedding.weight", 1);
  c.positions = view.dim(stem + "embeddings.position_embedding.weight", 0);
  c.mlp_width = view.dim(stem + "encoder.layers.0.mlp.fc1.weight", 0);
  c.projection = use.pooling == ClipPooling::kProjected ? view.dim(kProjection, 0) : 0;
  const Published* published = find_published(kTexts, c.width, c.mlp_width);
  view.require_config(published != nullptr, "num_attention_heads and hidden_act");
  c.layers =
      published_layers(view, view.block_count(stem + "encoder.layers.{}.self_attn.q_proj.weight"),
                       view.contains(stem + "final_layer_norm.weight"), published, c);
  c.quick_gelu = index.config().empty() ? published->quick_gelu : says_quick_gelu(index);
  c.heads = index.config_integer("num_attention_heads").value_or(published ? published->heads : 12);
  c.eps = index.config_real("layer_norm_eps").value_or(c.eps);
  c.end_token = index.config_integer("eos_token_id").value_or(c.end_token);
  check_numbers(view, c.width, c.heads, c.eps);
  return c;
}

}  // namespace

std::optional<Detection> detect_clip_text(const TensorIndex& checkpoint, const ClipTextUse& use) {
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix : {std::string(), own, std::string(use.bundle_prefix)}) {
    for (const char* spelling : {"transformers", "transformers_bare"}) {
      const PartView view(checkpoint, prefix, "text encoder");
      const std::string stem = text_stem(spelling);
      // Texts of SigLIP have a head, which CLIP's have not.
      if (!view.contains(stem + "embeddings.token_embedding.weight") ||
          !view.contains(stem + "encoder.layers.0.mlp.fc1.weight") ||
          view.contains(stem + "head.weight"))
        continue;
      view.refuse_quantised();
      return detection_of(std::string(use.component), spelling, read_text(view, stem, use), prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_clip_text(const ClipTextUse& use) {
  ClipTextConfig c = {
      .layers = 3, .width = 48, .mlp_width = 80, .vocabulary = 512, .positions = 77};
  c.states.assign(use.states.begin(), use.states.end());
  c.norms_states = use.norms_states;
  c.pools = use.pooling != ClipPooling::kNone;
  c.projection = use.pooling == ClipPooling::kProjected ? 32 : 0;
  for (int64_t& state : c.states) state = std::clamp(state, -1 - c.layers, c.layers);
  return detection_of(std::string(use.component), "transformers", std::move(c));
}

ConfigFields clip_text_fields(const Detection& part) {
  const auto c = config_of<ClipTextConfig>(part);
  ConfigFields fields;
  fields.told("max_position_embeddings", {c.positions})
      .of_transformers({"clip_text_model"})
      .ignored({"attention_dropout", "dropout", "initializer_factor"})
      .told("vocab_size", {c.vocabulary})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_hidden_layers", {c.layers})
      .fixed("hidden_act", {activation_name(c.quick_gelu)})
      .read({"num_attention_heads", "layer_norm_eps"});
  if (c.projection) {
    fields.told("projection_dim", {c.projection});
  } else {
    fields.ignored({"projection_dim"});
  }
  return fields;
}

WeightMap clip_text_map(const Detection& part) {
  const auto c = config_of<ClipTextConfig>(part);
  const std::string stem = text_stem(part.spelling);
  ClipText model(c);
  WeightMap map = named_weights(
      model, [&](const std::string& path) { return path == kProjection ? path : stem + path; });
  for (int64_t i = c.layers_run(); i < c.layers; ++i)
    map.push_back({stem + "encoder.layers." + std::to_string(i) + ".*"});
  if (!c.norms_states && !c.pools) map.push_back({stem + "final_layer_norm.*"});
  if (!c.projection) map.push_back({kProjection});
  // The rest of a file of both models.
  map.push_back({stem + "embeddings.position_ids"});
  for (const char* unused : {"vision_model.*", "visual_projection.weight", "logit_scale"})
    map.push_back({unused});
  return map;
}

// ---- Images ----

namespace {

struct VisionNames {
  const char *spelling, *stem, *layers, *patch, *positions, *up, *class_row, *norm;
};
constexpr VisionNames kVisionNames[] = {
    {"original", "visual.", "transformer.{}.norm1.weight", "patch_embedding.weight",
     "pos_embedding", "transformer.0.mlp.0.weight", "cls_embedding", "post_norm.weight"},
    {"transformers", "vision_model.", "encoder.layers.{}.layer_norm1.weight",
     "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight",
     "encoder.layers.0.mlp.fc1.weight", "embeddings.class_embedding", "post_layernorm.weight"},
    {"transformers_bare", "", "encoder.layers.{}.layer_norm1.weight",
     "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight",
     "encoder.layers.0.mlp.fc1.weight", "embeddings.class_embedding", "post_layernorm.weight"},
};

bool allows(const ClipVisionUse& use, bool quick_gelu) {
  return std::ranges::find(use.activations, activation_name(quick_gelu)) != use.activations.end();
}

ClipVisionConfig read_vision(const PartView& view, const VisionNames& names,
                             const ClipVisionUse& use) {
  const std::string stem = names.stem;
  const TensorIndex& index = view.index();
  ClipVisionConfig c;
  c.states.assign(use.states.begin(), use.states.end());
  c.width = view.dim(stem + names.patch, 0);
  c.patch = view.dim(stem + names.patch, 2);
  c.mlp_width = view.dim(stem + names.up, 0);
  c.has_batch_axes = std::string_view(names.spelling) == "original";
  c.rows = view.dim(stem + names.positions, c.has_batch_axes ? 1 : 0);
  const Published* published = find_published(kImages, c.width, c.mlp_width);
  view.require_config(published && allows(use, published->quick_gelu), "num_attention_heads");
  c.layers = published_layers(view, view.block_count(stem + names.layers),
                              view.contains(stem + names.norm), published, c);
  c.quick_gelu = index.config().empty() ? published->quick_gelu : says_quick_gelu(index);
  c.heads = index.config_integer("num_attention_heads").value_or(16);
  c.eps = index.config_real("layer_norm_eps").value_or(1e-5);
  check_numbers(view, c.width, c.heads, c.eps);
  const int64_t across = c.image_side() / c.patch;
  if (across * across + 1 != c.rows)
    view.refuse("has positions for " + std::to_string(c.rows - 1) +
                " patches, which no square has");
  return c;
}

// The module's name of what transformers calls `name`, behind the stem; q, k and v are one.
constexpr Renamed kOutsideBlocks[] = {
    {"cls_embedding", "embeddings.class_embedding"},
    {"pos_embedding", "embeddings.position_embedding.weight"},
    {"patch_embedding.weight", "embeddings.patch_embedding.weight"},
    {"pre_norm.", "pre_layrnorm."},
};
constexpr Renamed kInBlocks[] = {
    {"transformer.", "encoder.layers."},
    {".norm1.", ".layer_norm1."},
    {".norm2.", ".layer_norm2."},
    {".attn.proj.", ".self_attn.out_proj."},
    {".mlp.0.", ".mlp.fc1."},
    {".mlp.2.", ".mlp.fc2."},
};

void add_rows(WeightMap& map, const std::string& stem, const std::string& path) {
  constexpr std::string_view kQkv = ".attn.to_qkv.";
  if (!path.starts_with("transformer.")) {
    map.push_back({stem + renamed(path, kOutsideBlocks), path});
  } else if (path.find(kQkv) == std::string::npos) {
    map.push_back({stem + renamed(path, kInBlocks), path});
  } else {
    for (const char* part : {"q", "k", "v"}) {
      std::string name = renamed(path, kInBlocks);
      name.replace(name.find(kQkv), kQkv.size(), ".self_attn." + std::string(part) + "_proj.");
      map.push_back({stem + name, path, /*axis=*/0});
    }
  }
}

// What a folder says of how images are brought to the encoder.
ConfigFields processor_fields(int64_t side) {
  const auto reals = [](const double(&values)[3]) {
    return std::vector<double>(std::begin(values), std::end(values));
  };
  ConfigFields fields;
  fields.told("size.shortest_edge", {side})
      .told("crop_size.height", {side})
      .told("crop_size.width", {side})
      .fixed("image_mean", {reals(kClipMean)})
      .fixed("image_std", {reals(kClipStd)})
      .fixed("resample", {3})
      .ignored({"rescale_factor", "do_convert_rgb", "image_processor_type",
                "feature_extractor_type", "processor_class", "_*", "data_format",
                "input_data_format", "default_to_square", "device", "return_tensors",
                "disable_grouping"});
  for (const char* on : {"do_resize", "do_center_crop", "do_normalize", "do_rescale"})
    fields.fixed(on, {true});
  return fields;
}

}  // namespace

std::optional<Detection> detect_clip_vision(const TensorIndex& checkpoint,
                                            const ClipVisionUse& use) {
  const std::string own = std::string(use.component) + ".";
  const std::string_view prefixes[] = {"", own, "model."};
  for (const VisionNames& names : kVisionNames) {
    const std::string marker = std::string(names.stem) + names.class_row;  // SigLIP's have no class
    const std::string_view markers[] = {marker};
    const auto prefix = find_prefix(checkpoint, prefixes, markers);
    if (!prefix) continue;
    const PartView view(checkpoint, *prefix, "image encoder");
    view.refuse_quantised();
    const bool is_said = checkpoint.config().empty() || checkpoint.config().contains("hidden_act");
    if (!is_said && !allows(use, /*quick_gelu=*/true))
      view.refuse("has no hidden_act in its config, which means quick_gelu", kOwnConfig);
    return brief_detection_of(std::string(use.component), names.spelling,
                              read_vision(view, names, use), *prefix);
  }
  return std::nullopt;
}

Detection tiny_clip_vision(const ClipVisionUse& use) {
  ClipVisionConfig c = {.layers = 3,
                        .width = 64,
                        .heads = 16,
                        .mlp_width = 80,
                        .patch = 7,
                        .rows = 17,
                        .quick_gelu = !allows(use, /*quick_gelu=*/false)};
  c.states.assign(use.states.begin(), use.states.end());
  for (int64_t& state : c.states) state = std::clamp(state, -1 - c.layers, c.layers);
  return brief_detection_of(std::string(use.component), "transformers", std::move(c));
}

ConfigFields clip_vision_fields(const Detection& part, const ClipVisionUse& use) {
  const auto c = whole_config_of<ClipVisionConfig>(part);
  std::vector<ConfigValue> activations;
  for (const std::string_view name : use.activations) activations.emplace_back(std::string(name));
  ConfigFields fields;
  fields.of_transformers({"clip_vision_model"})
      .ignored({"projection_dim", "attention_dropout", "dropout", "initializer_factor",
                "initializer_range"})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("patch_size", {c.patch})
      .told("image_size", {c.image_side()})
      .told("num_hidden_layers", {c.layers})
      .fixed("num_channels", {3})
      .fixed("hidden_act", std::move(activations))
      .read({"num_attention_heads", "layer_norm_eps"})
      .add(processor_fields(c.image_side()), "image_processor.");
  return fields;
}

WeightMap clip_vision_map(const Detection& part) {
  const auto config = whole_config_of<ClipVisionConfig>(part);
  ClipVision clip(config);
  const bool is_original = part.spelling == "original";
  const std::string stem = is_original                       ? "visual."
                           : part.spelling == "transformers" ? "vision_model."
                                                             : "";
  WeightMap map;
  clip.visit_weights([&](const std::string& path, Weight&) {
    if (is_original) {
      map.push_back({stem + path, path});
    } else {
      add_rows(map, stem, path);
    }
  });
  // What stands behind the states that are read.
  const std::string layers = is_original ? "visual.transformer." : stem + "encoder.layers.";
  for (int64_t i = config.layers_run(); i < config.layers; ++i)
    map.push_back({layers + std::to_string(i) + ".*"});
  if (is_original) {
    for (const char* unused : {"visual.post_norm.*", "visual.head", "textual.*", "log_scale"})
      map.push_back({unused});
  } else {
    for (const char* unused : {"post_layernorm.*", "embeddings.position_ids"})
      map.push_back({stem + unused});
    for (const char* unused :
         {"visual_projection.weight", "text_model.*", "text_projection.weight", "logit_scale"})
      map.push_back({unused});
  }
  return map;
}

}  // namespace atelier::parts
