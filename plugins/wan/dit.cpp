// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, L rows of a prompt, N packed rows of all samples, S stretches of rows that have one
// noise level: one a sample, or more where the first frame or what stands beside is clean.
#include "dit.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/pointwise.h"

#include "animate2.h"
#include "camera.h"
#include "dancer.h"
#include "fun.h"
#include "motion.h"
#include "s2v.h"

namespace wan {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
using atelier::nn::Module;
using atelier::nn::Waves;
namespace ops = atelier::ops;

namespace {

constexpr double kRopeTheta = 10000;

// What stands beside the latents of each sample, [B, channels, T, H, W]. A sample may lack it where
// it `is_optional`: it is zero there.
at::Tensor beside(const atelier::DenoiseInputs& in, const char* name, int64_t channels,
                  bool is_optional) {
  const at::Tensor& x = in.x_BCTHW;
  std::vector<int64_t> sizes = x.sizes().slice(1).vec();
  sizes[0] = channels;
  Tensors values;
  for (const atelier::Conditioning* cond : in.cond) {
    values.push_back(is_optional && !cond->contains(name)
                         ? at::zeros(sizes, x.options())
                         : atelier::named_tensor(*cond, name, 4).to(x.scalar_type()));
    if (values.back().sizes() != sizes) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           std::string(name) + " of shape " + atelier::shape_text(values.back()) +
                               ", it does not fit latents of shape " + atelier::shape_text(x));
    }
  }
  return at::stack(values);
}

}  // namespace

at::Tensor token_angles(const at::Tensor& frame_positions, int64_t height, int64_t width,
                        int64_t head_dim, int64_t first_column) {
  const auto options = frame_positions.options();
  return token_angles(frame_positions, at::arange(height, options),
                      at::arange(first_column, first_column + width, options), head_dim);
}

at::Tensor token_angles(const at::Tensor& frame_positions, const at::Tensor& row_positions,
                        const at::Tensor& column_positions, int64_t head_dim) {
  const int64_t side = head_dim / 6 * 2;  // channels of rows, and of columns
  const int64_t height = row_positions.size(0), width = column_positions.size(0);
  const std::vector<int64_t> grid = {frame_positions.size(0), height, width, -1};
  const auto angles = [](const at::Tensor& positions, int64_t channels) {
    return atelier::nn::rope_angles(positions, channels, kRopeTheta);
  };
  return at::cat({angles(frame_positions, head_dim - 2 * side)
                      .view({-1, 1, 1, (head_dim - 2 * side) / 2})
                      .expand(grid),
                  angles(row_positions, side).view({1, height, 1, -1}).expand(grid),
                  angles(column_positions, side).view({1, 1, width, -1}).expand(grid)},
                 3)
      .flatten(0, 2);
}

Embeddings::Embeddings(Module* parent, const DitConfig& c)
    : time_width_(c.time_width),
      patches_(parent, "patch_embedding", c.channels + c.control_channels + c.given_channels,
               c.width, {1, c.patch, c.patch}, {.stride = {1, c.patch, c.patch}}),
      text_in_(parent, "text_embedding.0", c.text_width, c.width),
      text_out_(parent, "text_embedding.2", c.width, c.width),
      time_in_(parent, "time_embedding.0", c.time_width, c.width, /*bias=*/true, kFloat32),
      time_out_(parent, "time_embedding.2", c.width, c.width, /*bias=*/true, kFloat32),
      time_projection_(parent, "time_projection.1", c.width, 6 * c.width, /*bias=*/true, kFloat32) {
}

Dit::Dit(const DitConfig& c)
    : Denoiser(nullptr, "dit"), config_(c), embeddings_(this, c), head_(this, "head", c) {
  if (c.image_width > 0) image_embedding_ = std::make_unique<ImageEmbedding>(this, "img_emb", c);
  if (c.has_reference) reference_ = std::make_unique<ReferenceFrame>(this, c);
  if (c.has_camera) camera_ = std::make_unique<CameraControl>(this, c);
  if (reference_) additions_.push_back(reference_.get());
  if (camera_) additions_.push_back(camera_.get());
  if (c.audio_states > 0) speech_ = std::make_unique<Speech>(this, c);
  if (speech_) additions_.push_back(speech_.get());
  if (c.music_channels > 0) {
    dance_ = std::make_unique<Dance>(this, c);
    additions_.push_back(dance_.get());
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    if (c.is_driven) {
      blocks_.push_back(std::make_unique<DrivenBlock>(this, name + ".block", c));
    } else {
      blocks_.push_back(std::make_unique<DitBlock>(this, name, c));
    }
    if (speech_) speech_->add_injector(i);
    if (dance_) dance_->declare_behind(i);
  }
  if (!c.is_driven) return;
  driving_ = std::make_unique<Driving>(config_, embeddings_, *image_embedding_, blocks_);
  additions_.push_back(driving_.get());
}

