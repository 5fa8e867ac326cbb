// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, L rows of a prompt, N packed rows of all samples, S stretches of rows that have one
// noise level: of a sample its known frames, where it has some, and those that are made.
#include "longcat.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "addition.h"
#include "dit.h"

namespace wan {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
namespace ops = atelier::ops;

namespace {

constexpr double kLongCatEps = 1e-6;

LongCatRows rows_in(const Tensors& in) {
  LongCatRows rows = {.all = Segments::from_tensor(in[LongCatBlock::kOffsets])};
  if (in.size() > LongCatBlock::kKnownOffsets)
    rows.parts = {Segments::from_tensor(in[LongCatBlock::kKnownOffsets]),
                  Segments::from_tensor(in[LongCatBlock::kMadeOffsets])};
  return rows;
}

}  // namespace

LongCatBlock::LongCatBlock(Module* parent, std::string name, const LongCatConfig& c)
    : Block(parent, std::move(name)),
      head_dim_(c.head_dim()),
      modulation_(this, "adaLN_modulation.1", c.modulation_width, 6 * c.width, /*bias=*/true,
                  kFloat32),
      qkv_(this, "attn.qkv", c.width, 3 * c.width),
      proj_(this, "attn.proj", c.width, c.width),
      q_norm_(this, "attn.q_norm", c.head_dim(), kLongCatEps),
      k_norm_(this, "attn.k_norm", c.head_dim(), kLongCatEps),
      text_norm_(this, "pre_crs_attn_norm", c.width, kLongCatEps, kFloat32),
      text_q_(this, "cross_attn.q_linear", c.width, c.width),
      text_kv_(this, "cross_attn.kv_linear", c.width, 2 * c.width),
      text_proj_(this, "cross_attn.proj", c.width, c.width),
      text_q_norm_(this, "cross_attn.q_norm", c.head_dim(), kLongCatEps),
      text_k_norm_(this, "cross_attn.k_norm", c.head_dim(), kLongCatEps),
      gate_(this, "ffn.w1", c.width, c.mlp_width, /*bias=*/false),
      down_(this, "ffn.w2", c.mlp_width, c.width, /*bias=*/false),
      up_(this, "ffn.w3", c.width, c.mlp_width, /*bias=*/false) {}

LongCatBlock::~LongCatBlock() = default;

at::Tensor LongCatBlock::heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1) / head_dim_, head_dim_});
}

// Known rows look at the known ones of their sample, the others at all.
at::Tensor LongCatBlock::among_rows(const at::Tensor& x, const Tensors& in,
                                    const LongCatRows& rows) const {
  const auto turn = [&](const at::Tensor& t, const atelier::nn::RMSNorm& norm) {
    return ops::norm_rope(heads(t), norm.weight->draw(), in[kCos], in[kSin],
                          ops::RopeLayout::kInterleaved, norm.eps);
  };
  const std::vector<at::Tensor> qkv = qkv_.forward(x).chunk(3, 1);
  const at::Tensor q = turn(qkv[0], q_norm_), k = turn(qkv[1], k_norm_), v = heads(qkv[2]);
  if (!rows.parts) return proj_.forward(ops::attention(q, k, v, rows.all));
  const auto& [known, made] = *rows.parts;
  const auto split = [&](const at::Tensor& t) { return atelier::split_rows(t, known, made); };
  const auto [known_q, made_q] = split(q);
  const at::Tensor of_known = ops::attention(known_q, split(k).first, split(v).first, known);
  const at::Tensor of_made = ops::attention(made_q, k, v, made, rows.all, {});
  return proj_.forward(atelier::join_rows(of_known, known, of_made, made));
}

at::Tensor LongCatBlock::to_text(const at::Tensor& x, const Tensors& in,
                                 const Segments& rows) const {
  const at::Tensor q = text_q_norm_.forward(heads(text_q_.forward(text_norm_.forward(x))));
  const std::vector<at::Tensor> kv = text_kv_.forward(in[kText]).chunk(2, 1);
  return text_proj_.forward(ops::attention(q, text_k_norm_.forward(heads(kv[0])), heads(kv[1]),
                                           rows, Segments::from_tensor(in[kTextOffsets]), {}));
}

