// Shape letters: N packed rows, S samples, D width.
#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/parts/clip.h"

#include "encoder_layer.h"
#include "hidden_states.h"

namespace atelier::parts {

using nn::LayerNorm;
using nn::Linear;

int64_t ClipTextConfig::layers_run() const {
  return pools ? layers : layers_of_states(*this);
}

ClipText::ClipText(const ClipTextConfig& c)
    : TextEncoder(nullptr, ""),
      config_(c),
      token_embedding_(this, "embeddings.token_embedding", c.vocabulary, c.width),
      position_embedding_(declare("embeddings.position_embedding.weight", {c.positions, c.width})) {
  const EncoderLayerOptions options = {
      .kind = "clip_text",
      .width = c.width,
      .heads = c.heads,
      .mlp_width = c.mlp_width,
      .eps = c.eps,
      .activation = c.quick_gelu ? Activation::kQuickGelu : Activation::kGelu,
      .causal = true};
  for (int64_t i = 0; i < c.layers_run(); ++i) {
    layers_.push_back(
        std::make_unique<EncoderLayer>(this, "encoder.layers." + std::to_string(i), options));
  }
  if (c.norms_states || c.pools)
    norm_ = std::make_unique<LayerNorm>(this, "final_layer_norm", c.width, c.eps);
  if (c.projection) {
    projection_ =
        std::make_unique<Linear>(this, "text_projection", c.width, c.projection, /*bias=*/false);
  }
}

ClipText::~ClipText() = default;

at::Tensor ClipText::embedded(const at::Tensor& ids_N, const Segments& rows) const {
  if (rows.longest() > config_.positions) {
    throw Error(ErrorCode::kInvalidArgument,
                "a text has " + std::to_string(rows.longest()) + " tokens, CLIP takes " +
                    std::to_string(config_.positions),
                "shorten it");
  }
  const at::Tensor table = position_embedding_->draw();
  Tensors positions;
  for (int64_t s = 0; s < rows.count(); ++s)
    positions.push_back(table.narrow(0, 0, rows.length(s)));
  return token_embedding_.forward(ids_N) + at::cat(positions);
}

at::Tensor ClipText::pooled(const at::Tensor& last_ND, const at::Tensor& ids_N,
                            const Segments& rows) const {
  // The first of the largest values is the end token's, whether ids are compared or matched.
  const at::Tensor marks =
      config_.end_token == 2 ? ids_N : ids_N.eq(config_.end_token).to(at::kInt);
  Tensors ends;
  for (int64_t s = 0; s < rows.count(); ++s) {
    ends.push_back(marks.narrow(0, rows.offset(s), rows.length(s)).argmax(0, /*keepdim=*/true) +
                   rows.offset(s));
  }
  const at::Tensor pooled =
      norm_->forward(last_ND.index_select(0, at::cat(ends).to(last_ND.device())));
  return projection_ ? projection_->forward(pooled) : pooled;
}

ClipText::Encoded ClipText::encode(const at::Tensor& ids_N, const Segments& rows,
                                   BlockRunner& runner) {
  Tensors inputs = {embedded(ids_N, rows), rows.tensor()};
  Tensors states = hidden_states(layers_, inputs, layers_before_states(config_), runner);
  Encoded encoded;
  if (config_.norms_states) {
    for (at::Tensor& state : states) state = norm_->forward(state);
  }
  encoded.states_ND = side_by_side(states);
  if (config_.pools) encoded.pooled_SD = pooled(inputs[0], ids_N, rows);
  return encoded;
}

at::Tensor ClipText::forward(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner) {
  return encode(ids_N, rows, runner).states_ND;
}

}  // namespace atelier::parts