Dit::~Dit() = default;

std::vector<atelier::ConditioningEntry> Dit::entries() const {
  std::vector<atelier::ConditioningEntry> entries = {{.width = config_.text_width}};
  if (config_.control_channels > 0) {  // a sample may lack any
    entries.push_back({.name = kControlClip});
    if (reference_) entries.push_back({.name = kReference});
    if (config_.image_width > 0) entries.push_back({.name = kImageEmbeds});
  } else if (config_.image_width > 0) {
    entries.push_back({.name = kImageEmbeds,
                       .width = config_.image_width,
                       .lengths = "image_lengths",
                       .encoder = ""});
  }
  entries.push_back({.name = config_.given_channels > 0 ? kGivenClip : kFirstFrame});
  if (camera_) entries.push_back({.name = kCamera});
  entries.push_back({.name = kMotionRows});
  if (speech_) std::ranges::copy(speech_->entries(), std::back_inserter(entries));
  if (driving_) {
    entries.push_back(
        {.name = kDrivingEmbeds, .width = config_.text_width, .lengths = "driving_lengths"});
    entries.push_back({.name = kDrivingImage,
                       .width = config_.image_width,
                       .lengths = "driving_image_lengths",
                       .encoder = ""});
    entries.push_back({.name = kDrivingClip});
    entries.push_back({.name = kSkipsBlock});
    entries.push_back({.name = kKeepsNothing});
  }
  if (dance_) {
    entries.push_back({.name = kReferenceEmbeds,
                       .width = config_.image_width,
                       .lengths = "reference_lengths",
                       .encoder = ""});
    entries.push_back({.name = kMusic,
                       .width = config_.music_channels,
                       .lengths = "music_lengths",
                       .encoder = ""});
    entries.push_back({.name = kFramePlaces});
    entries.push_back({.name = kSkipsBlock});
  }
  return entries;
}

// [B L, D]. The rows behind a prompt's tokens become the same, and are attended to.
at::Tensor Embeddings::text(const atelier::PackedRows& prompts, at::ScalarType dtype) const {
  const at::Tensor values = at::constant_pad_nd(prompts.values.to(dtype), {0, 0, 0, 1});
  const at::Tensor rows = text_out_.forward(ops::gelu_tanh(text_in_.forward(values)));
  const at::Tensor behind = rows.narrow(0, rows.size(0) - 1, 1);
  Tensors parts;
  for (int64_t b = 0; b < prompts.rows.count(); ++b) {
    const int64_t length = prompts.rows.length(b);
    if (length > kTextRows) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "prompt_embeds of " + std::to_string(length) + " rows, at most " +
                               std::to_string(kTextRows) + " are read");
    }
    parts.push_back(rows.narrow(0, prompts.rows.offset(b), length));
    parts.push_back(behind.expand({kTextRows - length, -1}));
  }
  return at::cat(parts, 0);
}

// [S, D] float32.
at::Tensor Embeddings::time(const at::Tensor& sigma_S) const {
  const at::Tensor channels = atelier::nn::time_channels(sigma_S * 1000, time_width_);
  return time_out_.forward(at::silu(time_in_.forward(channels)));
}

// [S, 6 D] float32.
at::Tensor Embeddings::project(const at::Tensor& time_SD) const {
  return time_projection_.forward(at::silu(time_SD));
}

// [B T H W, D], T, H and W of the tokens.
at::Tensor Embeddings::patches(const at::Tensor& x_BCTHW) const {
  return patches_.forward(x_BCTHW).permute({0, 2, 3, 4, 1}).flatten(0, 3);
}

// The latents, those of a control clip and what is known of the clip, side by side.
at::Tensor Dit::with_given(const atelier::DenoiseInputs& in) const {
  const bool has_control = config_.control_channels > 0;
  Tensors all = {in.x_BCTHW};
  if (has_control)
    all.push_back(beside(in, kControlClip, config_.control_channels, /*is_optional=*/true));
  if (config_.given_channels > 0)
    all.push_back(beside(in, kGivenClip, config_.given_channels, /*is_optional=*/has_control));
  return all.size() == 1 ? all.front() : at::cat(all, 1);
}

