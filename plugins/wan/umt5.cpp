// Shape letters: N packed rows, D width, H heads, d head width, L longest sample.
#include "umt5.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/part_view.h"

namespace wan {

using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::Segments;
using atelier::TensorIndex;
using atelier::Tensors;
using atelier::nn::Embedding;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

struct Renamed {
  const char *original, *transformers;
};
constexpr Renamed kInEveryBlock[] = {
    {"norm1.weight", "layer.0.layer_norm.weight"},
    {"attn.q.weight", "layer.0.SelfAttention.q.weight"},
    {"attn.k.weight", "layer.0.SelfAttention.k.weight"},
    {"attn.v.weight", "layer.0.SelfAttention.v.weight"},
    {"attn.o.weight", "layer.0.SelfAttention.o.weight"},
    {"pos_embedding.embedding.weight", "layer.0.SelfAttention.relative_attention_bias.weight"},
    {"norm2.weight", "layer.1.layer_norm.weight"},
    {"ffn.gate.0.weight", "layer.1.DenseReluDense.wi_0.weight"},
    {"ffn.fc1.weight", "layer.1.DenseReluDense.wi_1.weight"},
    {"ffn.fc2.weight", "layer.1.DenseReluDense.wo.weight"},
};

// How a checkpoint spells the encoder.
struct Spelling {
  const char *name, *tokens, *block;
  bool is_original;

  std::string in_block(const Renamed& weight, const std::string& number) const {
    return block + number + "." + (is_original ? weight.original : weight.transformers);
  }
};
constexpr const char* kShared = "shared.weight";
constexpr const char* kEmbedTokens = "encoder.embed_tokens.weight";
constexpr Spelling kSpellings[] = {
    {"original", "token_embedding.weight", "blocks.", true},
    {"transformers", kShared, "encoder.block.", false},
    {"transformers_embed", kEmbedTokens, "encoder.block.", false},
};
// The last is that of the encoder in a single file of all components.
constexpr const char* kPrefixes[] = {"", "text_encoder.", "text_encoders.umt5xxl.transformer."};

constexpr const Renamed& kQueries = kInEveryBlock[1];
constexpr const Renamed& kBias = kInEveryBlock[5];
constexpr const Renamed& kGate = kInEveryBlock[7];

Umt5Config read_config(const PartView& view, const Spelling& spelling) {
  const TensorIndex& index = view.index();
  const std::string queries = spelling.in_block(kQueries, "0"),
                    bias = spelling.in_block(kBias, "0");
  Umt5Config c;
  c.vocabulary = view.dim(spelling.tokens, 0);
  c.width = view.dim(spelling.tokens, 1);
  c.ffn = view.dim(spelling.in_block(kGate, "0"), 0);
  c.layers = view.block_count(spelling.in_block(kQueries, "{}"));
  c.buckets = view.dim(bias, 0);
  c.heads = view.dim(bias, 1);
  c.head_dim = view.parts(queries, 0, c.heads);
  view.require_config(c.width == 4096 && c.heads == 64 && c.ffn == 10240 && c.buckets == 32,
                      "relative_attention_max_distance and layer_norm_epsilon");
  c.max_distance = index.config_integer("relative_attention_max_distance").value_or(c.max_distance);
  c.eps = index.config_real("layer_norm_epsilon").value_or(c.eps);
  if (c.buckets % 4 != 0 || c.max_distance <= c.buckets / 4 || !(c.eps >= 0))
    view.refuse("has numbers in its config that are no umT5's", kOwnConfig);
  return c;
}

// The bucket of every difference of key and query position, from 1 - L to L - 1: int64 [2 L - 1].
// The first half of a direction's buckets is for one distance each, the others grow by a factor.
at::Tensor buckets_of(const Umt5Config& c, int64_t longest, at::Device device) {
  const int64_t count = std::max<int64_t>(0, 2 * longest - 1);
  const at::Tensor offsets = at::arange(count, at::kLong) - (longest - 1);
  const int64_t side = c.buckets / 2, exact = side / 2;
  const at::Tensor distance = offsets.abs();
  // In float32, as the model was trained: it decides at the edges of buckets.
  const at::Tensor ratio =
      at::log(distance.clamp_min(exact).to(at::kFloat) / exact) /
      std::log(static_cast<double>(c.max_distance) / static_cast<double>(exact));
  const at::Tensor far = ((ratio * (side - exact)).to(at::kLong) + exact).clamp_max(side - 1);
  const at::Tensor buckets =
      offsets.gt(0).to(at::kLong) * side + at::where(distance.lt(exact), distance, far);
  return buckets.to(device);
}

// float16 does not hold all that this model adds up: infinities become as large as transformers
// makes them.
at::Tensor finite(const at::Tensor& x) {
  constexpr double kLargest = 65504.0 - 1000.0;
  return x.scalar_type() == at::kHalf ? x.clamp(-kLargest, kLargest) : x;
}

}  // namespace

std::optional<Detection> detect_umt5(const TensorIndex& checkpoint) {
  for (const char* prefix : kPrefixes) {
    const PartView view(checkpoint, prefix, "text encoder");
    for (const Spelling& spelling : kSpellings) {
      if (!view.contains(spelling.tokens)) continue;
      // T5 has one table of distances for all layers, in the first.
      const int64_t tables = view.block_count(spelling.in_block(kBias, "{}"));
      if (tables == 0 || tables != view.block_count(spelling.in_block(kQueries, "{}"))) continue;
      view.refuse_quantised();
      return atelier::detection_of("text_encoder", spelling.name, read_config(view, spelling),
                                   prefix);
    }
  }
  return std::nullopt;
}

