// Shape letters: N packed rows, D width, H heads, d head width, L longest sample.
#include "atelier/parts/t5.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace atelier::parts {

using nn::Embedding;
using nn::Linear;
using nn::Module;
using nn::RMSNorm;

namespace {

// The bucket of every difference of key and query position, from 1 - L to L - 1: int64 [2 L - 1].
// The first half of a direction's buckets is for one distance each, the others grow by a factor.
at::Tensor buckets_of(const T5Config& c, int64_t longest, at::Device device) {
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

// What a table of distances adds to the scores: [H, 2 L - 1].
at::Tensor bias_of(const Embedding& table, const at::Tensor& buckets) {
  return table.forward(buckets).t().contiguous();
}

// float16 does not hold all that this model adds up: infinities become as large as transformers
// makes them.
at::Tensor finite(const at::Tensor& x) {
  constexpr double kLargest = 65504.0 - 1000.0;
  return x.scalar_type() == at::kHalf ? x.clamp(-kLargest, kLargest) : x;
}

constexpr const char* kDistances = "pos_embedding.embedding";

}  // namespace

// Inputs: rows [N, D], what distances are of, offsets of the samples. The second one is the bucket
// of each difference of positions [2 L - 1], or where the table is shared, what it adds to the
// scores [H, 2 L - 1]. Outputs: rows.
class T5Block final : public Block {
 public:
  T5Block(Module* parent, int64_t number, const T5Config& c)
      : Block(parent, "blocks." + std::to_string(number)),
        head_dim_(c.head_dim),
        norm1_(this, "norm1", c.width, c.eps),
        q_(this, "attn.q", c.width, c.heads * c.head_dim, /*bias=*/false),
        k_(this, "attn.k", c.width, c.heads * c.head_dim, /*bias=*/false),
        v_(this, "attn.v", c.width, c.heads * c.head_dim, /*bias=*/false),
        o_(this, "attn.o", c.heads * c.head_dim, c.width, /*bias=*/false),
        pos_embedding_(c.shares_distances
                           ? nullptr
                           : std::make_unique<Embedding>(this, kDistances, c.buckets, c.heads)),
        norm2_(this, "norm2", c.width, c.eps),
        gate_(c.is_gated
                  ? std::make_unique<Linear>(this, "ffn.gate.0", c.width, c.ffn, /*bias=*/false)
                  : nullptr),
        up_(this, "ffn.fc1", c.width, c.ffn, /*bias=*/false),
        down_(this, "ffn.fc2", c.ffn, c.width, /*bias=*/false) {}

  std::string_view kind() const override { return pos_embedding_ ? "umt5" : "t5"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor bias = pos_embedding_ ? bias_of(*pos_embedding_, in[1]) : in[1];
    const at::Tensor attended = attend(norm1_.forward(in[0]), bias, Segments::from_tensor(in[2]));
    const at::Tensor x = finite(in[0] + attended);
    const at::Tensor h = norm2_.forward(x);
    const at::Tensor wide =
        gate_ ? ops::gelu_tanh(gate_->forward(h)) * up_.forward(h) : at::relu(up_.forward(h));
    return {finite(x + down_.forward(wide))};
  }

 private:
  at::Tensor attend(const at::Tensor& h, const at::Tensor& bias, const Segments& rows) const {
    const auto heads = [&](const Linear& layer) {
      const at::Tensor y = layer.forward(h);
      return y.view({y.size(0), y.size(1) / head_dim_, head_dim_});
    };
    const ops::AttentionOptions options = {.scale = 1, .offset_bias = bias};
    return o_.forward(ops::attention(heads(q_), heads(k_), heads(v_), rows, options));
  }

  int64_t head_dim_;
  RMSNorm norm1_;
  Linear q_, k_, v_, o_;
  std::unique_ptr<Embedding> pos_embedding_;
  RMSNorm norm2_;
  std::unique_ptr<Linear> gate_;
  Linear up_, down_;
};

T5Encoder::T5Encoder(const T5Config& c)
    : TextEncoder(nullptr, ""),
      config_(c),
      token_embedding_(this, "token_embedding", c.vocabulary, c.width),
      pos_embedding_(c.shares_distances
                         ? std::make_unique<Embedding>(this, kDistances, c.buckets, c.heads)
                         : nullptr),
      norm_(this, "norm", c.width, c.eps) {
  for (int64_t i = 0; i < c.layers; ++i) blocks_.push_back(std::make_unique<T5Block>(this, i, c));
}

T5Encoder::~T5Encoder() = default;

at::Tensor T5Encoder::forward(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner) {
  at::Tensor x = token_embedding_.forward(ids_N);
  const at::Tensor buckets = buckets_of(config_, rows.longest(), x.device());
  const at::Tensor distances = pos_embedding_ ? bias_of(*pos_embedding_, buckets) : buckets;
  for (const auto& block : blocks_) x = runner.run(*block, {x, distances, rows.tensor()})[0];
  return norm_.forward(x);
}

}  // namespace atelier::parts
