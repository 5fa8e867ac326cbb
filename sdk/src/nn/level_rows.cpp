#include "atelier/nn/level_rows.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"
#include "atelier/host/sample_scope.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"

namespace atelier::nn {
namespace {

constexpr int64_t kLevelRows = 8;

// Gives what was drawn once: for as many products as there are groups, a weight that comes from
// afar comes once.
class DrawnOnce final : public WeightStore {
 public:
  explicit DrawnOnce(WeightPtr weight)
      : weight_(std::move(weight)), codes_(weight_->state().draw_codes()) {
    if (!codes_) value_ = weight_->draw();
  }
  at::Tensor draw() const override { return codes_ ? weight_->draw() : value_; }
  std::optional<RowCodes> draw_codes() const override { return codes_; }

 private:
  WeightPtr weight_;
  std::optional<RowCodes> codes_;
  at::Tensor value_;
};

// What `of` makes of each group of B samples' rows.
template <class Of>
std::vector<at::Tensor> by_group(const at::Tensor& groups, int64_t B, const Of& of) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const at::Tensor& group : groups.unbind(0)) {
    const ops::SampleScope::Rows rows(first, std::clamp<int64_t>(B - first, 0, kLevelRows), B);
    parts.push_back(of(group));
    first += kLevelRows;
  }
  return parts;
}

}  // namespace

at::Tensor level_groups(const at::Tensor& rows) {
  const int64_t groups = (rows.size(0) + kLevelRows - 1) / kLevelRows;
  return at::constant_pad_nd(rows, {0, 0, 0, groups * kLevelRows - rows.size(0)})
      .view({groups, kLevelRows, rows.size(1)});
}

at::Tensor of_levels(const Linear& layer, const at::Tensor& rows, int64_t B) {
  if (rows.dim() == 2) return layer.forward(rows);
  const std::vector<at::Tensor> parts =
      by_group(rows, B, [&](const at::Tensor& group) { return layer.forward(group); });
  return (parts.size() == 1 ? parts.front() : at::cat(parts, 0)).narrow(0, 0, B);
}

at::Tensor of_all_levels(const Linear& layer, const at::Tensor& groups, int64_t levels) {
  const auto drawn = std::make_shared<Weight>(layer.weight->name(), layer.weight->sizes().vec());
  drawn->state().set_store(std::make_shared<DrawnOnce>(layer.weight));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& group : groups.unbind(0))
    parts.push_back(ops::linear(group, drawn, layer.bias, layer.adapters));
  return at::cat(parts, 0).narrow(0, 0, levels);
}

NoiseLevels::NoiseLevels(Channels channels, const Linear& in, const Linear& out,
                         std::vector<const Linear*> ends, TimeActivation end_activation)
    : channels_(std::move(channels)),
      in_(in),
      out_(out),
      ends_(std::move(ends)),
      end_activation_(end_activation) {}

void NoiseLevels::add(Block& block, std::vector<const Linear*> layers, TimeActivation activation) {
  blocks_.push_back({&block, std::move(layers), activation});
}

std::vector<WeightPtr> NoiseLevels::weights() const {
  std::vector<WeightPtr> result;
  for (const Reader& reader : blocks_) {
    for (const Linear* layer : reader.layers) {
      result.push_back(layer->weight);
      if (layer->bias) result.push_back(layer->bias);
    }
  }
  return result;
}

NoiseLevels::Step NoiseLevels::time_rows(const at::Tensor& sigma_B, at::ScalarType dtype) const {
  const at::Tensor channels = channels_(sigma_B).to(dtype);
  const at::Tensor added = added_
                               ? added_->forward(at::zeros({1}, sigma_B.options().dtype(at::kLong)))
                               : at::Tensor();  // [1, K]
  const auto embed = [&](const at::Tensor& rows) {
    const at::Tensor time = out_.forward(at::silu(in_.forward(rows)));
    return added.defined() ? time + added : time;
  };
  Step step;
  step.samples_ = sigma_B.size(0);
  if (at::GradMode::is_enabled()) {
    step.time_ = embed(channels);
  } else {
    step.time_ = at::stack(by_group(level_groups(channels), step.samples_, embed));
  }
  const auto reads_silu = [](TimeActivation activation) {
    return activation == TimeActivation::kSilu;
  };
  if (reads_silu(end_activation_) || std::ranges::any_of(blocks_, reads_silu, &Reader::activation))
    step.silu_ = at::silu(step.time_);
  return step;
}