// The projected time, a row for each sample, and what a controller adds to it.
at::Tensor Dit::with_motion(const atelier::DenoiseInputs& in, const at::Tensor& projected) const {
  Tensors rows = projected.unbind(0);
  bool moves = false;
  for (size_t b = 0; b < in.cond.size(); ++b) {
    const auto motion = in.cond[b]->find(kMotionRows);
    if (motion == in.cond[b]->end()) continue;
    if (motion->second.sizes() != projected.sizes().slice(1) || rows.size() != in.cond.size()) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "motion_rows of shape " + atelier::shape_text(motion->second) + ", [" +
                               std::to_string(projected.size(1)) + "] expected",
                           "pass the motion controller that is published with the DiT");
    }
    rows[b] = rows[b] + motion->second.to(projected.scalar_type());
    moves = true;
  }
  return moves ? at::stack(rows) : projected;
}

namespace {

int64_t rows_of(const std::vector<Stretch>& stretches) {
  int64_t rows = 0;
  for (const Stretch& stretch : stretches) rows += stretch.rows_LD.size(0);
  return rows;
}

// The rows that have one noise level, and those levels.
struct Levels {
  Segments rows;
  at::Tensor sigma_S;
};

Levels levels_of(const atelier::DenoiseInputs& in, const std::vector<Around>& around,
                 int64_t frames, int64_t rows_of_frame) {
  std::vector<int64_t> lengths;
  Tensors sigmas;
  const at::Tensor clean = at::zeros({1}, in.sigma_B.options());
  for (size_t b = 0; b < in.cond.size(); ++b) {
    const at::Tensor sigma = in.sigma_B.narrow(0, static_cast<int64_t>(b), 1);
    const auto add = [&](int64_t rows, bool is_clean) {
      if (rows == 0) return;
      lengths.push_back(rows);
      sigmas.push_back(is_clean ? clean : sigma);
    };
    const auto add_all = [&](const std::vector<Stretch>& stretches) {
      for (const Stretch& stretch : stretches) add(stretch.rows_LD.size(0), stretch.is_clean);
    };
    const int64_t known = in.cond[b]->contains(kFirstFrame) ? 1 : 0;
    add_all(around[b].front);
    add(known * rows_of_frame, /*is_clean=*/true);
    add((frames - known) * rows_of_frame, /*is_clean=*/false);
    add_all(around[b].behind);
  }
  return {Segments(lengths), at::cat(sigmas)};
}

// `tokens(b)` of each sample and what `of` gives of the stretches around them, one after another.
template <class Tokens, class Of>
at::Tensor in_order(const std::vector<Around>& around, const Tokens& tokens, const Of& of) {
  Tensors all;
  for (size_t b = 0; b < around.size(); ++b) {
    for (const Stretch& stretch : around[b].front) all.push_back(of(stretch));
    all.push_back(tokens(static_cast<int64_t>(b)));
    for (const Stretch& stretch : around[b].behind) all.push_back(of(stretch));
  }
  return all.size() == 1 ? all.front() : at::cat(all);
}

std::vector<Around> around_of(const atelier::DenoiseInputs& in,
                              const std::vector<Addition*>& additions) {
  std::vector<Around> around(in.cond.size());
  for (size_t b = 0; b < around.size(); ++b) {
    const auto sample = static_cast<int64_t>(b);
    for (Addition* addition : additions) {
      for (Stretch& s : addition->front(in, sample)) around[b].front.push_back(std::move(s));
      for (Stretch& s : addition->behind(in, sample)) around[b].behind.push_back(std::move(s));
    }
  }
  return around;
}

}  // namespace

// Waves of all rows, [N, head_dim / 2] each.
const Waves& Dit::waves(const std::vector<Around>& around, int64_t T, int64_t H, int64_t W,
                        at::Device device) {
  std::vector<int64_t> sizes = {T, H, W};
  for (const Around& here : around) {
    sizes.push_back(rows_of(here.front));
    sizes.push_back(rows_of(here.behind));
  }
  return waves_.get({std::move(sizes), device}, [&]() -> Waves {
    const auto options = at::TensorOptions(device).dtype(at::kDouble);
    at::Tensor frames = at::arange(T, options);
    for (const Addition* addition : additions_) frames = addition->frame_positions(frames);
    const at::Tensor clip = token_angles(frames, H, W, config_.head_dim());
    const at::Tensor angles = in_order(
        around, [&](int64_t) { return clip; },
        [](const Stretch& stretch) { return stretch.angles(); });
    return {at::cos(angles).to(at::kFloat), at::sin(angles).to(at::kFloat)};
  });
}

