// How files hold T5's and umT5's encoders: names, shapes, config.
#include <algorithm>

#include "atelier/part_view.h"
#include "atelier/parts/t5.h"

namespace atelier::parts {
namespace {

// A block's weight as each of its spellings calls it.
struct BlockWeight {
  const char *original, *transformers, *llama_cpp;
};
constexpr BlockWeight kInEveryBlock[] = {
    {"norm1.weight", "layer.0.layer_norm.weight", "attn_norm.weight"},
    {"attn.q.weight", "layer.0.SelfAttention.q.weight", "attn_q.weight"},
    {"attn.k.weight", "layer.0.SelfAttention.k.weight", "attn_k.weight"},
    {"attn.v.weight", "layer.0.SelfAttention.v.weight", "attn_v.weight"},
    {"attn.o.weight", "layer.0.SelfAttention.o.weight", "attn_o.weight"},
    {"norm2.weight", "layer.1.layer_norm.weight", "ffn_norm.weight"},
    {"ffn.fc2.weight", "layer.1.DenseReluDense.wo.weight", "ffn_down.weight"},
};
constexpr const BlockWeight& kQueries = kInEveryBlock[1];
constexpr BlockWeight kDistances = {"pos_embedding.embedding.weight",
                                    "layer.0.SelfAttention.relative_attention_bias.weight",
                                    "attn_rel_b.weight"};
constexpr BlockWeight kGate = {"ffn.gate.0.weight", "layer.1.DenseReluDense.wi_0.weight",
                               "ffn_gate.weight"};
constexpr BlockWeight kGated = {"ffn.fc1.weight", "layer.1.DenseReluDense.wi_1.weight",
                                "ffn_up.weight"};
constexpr BlockWeight kPlain = {"ffn.fc1.weight", "layer.1.DenseReluDense.wi.weight",
                                "ffn_up.weight"};

// How a checkpoint spells the encoder.
struct Spelling {
  const char *name, *tokens, *block, *norm;
  const char* BlockWeight::*weights;

