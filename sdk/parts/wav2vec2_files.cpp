// How files hold wav2vec2: names, shapes, config.
#include <algorithm>

#include "atelier/part_view.h"
#include "atelier/parts/wav2vec2.h"

namespace atelier::parts {
namespace {

// What stands before names, and the two factors of the kernel that tells positions.
struct Spelling {
  const char *name, *stem, *length, *direction;
};
constexpr const char *kOldLength = "weight_g", *kOldDirection = "weight_v",
                     *kNewLength = "parametrizations.weight.original0",
                     *kNewDirection = "parametrizations.weight.original1";
constexpr const char* kBesideHead = "wav2vec2.";
constexpr Spelling kSpellings[] = {
    {"transformers", "", kOldLength, kOldDirection},
    {"parametrized", "", kNewLength, kNewDirection},
    {"ctc", kBesideHead, kOldLength, kOldDirection},
    {"ctc_parametrized", kBesideHead, kNewLength, kNewDirection},
};

std::string position(const char* name) {
  return std::string("encoder.pos_conv_embed.conv.") + name;
}

std::string convolution(const std::string& number, const char* name) {
  return "feature_extractor.conv_layers." + number + name;
}

void read_convolutions(const PartView& view, Wav2Vec2Config& c) {
  const TensorIndex& index = view.index();
  const Wav2Vec2Config usual;
  c.conv_widths.clear(), c.conv_kernels.clear();
  const int64_t count = view.block_count(convolution("{}", ".conv.weight"));
  for (int64_t i = 0; i < count; ++i) {
    const std::string weight = convolution(std::to_string(i), ".conv.weight");
    c.conv_widths.push_back(view.dim(weight, 0));
    c.conv_kernels.push_back(view.dim(weight, 2));
  }
  c.conv_bias = view.contains(convolution("0", ".conv.bias"));
  c.conv_strides = index.config_integers("conv_stride").value_or(usual.conv_strides);
  if (count == 0 || std::ssize(c.conv_strides) != count || std::ranges::min(c.conv_strides) < 1) {
    view.refuse("has " + std::to_string(count) + " convolutions, which conv_stride in its config " +
                    "does not fit",
                kOwnConfig);
  }
}

Wav2Vec2Config read_config(const PartView& view, const Spelling& spelling) {
  const TensorIndex& index = view.index();
  const Wav2Vec2Config usual;
  Wav2Vec2Config c;
  read_convolutions(view, c);
  c.layers = view.block_count("encoder.layers.{}.attention.q_proj.weight");
  c.width = view.dim("feature_projection.projection.weight", 0);
  c.mlp_width = view.dim("encoder.layers.0.feed_forward.intermediate_dense.weight", 0);
  c.position_kernel = view.dim(position(spelling.direction), 2);
  const int64_t group = view.dim(position(spelling.direction), 1);
  if (c.width % group != 0)
    view.refuse("has " + std::to_string(c.width) + " channels, no multiple of the " +
                std::to_string(group) + " of a group of the convolution that tells positions");
  c.position_groups = c.width / group;
  view.require_config(c.width == usual.width && c.mlp_width == usual.mlp_width &&
                          c.conv_kernels == usual.conv_kernels,
                      "num_attention_heads, conv_stride and layer_norm_eps");
  // Where norms are is in no shape, and missing means behind.
  if (!index.config().empty() && !index.config().contains("do_stable_layer_norm"))
    view.refuse("has no do_stable_layer_norm in its config, which means that it is off",
                kOwnConfig);
  c.heads = index.config_integer("num_attention_heads").value_or(index.config().empty() ? 16 : 12);
  c.eps = index.config_real("layer_norm_eps").value_or(c.eps);
  if (c.heads < 1 || c.width % c.heads != 0 || !(c.eps >= 0)) {
    view.refuse("has " + std::to_string(c.width) + " channels, which num_attention_heads or " +
                    "layer_norm_eps in its config does not fit",
                kOwnConfig);
  }
  return c;
}

}  // namespace

std::optional<Detection> detect_wav2vec2(const TensorIndex& checkpoint, const Wav2Vec2Use& use) {
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix : {std::string(), own}) {
    for (const Spelling& spelling : kSpellings) {
      const PartView view(checkpoint, prefix + spelling.stem, "audio encoder");
      // Base models norm the first convolution alone.
      if (!view.contains("feature_projection.projection.weight") ||
          !view.contains(convolution("1", ".layer_norm.weight")) ||
          !view.contains(position(spelling.direction)))
        continue;
      view.refuse_quantised();
      return detection_of(std::string(use.component), spelling.name, read_config(view, spelling),
                          prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_wav2vec2(const Wav2Vec2Use& use) {
  Wav2Vec2Config c;
  c.layers = 2, c.width = 48, c.heads = 12, c.mlp_width = 80;
  c.conv_widths.assign(c.conv_strides.size(), 32);
  c.position_kernel = 8, c.position_groups = 4;
  return detection_of(std::string(use.component), "transformers", std::move(c));
}

ConfigFields wav2vec2_fields(const Detection& part) {
  const auto c = config_of<Wav2Vec2Config>(part);
  const auto list = [](const std::vector<int64_t>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  ConfigFields fields;
  fields.of_transformers({"wav2vec2"})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_hidden_layers", {c.layers})
      .told("conv_dim", {list(c.conv_widths)})
      .told("conv_kernel", {list(c.conv_kernels)})
      .told("conv_bias", {c.conv_bias})
      .told("num_feat_extract_layers", {std::ssize(c.conv_widths)})
      .told("num_conv_pos_embeddings", {c.position_kernel})
      .told("num_conv_pos_embedding_groups", {c.position_groups})
      .fixed("feat_extract_norm", {"layer"})
      .fixed("do_stable_layer_norm", {true})
      .fixed("feat_extract_activation", {"gelu"})
      .fixed("hidden_act", {"gelu"})
      .fixed("add_adapter", {false})
      .fixed("adapter_attn_dim", {nullptr})
      .read({"num_attention_heads", "layer_norm_eps", "conv_stride"})
      // Heads, adapters that are not there, and how it is trained.
      .ignored({"vocab_size",
                "output_hidden_size",
                "adapter_*",
                "num_adapter_layers",
                "activation_dropout",
                "hidden_dropout*",
                "feat_proj_dropout",
                "final_dropout",
                "feat_quantizer_dropout",
                "layerdrop",
                "apply_spec_augment",
                "mask_*",
                "num_codevector*",
                "codevector_dim",
                "proj_codevector_dim",
                "contrastive_logits_temperature",
                "diversity_loss_weight",
                "num_negatives",
                "ctc_*",
                "use_weighted_layer_sum",
                "classifier_proj_size",
                "tdnn_*",
                "xvector_output_dim",
                "feat_extract_dropout",
                "gradient_checkpointing"});
  return fields;
}

WeightMap wav2vec2_map(const Detection& part) {
  Wav2Vec2 model(config_of<Wav2Vec2Config>(part));
  const Spelling* spelling = kSpellings;
  for (const Spelling& row : kSpellings) {
    if (part.spelling == row.name) spelling = &row;
  }
  const std::string stem = spelling->stem;
  WeightMap map = named_weights(model, [&](const std::string& path) {
    if (path == position(kOldLength)) return stem + position(spelling->length);
    if (path == position(kOldDirection)) return stem + position(spelling->direction);
    return stem + path;
  });
  // What hides frames in training, and heads.
  map.push_back({stem + "masked_spec_embed"});
  for (const char* unused : {"lm_head.*", "quantizer.*", "project_q.*", "project_hid.*"})
    map.push_back({unused});
  return map;
}

}  // namespace atelier::parts
