// How files hold SigLIP's vision model: names, shapes, config.
#include "atelier/part_view.h"
#include "atelier/parts/siglip.h"

namespace atelier::parts {
namespace {

// Heads of published models, which shapes do not tell.
struct Published {
  int64_t width, mlp_width, heads;
};
constexpr Published kPublished[] = {
    {768, 3072, 12}, {1024, 4096, 16}, {1152, 4304, 16}, {1536, 6144, 16}};

constexpr const char *kPatches = "embeddings.patch_embedding.weight",
                     *kHead = "head.attention.in_proj_weight";

std::string stem_of(std::string_view spelling) {
  return spelling == "transformers" ? "vision_model." : "";
}

SiglipConfig read_config(const PartView& view, const SiglipUse& use) {
  const TensorIndex& index = view.index();
  SiglipConfig c;
  c.layers = view.block_count("encoder.layers.{}.layer_norm1.weight");
  c.width = view.dim(kPatches, 0);
  c.patch = view.dim(kPatches, 2);
  c.mlp_width = view.dim("encoder.layers.0.mlp.fc1.weight", 0);
  c.rows = view.dim("embeddings.position_embedding.weight", 0);
  c.pools = use.pools && view.dim(kHead, 0) > 0;
  const Published* published = nullptr;
  for (const Published& row : kPublished) {
    if (row.width == c.width && row.mlp_width == c.mlp_width) published = &row;
  }
  view.require_config(published != nullptr, "num_attention_heads");
  c.heads = index.config_integer("num_attention_heads").value_or(published ? published->heads : 12);
  c.eps = index.config_real("layer_norm_eps").value_or(c.eps);
  c.is_bilinear = use.is_bilinear;
  if (c.heads < 1 || c.width % c.heads != 0 || !(c.eps >= 0)) {
    view.refuse("has " + std::to_string(c.width) + " channels, which num_attention_heads or " +
                    "layer_norm_eps in its config does not fit",
                kOwnConfig);
  }
  const int64_t across = c.image_side() / c.patch;
  if (across * across != c.rows)
    view.refuse("has positions for " + std::to_string(c.rows) + " patches, which no square has");
  return c;
}

ConfigFields processor_fields(const SiglipConfig& c) {
  const std::vector<double> half(3, 0.5);
  ConfigFields fields;
  fields.told("size.height", {c.image_side()})
      .told("size.width", {c.image_side()})
      .fixed("image_mean", {half})
      .fixed("image_std", {half})
      .fixed("resample", {c.is_bilinear ? 2 : 3})
      .ignored({"rescale_factor", "do_convert_rgb", "image_processor_type",
                "feature_extractor_type", "processor_class", "_*", "data_format",
                "input_data_format", "default_to_square", "device", "return_tensors",
                "disable_grouping"})
      .fixed("do_center_crop", {nullptr, false});
  for (const char* on : {"do_resize", "do_normalize", "do_rescale"}) fields.fixed(on, {true});
  return fields;
}

}  // namespace

std::optional<Detection> detect_siglip(const TensorIndex& checkpoint, const SiglipUse& use) {
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix : {std::string(), own}) {
    for (const char* spelling : {"transformers", "transformers_bare"}) {
      const PartView view(checkpoint, prefix + stem_of(spelling), "image encoder");
      // CLIP's has a class; patches of models of any size are no convolution.
      const TensorMeta* patches = checkpoint.find(view.prefix() + kPatches);
      if (!patches || patches->shape.size() != 4 || view.contains("embeddings.class_embedding") ||
          !view.contains("encoder.layers.0.layer_norm1.weight"))
        continue;
      view.refuse_quantised();
      return detection_of(std::string(use.component), spelling, read_config(view, use), prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_siglip(const SiglipUse& use) {
  return detection_of(std::string(use.component), "transformers",
                      SiglipConfig{.layers = 2,
                                   .width = 48,
                                   .heads = 12,
                                   .mlp_width = 80,
                                   .patch = 8,
                                   .rows = 16,
                                   .is_bilinear = use.is_bilinear,
                                   .pools = use.pools});
}

ConfigFields siglip_fields(const Detection& part) {
  const auto c = config_of<SiglipConfig>(part);
  ConfigFields fields;
  fields.of_transformers({"siglip_vision_model"})
      .ignored({"attention_dropout", "dropout", "vision_use_head"})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_hidden_layers", {c.layers})
      .told("patch_size", {c.patch})
      .told("image_size", {c.image_side()})
      .fixed("num_channels", {3})
      .fixed("hidden_act", {"gelu_pytorch_tanh"})
      .read({"num_attention_heads", "layer_norm_eps"})
      .add(processor_fields(c), "image_processor.");
  return fields;
}

WeightMap siglip_map(const Detection& part) {
  const auto c = config_of<SiglipConfig>(part);
  const std::string stem = stem_of(part.spelling);
  Siglip model(c);
  WeightMap map;
  model.visit_weights([&](const std::string& path, Weight&) {
    // Queries, keys and values of the head are one tensor.
    const bool is_joined = path.starts_with("head.attention.") &&
                           !path.ends_with(".out_proj.weight") && !path.ends_with(".out_proj.bias");
    if (!is_joined) {
      map.push_back({stem + path, path});
    } else {
      map.push_back({stem + "head.attention.in_proj_" + path.substr(path.rfind('.') + 1), path,
                     /*axis=*/0});
    }
  });
  if (!c.pools) map.push_back({stem + "head.*"});
  // The rest of a file of both models.
  map.push_back({stem + "embeddings.position_ids"});
  for (const char* unused : {"text_model.*", "logit_scale", "logit_bias"}) map.push_back({unused});
  return map;
}

}  // namespace atelier::parts