  std::string in_block(const BlockWeight& weight, const std::string& number) const {
    return block + number + "." + weight.*weights;
  }
  bool is_original() const { return weights == &BlockWeight::original; }
};
constexpr const char* kShared = "shared.weight";
constexpr const char* kEmbedTokens = "encoder.embed_tokens.weight";
constexpr const char* kFinalNorm = "encoder.final_layer_norm.weight";
constexpr Spelling kSpellings[] = {
    {"original", "token_embedding.weight", "blocks.", "norm.weight", &BlockWeight::original},
    {"transformers", kShared, "encoder.block.", kFinalNorm, &BlockWeight::transformers},
    {"transformers_embed", kEmbedTokens, "encoder.block.", kFinalNorm, &BlockWeight::transformers},
    {"llama_cpp", "token_embd.weight", "enc.blk.", "enc.output_norm.weight",
     &BlockWeight::llama_cpp},
};

// The kinds that a checkpoint's tensors may be of; empty: no such encoder's.
std::vector<std::string_view> kinds_of(const PartView& view, const Spelling& spelling) {
  const int64_t layers = view.block_count(spelling.in_block(kQueries, "{}"));
  const int64_t tables = view.block_count(spelling.in_block(kDistances, "{}"));
  std::vector<std::string_view> kinds;
  if (tables == 1 && !spelling.is_original()) kinds.emplace_back("t5");
  if (tables > 0 && tables == layers) kinds.emplace_back("umt5");
  return kinds;
}

T5Config read_config(const PartView& view, const Spelling& spelling) {
  const TensorIndex& index = view.index();
  const std::string queries = spelling.in_block(kQueries, "0"),
                    distances = spelling.in_block(kDistances, "0");
  T5Config c;
  c.is_gated = view.contains(spelling.in_block(kGate, "0"));
  c.vocabulary = view.dim(spelling.tokens, 0);
  c.width = view.dim(spelling.tokens, 1);
  c.ffn = view.dim(spelling.in_block(c.is_gated ? kGate : kPlain, "0"), 0);
  c.layers = view.block_count(spelling.in_block(kQueries, "{}"));
  c.shares_distances = view.block_count(spelling.in_block(kDistances, "{}")) < c.layers;
  c.buckets = view.dim(distances, 0);
  c.heads = view.dim(distances, 1);
  c.head_dim = view.parts(queries, 0, c.heads);
  view.require_config(c.width == 4096 && c.heads == 64 && c.ffn == 10240 && c.buckets == 32,
                      "relative_attention_max_distance and layer_norm_epsilon");
  c.max_distance = index.config_integer("relative_attention_max_distance").value_or(c.max_distance);
  c.eps = index.config_real("layer_norm_epsilon").value_or(c.eps);
  if (c.buckets % 4 != 0 || c.max_distance <= c.buckets / 4 || !(c.eps >= 0))
    view.refuse("has numbers in its config that are neither T5's nor umT5's", kOwnConfig);
  return c;
}

}  // namespace

std::optional<Detection> detect_t5(const TensorIndex& checkpoint, const T5Use& use) {
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix :
       {std::string(), own, std::string("text_encoders.umt5xxl.transformer."),
        std::string("text_encoders.t5xxl.transformer.")}) {
    const PartView view(checkpoint, prefix, "text encoder");
    for (const Spelling& spelling : kSpellings) {
      if (!view.contains(spelling.tokens)) continue;
      const auto kinds = kinds_of(view, spelling);
      if (std::ranges::find_first_of(kinds, use.model_types) == kinds.end()) continue;
      view.refuse_quantised();
      return brief_detection_of(std::string(use.component), spelling.name,
                                read_config(view, spelling), prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_t5(const T5Use& use) {
  return brief_detection_of(std::string(use.component), "transformers",
                            T5Config{.vocabulary = 512,
                                     .width = kTinyT5Width,
                                     .heads = 2,
                                     .head_dim = 64,
                                     .ffn = 80,
                                     .layers = 2,
                                     .shares_distances = use.model_types.front() == "t5"});
}

ConfigFields t5_fields(const Detection& part, const T5Use& use) {
  const auto c = whole_config_of<T5Config>(part);
  std::vector<ConfigValue> types;
  for (const std::string_view type : use.model_types) {
    if (c.layers == 1 || (type == "t5") == c.shares_distances)
      types.emplace_back(std::string(type));
  }
  ConfigFields fields;
  fields
      // Says what the whole model is. The decoder is not used.
      .ignored({"is_encoder_decoder", "num_decoder_layers", "output_past"})
      .fixed("is_decoder", {false})  // otherwise rows would see those before them alone
      .of_transformers(std::move(types))
      // How it is trained, and what nothing reads.
      .ignored({"dropout_rate", "classifier_dropout", "initializer_factor", "scalable_attention",
                "n_positions", "scale_decoder_outputs"})
      .told("vocab_size", {c.vocabulary})
      .told("d_model", {c.width})
      .told("d_kv", {c.head_dim})
      .told("d_ff", {c.ffn})
      .told("num_layers", {c.layers})
      .told("num_heads", {c.heads})
      .told("relative_attention_num_buckets", {c.buckets})
      .fixed("feed_forward_proj", {c.is_gated ? "gated-gelu" : "relu"})
      .fixed("dense_act_fn", {c.is_gated ? "gelu_new" : "relu"})
      .fixed("is_gated_act", {c.is_gated})
      .read({"relative_attention_max_distance", "layer_norm_epsilon"});
  return fields;
}

WeightMap t5_map(const Detection& part) {
  const auto c = whole_config_of<T5Config>(part);
  const Spelling* spelling = kSpellings;
  for (const Spelling& row : kSpellings) {
    if (part.spelling == row.name) spelling = &row;
  }
  WeightMap map = {{spelling->tokens, "token_embedding.weight"}, {spelling->norm, "norm.weight"}};
  const auto add = [&](const BlockWeight& weight) {
    map.push_back({spelling->in_block(weight, "{}"), std::string("blocks.{}.") + weight.original});
  };
  for (const BlockWeight& weight : kInEveryBlock) add(weight);
  if (c.is_gated) add(kGate);
  add(c.is_gated ? kGated : kPlain);
  if (c.shares_distances) {
    map.push_back({spelling->in_block(kDistances, "0"), kDistances.original});
  } else {
    add(kDistances);
  }
  if (spelling->is_original()) return map;
  // The table of tokens once more, the decoder, and the tokenizer that single files bring along.
  if (std::string_view(spelling->tokens) == kShared) map.push_back({kEmbedTokens});
  for (const char* unused :
       {"decoder.*", "dec.*", "lm_head.weight", "output.weight", "spiece_model"})
    map.push_back({unused});
  return map;
}

}  // namespace atelier::parts