Tensors LongCatBlock::forward(const Tensors& in) {
  const LongCatRows rows = rows_in(in);
  const Segments levels = Segments::from_tensor(in[kLevelOffsets]);
  const std::vector<at::Tensor> m = modulation_.forward(at::silu(in[kTime])).chunk(6, 1);
  const at::Tensor attended =
      among_rows(ops::norm_modulate(in[kRows], m[0], m[1], levels, kLongCatEps), in, rows);
  at::Tensor x = ops::gate_residual(in[kRows], attended, m[2], levels);
  if (rows.parts) {  // known rows do not read the text
    const auto [known, made] = atelier::split_rows(x, rows.parts->known, rows.parts->made);
    x = atelier::join_rows(known, rows.parts->known, made + to_text(made, in, rows.parts->made),
                           rows.parts->made);
  } else {
    x = x + to_text(x, in, rows.all);
  }
  const at::Tensor normed = ops::norm_modulate(x, m[3], m[4], levels, kLongCatEps);
  const Tensors gated = atelier::nn::forward_all({&gate_, &up_}, normed);
  return {ops::gate_residual(x, down_.forward(ops::swiglu(gated[0], gated[1])), m[5], levels)};
}

LongCat::LongCat(const LongCatConfig& c)
    : Denoiser(nullptr, "dit"),
      config_(c),
      patches_(this, "x_embedder.proj", c.channels, c.width, {1, c.patch, c.patch},
               {.stride = {1, c.patch, c.patch}}),
      time_in_(this, "t_embedder.mlp.0", c.time_width, c.modulation_width, /*bias=*/true, kFloat32),
      time_out_(this, "t_embedder.mlp.2", c.modulation_width, c.modulation_width, /*bias=*/true,
                kFloat32),
      text_in_(this, "y_embedder.y_proj.0", c.text_width, c.width),
      text_out_(this, "y_embedder.y_proj.2", c.width, c.width),
      head_modulation_(this, "final_layer.adaLN_modulation.1", c.modulation_width, 2 * c.width,
                       /*bias=*/true, kFloat32),
      head_(this, "final_layer.linear", c.width, c.channels * c.patch * c.patch) {
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.push_back(std::make_unique<LongCatBlock>(this, "blocks." + std::to_string(i), c));
}

LongCat::~LongCat() = default;

std::vector<atelier::ConditioningEntry> LongCat::entries() const {
  return {{.width = config_.text_width}, {.name = kKnownClip}};
}

// [B L, D]. The rows behind a prompt's tokens are zeros, and are attended to.
at::Tensor LongCat::text(const atelier::PackedRows& prompts, at::ScalarType dtype) const {
  if (prompts.rows.longest() > kTextRows) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "prompt_embeds of " + std::to_string(prompts.rows.longest()) +
                             " rows, at most " + std::to_string(kTextRows) + " are read");
  }
  const at::Tensor rows =
      text_out_.forward(ops::gelu_tanh(text_in_.forward(prompts.values.to(dtype))));
  return atelier::pad_rows(rows, prompts.rows, kTextRows).flatten(0, 1);
}

// Waves of all rows, [N, head_dim / 2] each.
const atelier::nn::Waves& LongCat::waves(int64_t B, int64_t T, int64_t H, int64_t W,
                                         at::Device device) {
  return waves_.get({{B, T, H, W}, device}, [&]() -> atelier::nn::Waves {
    const auto options = at::TensorOptions(device).dtype(at::kDouble);
    const at::Tensor angles =
        token_angles(at::arange(T, options), H, W, config_.head_dim()).repeat({B, 1});
    return {at::cos(angles).to(at::kFloat), at::sin(angles).to(at::kFloat)};
  });
}

namespace {

// How many of each sample's frames are known.
std::vector<int64_t> known_frames(const atelier::DenoiseInputs& in) {
  std::vector<int64_t> frames;
  for (const atelier::Conditioning* cond : in.cond) {
    const bool is_known = cond->contains(kKnownClip);
    frames.push_back(is_known ? atelier::named_tensor(*cond, kKnownClip, 4).size(1) : 0);
    if (frames.back() < in.x_BCTHW.size(2)) continue;
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "known_clip of shape " + atelier::shape_text(cond->at(kKnownClip)) +
                             ", and latents of shape " + atelier::shape_text(in.x_BCTHW) +
                             " have no frame behind it");
  }
  return frames;
}