atelier::ConfigFields umt5_fields(const Detection& part) {
  const auto c = atelier::config_of<Umt5Config>(part);
  atelier::ConfigFields fields;
  fields
      // Says what the whole model is. The decoder is not used.
      .ignored({"is_encoder_decoder", "num_decoder_layers", "output_past"})
      .fixed("is_decoder", {false})  // otherwise rows would see those before them alone
      .of_transformers({"umt5"})
      // How it is trained, and what nothing reads.
      .ignored({"dropout_rate", "classifier_dropout", "initializer_factor", "scalable_attention"})
      .told("vocab_size", {c.vocabulary})
      .told("d_model", {c.width})
      .told("d_kv", {c.head_dim})
      .told("d_ff", {c.ffn})
      .told("num_layers", {c.layers})
      .told("num_heads", {c.heads})
      .told("relative_attention_num_buckets", {c.buckets})
      .fixed("feed_forward_proj", {"gated-gelu"})
      .fixed("dense_act_fn", {"gelu_new"})
      .fixed("is_gated_act", {true})
      .read({"relative_attention_max_distance", "layer_norm_epsilon"});
  return fields;
}

atelier::WeightMap umt5_map(const Detection& part) {
  const Spelling* spelling = kSpellings;
  for (const Spelling& row : kSpellings) {
    if (part.spelling == row.name) spelling = &row;
  }
  const char* norm = spelling->is_original ? "norm.weight" : "encoder.final_layer_norm.weight";
  atelier::WeightMap map = {{spelling->tokens, "token_embedding.weight"}, {norm, "norm.weight"}};
  for (const Renamed& weight : kInEveryBlock)
    map.push_back({spelling->in_block(weight, "{}"), std::string("blocks.{}.") + weight.original});
  if (spelling->is_original) return map;
  // The table of tokens once more, the decoder, and the tokenizer that single files bring along.
  if (std::string_view(spelling->tokens) == kShared) map.push_back({kEmbedTokens});
  for (const char* unused : {"decoder.*", "lm_head.weight", "spiece_model"})
    map.push_back({unused});
  return map;
}

// Inputs: rows [N, D], the bucket of each difference of positions [2 L - 1], offsets of the
// samples. Outputs: rows.
class Umt5Block final : public atelier::Block {
 public:
  Umt5Block(Module* parent, int64_t number, const Umt5Config& c)
      : Block(parent, "blocks." + std::to_string(number)),
        head_dim_(c.head_dim),
        norm1_(this, "norm1", c.width, c.eps),
        q_(this, "attn.q", c.width, c.heads * c.head_dim, /*bias=*/false),
        k_(this, "attn.k", c.width, c.heads * c.head_dim, /*bias=*/false),
        v_(this, "attn.v", c.width, c.heads * c.head_dim, /*bias=*/false),
        o_(this, "attn.o", c.heads * c.head_dim, c.width, /*bias=*/false),
        pos_embedding_(this, "pos_embedding.embedding", c.buckets, c.heads),
        norm2_(this, "norm2", c.width, c.eps),
        gate_(this, "ffn.gate.0", c.width, c.ffn, /*bias=*/false),
        up_(this, "ffn.fc1", c.width, c.ffn, /*bias=*/false),
        down_(this, "ffn.fc2", c.ffn, c.width, /*bias=*/false) {}

  std::string_view kind() const override { return "umt5"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor attended = attend(norm1_.forward(in[0]), in[1], Segments::from_tensor(in[2]));
    const at::Tensor x = finite(in[0] + attended);
    const at::Tensor h = norm2_.forward(x);
    return {finite(x + down_.forward(ops::gelu_tanh(gate_.forward(h)) * up_.forward(h)))};
  }

 private:
  at::Tensor attend(const at::Tensor& h, const at::Tensor& buckets, const Segments& rows) const {
    const auto heads = [&](const Linear& layer) {
      const at::Tensor y = layer.forward(h);
      return y.view({y.size(0), y.size(1) / head_dim_, head_dim_});
    };
    const ops::AttentionOptions options = {
        .scale = 1, .offset_bias = pos_embedding_.forward(buckets).t().contiguous()};
    return o_.forward(ops::attention(heads(q_), heads(k_), heads(v_), rows, options));
  }

  int64_t head_dim_;
  RMSNorm norm1_;
  Linear q_, k_, v_, o_;
  Embedding pos_embedding_;
  RMSNorm norm2_;
  Linear gate_, up_, down_;
};

Umt5::Umt5(const Umt5Config& c)
    : TextEncoder(nullptr, "text_encoder"),
      config_(c),
      token_embedding_(this, "token_embedding", c.vocabulary, c.width),
      norm_(this, "norm", c.width, c.eps) {
  for (int64_t i = 0; i < c.layers; ++i) blocks_.push_back(std::make_unique<Umt5Block>(this, i, c));
}

Umt5::~Umt5() = default;

at::Tensor Umt5::forward(const at::Tensor& ids_N, const Segments& rows,
                         atelier::BlockRunner& runner) {
  at::Tensor x = token_embedding_.forward(ids_N);
  const at::Tensor buckets = buckets_of(config_, rows.longest(), x.device());
  for (const auto& block : blocks_) x = runner.run(*block, {x, buckets, rows.tensor()})[0];
  return norm_.forward(x);
}

}  // namespace wan
