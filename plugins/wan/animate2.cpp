// Shape letters: B samples, C latent channels, T frames of the driving clip, H and W height and
// width in tokens, N rows of this rank, D width, d head width.
#include "animate2.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/ops/attention.h"

#include "side_stream.h"

namespace wan {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
using atelier::ops::KeySet;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kInputs = DitBlock::kImageOffsets + 1;

// Entries that keys and values of a driving clip are made of.
constexpr const char* kKeptOf[] = {kDrivingClip, kDrivingEmbeds, kDrivingImage};

// Frames `from` to `to` of each sample, of rows that are packed sample by sample, frame by frame.
class FrameRange {
 public:
  FrameRange(const Segments& frames, int64_t samples, int64_t from, int64_t to)
      : rows_(frames), firsts_(static_cast<size_t>(samples)) {
    const int64_t each = frames.count() / samples;
    const at::Tensor of_ranks = frames.tensor().view({-1, frames.count() + 1});
    const at::Tensor firsts = at::arange(0, frames.count(), each, at::kLong);
    const at::Tensor lengths =
        of_ranks.index_select(1, firsts + to) - of_ranks.index_select(1, firsts + from);
    const at::Tensor offsets = at::constant_pad_nd(lengths.cumsum(1), {1, 0}).contiguous();
    rows_ = Segments::from_tensor(frames.is_shared() ? offsets : offsets[0]);
    for (int64_t b = 0; b < samples; ++b)
      firsts_[static_cast<size_t>(b)] = frames.offset(b * each + from);
  }

  const Segments& rows() const { return rows_; }

  at::Tensor take(const at::Tensor& all) const {
    Tensors parts;
    for (int64_t b = 0; b < rows_.count(); ++b)
      parts.push_back(all.narrow(0, firsts_[static_cast<size_t>(b)], rows_.length(b)));
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  }

 private:
  Segments rows_;
  std::vector<int64_t> firsts_;  // rows of the samples' first frames
};

// Keys and values of the rows that are made. With a bias its frame 1, the first of the clip, is a
// set of its own.
std::vector<KeySet> made_sets(const at::Tensor& k, const at::Tensor& v, const Segments& rows,
                              const Segments& frames, double bias) {
  if (bias == 0) return {{k, v, rows}};
  const int64_t samples = rows.count(), end = frames.count() / samples;
  std::vector<KeySet> sets;
  for (const auto& [from, to] : {std::pair(int64_t{0}, int64_t{1}), {1, 2}, {2, end}}) {
    if (to <= from) continue;
    const FrameRange range(frames, samples, from, to);
    sets.push_back({range.take(k), range.take(v), range.rows(), {}, {}, from == 1 ? bias : 0.0});
  }
  return sets;
}

}  // namespace

// ---- The block ----

DrivenBlock::~DrivenBlock() = default;

Tensors DrivenBlock::drive(const Tensors& in) const {
  const std::vector<at::Tensor> m = modulation(in);
  const Tensors qkv = project(in, m);
  if (in.size() == kText) return {qkv[1], qkv[2]};
  const at::Tensor seen =
      ops::attention(qkv[0], qkv[1], qkv[2], Segments::from_tensor(in[kOffsets]));
  return {qkv[1], qkv[2], finish(in, m, seen)};
}

Tensors DrivenBlock::forward(const Tensors& in) {
  if (in.size() <= kInputs) return drive(in);
  const Tensors made(in.begin(), in.begin() + kInputs), beside(in.begin() + kInputs, in.end() - 2);
  const Tensors driving = beside.size() == 2 ? beside : drive(beside);
  const std::vector<at::Tensor> m = modulation(made);
  const Tensors qkv = project(made, m);
  const Segments rows = Segments::from_tensor(made[kOffsets]);
  const Segments frames = Segments::from_tensor(in[in.size() - 2]);
  const Segments driving_frames = Segments::from_tensor(in[in.size() - 1]);
  const int64_t samples = rows.count(), each = frames.count() / samples;
  const std::vector<KeySet> all = made_sets(qkv[1], qkv[2], rows, frames, first_frame_bias_);

  std::vector<Tensors> seen(static_cast<size_t>(samples));  // by frame
  for (int64_t f = 0; f < each; ++f) {
    const FrameRange here(frames, samples, f, f + 1);
    std::vector<KeySet> sets = all;
    if (f > 0) {
      const FrameRange there(driving_frames, samples, f - 1, f);
      sets.push_back({there.take(driving[0]), there.take(driving[1]), there.rows()});
    }
    const at::Tensor of_frame = ops::attention(here.take(qkv[0]), here.rows(), sets);
    for (int64_t b = 0; b < samples; ++b)
      seen[static_cast<size_t>(b)].push_back(
          of_frame.narrow(0, here.rows().offset(b), here.rows().length(b)));
  }
  Tensors in_order;
  for (const Tensors& of_sample : seen)
    in_order.insert(in_order.end(), of_sample.begin(), of_sample.end());
  Tensors out = {finish(made, m, at::cat(in_order))};
  if (driving.size() > 2) out.push_back(driving[2]);
  return out;
}

