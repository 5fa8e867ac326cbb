// Shape letters: N packed rows, D width.
#include "text_encoder.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/nn/waves.h"

namespace qwen_image {

using atelier::Segments;

namespace {

// Without images all three axes of a position count up together, so one angle per pair of channels
// is enough.
atelier::parts::LanguageModelConfig language_model(const TextEncoderConfig& c) {
  return {.layers = c.layers,
          .width = c.width,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .mlp_width = c.mlp_width,
          .vocabulary = c.vocabulary,
          .qkv_bias = true,
          .head_norms = false,
          .window = c.window,
          .windowed = c.windowed,
          .rope_theta = c.rope_theta,
          .eps = c.eps,
          .states = {-1}};
}

}  // namespace

TextEncoder::TextEncoder(const TextEncoderConfig& c)
    : LanguageModel(language_model(c)), config_(c) {}

TextEncoder::~TextEncoder() = default;

at::Tensor TextEncoder::forward(const at::Tensor& ids_N, std::span<const PictureRows> pictures,
                                const at::Tensor& picture_LD, atelier::BlockRunner& runner) {
  const at::Tensor text = embedded(ids_N);
  const int64_t N = text.size(0);
  std::vector<at::Tensor> parts;
  int64_t next = 0, used = 0;
  for (const PictureRows& picture : pictures) {
    const int64_t count = picture.rows * picture.columns;
    parts.push_back(text.narrow(0, next, picture.start - next));
    parts.push_back(picture_LD.narrow(0, used, count).to(text.options()));
    next = picture.start + count;
    used += count;
  }
  parts.push_back(text.narrow(0, next, N - next));

  // The first pairs of channels turn with the time, others with the row or the column.
  const auto places = token_places(N, pictures).to(at::kFloat).split(1, 0);
  std::vector<at::Tensor> angles;
  int64_t first = 0;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t count = config_.sections[axis];
    angles.push_back(atelier::nn::rope_angles(places[axis][0], config_.head_dim, config_.rope_theta)
                         .narrow(1, first, count));
    first += count;
  }
  const at::Tensor angle = at::cat(angles, 1).to(text.device());
  return states_of(at::cat(parts), {at::cos(angle), at::sin(angle)}, {}, Segments({N}), runner);
}

at::Tensor token_places(int64_t N, std::span<const PictureRows> pictures) {
  at::Tensor places = at::empty({3, N}, at::kLong);
  int64_t token = 0, place = 0;
  const auto count_up = [&](int64_t end) {
    places.narrow(1, token, end - token)
        .copy_(at::arange(place, place + end - token, at::kLong).unsqueeze(0));
    place += end - token;
    token = end;
  };
  for (const PictureRows& picture : pictures) {
    count_up(picture.start);
    const int64_t count = picture.rows * picture.columns;
    const at::Tensor number = at::arange(count, at::kLong);
    const at::Tensor row = at::floor_divide(number, picture.columns);
    places.narrow(1, token, count)
        .copy_(at::stack({at::zeros_like(number), row, number - row * picture.columns}) + place);
    token += count;
    place += std::max(picture.rows, picture.columns);
  }
  count_up(N);
  return places;
}

}  // namespace qwen_image