// A sample's rows, whose `known` frames come first, among those of all.
struct LongCatLayout {
  LongCatLayout(const std::vector<int64_t>& known, int64_t frames, int64_t in_a_frame)
      : known_lengths(known), made_lengths(known), all_lengths(known.size(), frames * in_a_frame) {
    for (size_t b = 0; b < known.size(); ++b) {
      known_lengths[b] *= in_a_frame;
      made_lengths[b] = all_lengths[b] - known_lengths[b];
      if (known[b] > 0) level_lengths.push_back(known_lengths[b]);
      level_lengths.push_back(made_lengths[b]);
    }
  }

  bool knows() const { return level_lengths.size() > all_lengths.size(); }

  std::vector<int64_t> known_lengths, made_lengths, all_lengths, level_lengths;
};

// Levels [S] of the stretches, 0 where frames are known.
at::Tensor levels_beside(const std::vector<int64_t>& known, const at::Tensor& sigma_B) {
  if (std::ranges::all_of(known, [](int64_t frames) { return frames == 0; })) return sigma_B;
  Tensors levels;
  for (size_t b = 0; b < known.size(); ++b) {
    const at::Tensor sigma = sigma_B.narrow(0, static_cast<int64_t>(b), 1);
    if (known[b] > 0) levels.push_back(at::zeros_like(sigma));
    levels.push_back(sigma);
  }
  return at::cat(levels);
}

}  // namespace

at::Tensor LongCat::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  const at::Tensor& x_BCTHW = in.x_BCTHW;
  const int64_t B = x_BCTHW.size(0), C = x_BCTHW.size(1), T = x_BCTHW.size(2), p = config_.patch;
  const int64_t H = x_BCTHW.size(3) / p, W = x_BCTHW.size(4) / p;
  const std::vector<int64_t> known = known_frames(in);
  const LongCatLayout layout(known, T, H * W);
  const SharedRows known_rows{Segments(layout.known_lengths)},
      made_rows{Segments(layout.made_lengths)};
  const SharedRows rows =
      layout.knows() ? join(known_rows, made_rows) : SharedRows{Segments(layout.all_lengths)};
  const Segments level_rows = rows.cut(Segments(layout.level_lengths));
  const at::Tensor channels =
      atelier::nn::time_channels(levels_beside(known, in.sigma_B) * 1000, config_.time_width);
  const at::Tensor time = time_out_.forward(at::silu(time_in_.forward(channels)));
  const atelier::nn::Waves& rope = waves(B, T, H, W, x_BCTHW.device());

  Tensors inputs = {
      rows.take(patches_.forward(x_BCTHW).permute({0, 2, 3, 4, 1}).flatten(0, 3)),
      rows.take(rope.cos),
      rows.take(rope.sin),
      rows.rows().tensor(),
      level_rows.tensor(),
      time,
      text(atelier::pack_entry(in.cond, atelier::kPromptEmbeds), x_BCTHW.scalar_type()),
      Segments::uniform(B, kTextRows).tensor()};
  if (layout.knows()) {
    inputs.push_back(known_rows.rows().tensor());
    inputs.push_back(made_rows.rows().tensor());
  }
  for (const auto& block : blocks_) inputs[LongCatBlock::kRows] = runner.run(*block, inputs)[0];

  const std::vector<at::Tensor> m = head_modulation_.forward(at::silu(time)).chunk(2, 1);
  at::Tensor own = head_.forward(
      ops::norm_modulate(inputs[LongCatBlock::kRows], m[0], m[1], level_rows, kLongCatEps));
  if (layout.knows()) {
    const auto [of_known, of_made] = atelier::split_rows(own, known_rows.rows(), made_rows.rows());
    own = atelier::join_rows(known_rows.gather(of_known), Segments(layout.known_lengths),
                             made_rows.gather(of_made), Segments(layout.made_lengths));
  } else {
    own = rows.gather(own);
  }
  // Values of a token: its rows, its columns, then channels. It is trained to give clean - noise.
  return own.view({B, T, H, W, p, p, C})
      .permute({0, 6, 1, 2, 4, 3, 5})
      .reshape({B, C, T, H * p, W * p})
      .neg();
}

}  // namespace wan