// [B T H W, D] of the tokens, from this rank's rows.
at::Tensor Dit::tokens_of(const Pass& pass, const at::Tensor& own) const {
  const at::Tensor all = pass.rows.gather(own);
  const int64_t count = pass.frames * pass.height * pass.width;
  if (all.size(0) == std::ssize(pass.front) * count) return all;
  Tensors tokens;
  int64_t offset = 0;
  for (size_t b = 0; b < pass.front.size(); ++b) {
    tokens.push_back(all.narrow(0, offset + pass.front[b], count));
    offset += pass.front[b] + count + pass.behind[b];
  }
  return at::cat(tokens);
}

void Dit::run_block(int64_t index, Pass& pass) {
  DitBlock& block = *blocks_[static_cast<size_t>(index)];
  const bool is_replaced = std::ranges::any_of(
      additions_, [&](Addition* addition) { return addition->replace(index, block, pass); });
  if (!is_replaced) {
    Tensors inputs = {std::move(pass.x)};
    inputs.insert(inputs.end(), pass.context.begin(), pass.context.end());
    pass.x = pass.runner.run(block, inputs)[0];
  }
  for (Addition* addition : additions_) addition->after(index, pass);
}

at::Tensor Dit::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  const at::Tensor& x = in.x_BCTHW;
  const int64_t B = x.size(0), C = x.size(1), T = x.size(2), p = config_.patch;
  const int64_t H = x.size(3) / p, W = x.size(4) / p;
  const std::vector<Around> around = around_of(in, additions_);
  std::vector<int64_t> front, behind, lengths;
  for (const Around& here : around) {
    front.push_back(rows_of(here.front));
    behind.push_back(rows_of(here.behind));
    lengths.push_back(front.back() + T * H * W + behind.back());
  }
  const SharedRows rows{Segments(lengths)};
  const Segments text_rows = Segments::uniform(B, kTextRows);
  const Waves& rope = waves(around, T, H, W, x.device());
  const at::Tensor text =
      embeddings_.text(atelier::pack_entry(in.cond, atelier::kPromptEmbeds), x.scalar_type());
  const Levels levels = levels_of(in, around, T, H * W);
  const Segments level_rows = rows.cut(levels.rows);
  const at::Tensor time = embeddings_.time(levels.sigma_S);

  Tensors context = {rows.take(rope.cos),
                     rows.take(rope.sin),
                     rows.rows().tensor(),
                     level_rows.tensor(),
                     with_motion(in, embeddings_.project(time)),
                     text,
                     text_rows.tensor()};
  if (image_embedding_) {
    const atelier::PackedRows images = config_.control_channels > 0
                                           ? shown_rows(in, config_.image_width)
                                           : atelier::pack_entry(in.cond, kImageEmbeds);
    context.push_back(image_embedding_->forward(images, x.scalar_type()));
    context.push_back(images.rows.tensor());
  }

  const bool is_slow = dance_ && Dance::is_slow(in);
  const at::Tensor tokens =
      is_slow ? dance_->patches(with_given(in)) : embeddings_.patches(with_given(in));
  const at::Tensor all = in_order(
      around, [&](int64_t b) { return tokens.narrow(0, b * T * H * W, T * H * W); },
      [](const Stretch& stretch) { return stretch.rows_LD; });
  Pass pass = {.in = in,
               .runner = runner,
               .frames = T,
               .height = H,
               .width = W,
               .rows = rows,
               .front = std::move(front),
               .behind = std::move(behind),
               .context = std::move(context),
               .x = rows.take(all)};
  for (Addition* addition : additions_) addition->begin(pass);
  for (int64_t i = 0; i < std::ssize(blocks_); ++i) run_block(i, pass);

  const Head& head = is_slow ? dance_->head() : head_;
  // Values of a token: its rows, its columns, then channels.
  return tokens_of(pass, head.forward(pass.x, time, level_rows))
      .view({B, T, H, W, p, p, C})
      .permute({0, 6, 1, 2, 4, 3, 5})
      .reshape({B, C, T, H * p, W * p});
}

}  // namespace wan