// ---- The driving clip ----

Driving::~Driving() = default;

// Frames count on from the reference image, columns from the last one of the clip that is made.
Tensors Driving::first_inputs(const Pass& pass) const {
  const at::Tensor& x = pass.in.x_BCTHW;
  const int64_t T = pass.frames - 1;
  const at::Tensor clip = side_clips(pass, kDrivingClip, {x.size(1), T, x.size(3), x.size(4)},
                                     "latents have a frame more, that of the reference image");
  const at::Tensor known = at::ones_like(clip.narrow(1, 0, kFrameStride));  // each of its frames
  const auto options = at::TensorOptions(x.device()).dtype(at::kDouble);
  return inputs_of({.embeddings = embeddings_,
                    .images = images_,
                    .head_dim = config_.head_dim(),
                    .clip_BCTHW = at::cat({clip, known, clip}, 1),
                    .frames = at::arange(1, T + 1, options),
                    .first_column = pass.width,
                    .text = kDrivingEmbeds,
                    .image = kDrivingImage},
                   pass);
}

bool Driving::has_kept(const Pass& pass) const {
  const auto is_same = [](const Tensors& kept, const atelier::Conditioning* cond) {
    return std::ranges::equal(kept, kKeptOf, [&](const at::Tensor& tensor, const char* name) {
      const auto entry = cond->find(name);
      return entry != cond->end() && entry->second.is_same(tensor);
    });
  };
  return std::ranges::equal(kept_of_, pass.in.cond, is_same);
}

void Driving::begin(Pass& pass) {
  const int64_t B = std::ssize(pass.in.cond), T = pass.frames - 1, count = pass.height * pass.width;
  frames_ = SharedRows{Segments::uniform(B * (T + 1), count)}.rows().tensor();
  driving_frames_ = SharedRows{Segments::uniform(B * T, count)}.rows().tensor();
  driving_.clear();
  const bool keeps = keeps_ && std::ranges::none_of(pass.in.cond, [](const auto* cond) {
                       return cond->contains(kKeepsNothing);
                     });
  if (keeps && has_kept(pass)) return;
  kept_.clear(), kept_of_.clear();
  driving_ = first_inputs(pass);
  if (!keeps) return;
  for (int64_t i = 0; i < std::ssize(blocks_); ++i) {
    reach(i);
    Tensors made = pass.runner.run(*blocks_[static_cast<size_t>(i)], driving_);
    kept_.push_back({made[0], made[1]});
    if (made.size() > 2) driving_.front() = std::move(made[2]);
  }
  driving_.clear();
  for (const atelier::Conditioning* cond : pass.in.cond) {
    Tensors& kept_of = kept_of_.emplace_back();
    for (const char* name : kKeptOf) kept_of.push_back(cond->find(name)->second);
  }
}

// The last block computes keys and values of the driving clip, and no rows.
void Driving::reach(int64_t index) {
  if (!driving_.empty() && index + 1 == std::ssize(blocks_)) driving_.resize(DitBlock::kText);
}

bool Driving::replace(int64_t index, DitBlock& block, Pass& pass) {
  reach(index);
  const auto skips = [&](const atelier::Conditioning* cond) {
    return index == kSkippedBlock && cond->contains(kSkipsBlock);
  };
  const bool all_skip = std::ranges::all_of(pass.in.cond, skips);
  if (all_skip) {
    if (driving_.size() == kInputs) driving_.front() = pass.runner.run(block, driving_)[2];
    return true;
  }
  Tensors inputs = {pass.x};
  inputs.insert(inputs.end(), pass.context.begin(), pass.context.end());
  const Tensors& beside = driving_.empty() ? kept_[static_cast<size_t>(index)] : driving_;
  inputs.insert(inputs.end(), beside.begin(), beside.end());
  inputs.insert(inputs.end(), {frames_, driving_frames_});
  Tensors made = pass.runner.run(block, inputs);
  if (std::ranges::any_of(pass.in.cond, skips)) {
    Tensors skipping;
    for (const atelier::Conditioning* cond : pass.in.cond)
      skipping.push_back(at::full({pass.frames * pass.height * pass.width, 1}, skips(cond),
                                  pass.x.options().dtype(at::kBool)));
    made[0] = at::where(pass.placed(at::cat(skipping)), pass.x, made[0]);
  }
  pass.x = std::move(made[0]);
  if (made.size() > 1) driving_.front() = std::move(made[1]);
  if (index + 1 == std::ssize(blocks_)) driving_.clear();
  return true;
}

void Driving::forget() {
  keeps_ = false;
  kept_.clear(), kept_of_.clear();
}

}  // namespace wan