void NoiseLevels::prepare(std::span<const float> sigmas, BlockRunner& runner) {
  forget();
  if (sigmas.empty()) return;
  // Made where autograd may save them, whatever mode the caller is in.
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  const ops::SampleScope::Part of_no_sample(0, 0);
  const at::Tensor weight = in_.weight->draw();
  const auto count = static_cast<int64_t>(sigmas.size());
  const Step all =
      time_rows(ops::upload(at::tensor(sigmas, at::kFloat), weight.device()), weight.scalar_type());
  Prepared prepared{.count = count, .blocks = {}, .ends = {}};
  for (const Linear* end : ends_)
    prepared.ends.push_back(of_levels(*end, all.time(end_activation_), count));
  for (const Reader& reader : blocks_) {
    const std::shared_ptr<void> held = runner.hold(*reader.block);
    Tensors rows;
    for (const Linear* layer : reader.layers)
      rows.push_back(of_all_levels(*layer, all.time(reader.activation), count));
    prepared.blocks.push_back(rows.size() == 1 ? rows.front() : at::cat(rows, 1));
  }
  prepared_ = std::move(prepared);
}

bool NoiseLevels::differs_by_sample() const {
  const ops::SampleScope* const scope = ops::SampleScope::current();
  if (scope == nullptr) return false;
  const auto differs = [&](const Linear* layer) {
    return std::ranges::any_of(layer->adapters, [&](const ops::Adapter& adapter) {
      return adapter.number >= 0 && scope->is_used(adapter.number);
    });
  };
  return differs(&in_) || differs(&out_) || std::ranges::any_of(ends_, differs) ||
         std::ranges::any_of(blocks_, [&](const Reader& reader) {
           return std::ranges::any_of(reader.layers, differs);
         });
}

NoiseLevels::Step NoiseLevels::step(const at::Tensor& sigma_B, at::ScalarType dtype,
                                    std::optional<int64_t> level) const {
  const std::vector<std::optional<int64_t>> levels(static_cast<size_t>(sigma_B.size(0)), level);
  return step(sigma_B, dtype, levels);
}

NoiseLevels::Step NoiseLevels::step(const at::Tensor& sigma_B, at::ScalarType dtype,
                                    std::span<const std::optional<int64_t>> levels) const {
  for (const std::optional<int64_t>& level : levels) {
    if (!level || (*level >= 0 && *level < prepared_.count)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "noise level " + std::to_string(*level) + " is not one of the " +
                    std::to_string(prepared_.count) + " that are prepared");
  }
  const bool is_prepared =
      std::ranges::all_of(levels, [](const auto& level) { return level.has_value(); }) &&
      !differs_by_sample();
  Step step = is_prepared ? Step() : time_rows(sigma_B, dtype);
  step.levels_ = this;
  step.samples_ = sigma_B.size(0);
  for (size_t s = 0; is_prepared && s < levels.size(); ++s) step.prepared_.push_back(*levels[s]);
  return step;
}

const at::Tensor& NoiseLevels::Step::time(TimeActivation activation) const {
  return activation == TimeActivation::kSilu ? silu_ : time_;
}

at::Tensor NoiseLevels::Step::rows_of(const at::Tensor& prepared) const {
  Tensors runs;  // of samples of one level
  for (size_t first = 0, past = 0; first < prepared_.size(); first = past) {
    while (past < prepared_.size() && prepared_[past] == prepared_[first]) ++past;
    runs.push_back(
        prepared.narrow(0, prepared_[first], 1).expand({static_cast<int64_t>(past - first), -1}));
  }
  return runs.size() == 1 ? runs.front().contiguous() : at::cat(runs);
}

at::Tensor NoiseLevels::Step::of_block(size_t i) const {
  if (prepared_.empty()) return time(levels_->blocks_[i].activation);
  return rows_of(levels_->prepared_.blocks[i]);
}

at::Tensor NoiseLevels::Step::of_end(size_t i) const {
  if (prepared_.empty())
    return nn::of_levels(*levels_->ends_[i], time(levels_->end_activation_), samples_);
  return rows_of(levels_->prepared_.ends[i]);
}

}  // namespace atelier::nn
