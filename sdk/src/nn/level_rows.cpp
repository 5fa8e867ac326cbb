#include "atelier/nn/level_rows.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"
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

}  // namespace

at::Tensor level_groups(const at::Tensor& rows) {
  const int64_t groups = (rows.size(0) + kLevelRows - 1) / kLevelRows;
  return at::constant_pad_nd(rows, {0, 0, 0, groups * kLevelRows - rows.size(0)})
      .view({groups, kLevelRows, rows.size(1)});
}

at::Tensor of_levels(const Linear& layer, const at::Tensor& rows, int64_t B) {
  if (rows.dim() == 2) return layer.forward(rows);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& group : rows.unbind(0)) parts.push_back(layer.forward(group));
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
  const auto embed = [&](const at::Tensor& rows) {
    return out_.forward(at::silu(in_.forward(rows)));
  };
  Step step;
  step.samples_ = sigma_B.size(0);
  if (at::GradMode::is_enabled()) {
    step.time_ = embed(channels);
  } else {
    Tensors groups;
    for (const at::Tensor& group : level_groups(channels).unbind(0)) groups.push_back(embed(group));
    step.time_ = at::stack(groups);
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

NoiseLevels::Step NoiseLevels::step(const at::Tensor& sigma_B, at::ScalarType dtype,
                                    std::optional<int64_t> level) const {
  if (level && (*level < 0 || *level >= prepared_.count)) {
    throw Error(ErrorCode::kInvalidArgument,
                "noise level " + std::to_string(*level) + " is not one of the " +
                    std::to_string(prepared_.count) + " that are prepared");
  }
  Step step = level ? Step() : time_rows(sigma_B, dtype);
  step.levels_ = this;
  step.level_ = level;
  step.samples_ = sigma_B.size(0);
  return step;
}

const at::Tensor& NoiseLevels::Step::time(TimeActivation activation) const {
  return activation == TimeActivation::kSilu ? silu_ : time_;
}

at::Tensor NoiseLevels::Step::of_block(size_t i) const {
  if (!level_) return time(levels_->blocks_[i].activation);
  return levels_->prepared_.blocks[i].narrow(0, *level_, 1).expand({samples_, -1}).contiguous();
}

at::Tensor NoiseLevels::Step::of_end(size_t i) const {
  if (!level_) return nn::of_levels(*levels_->ends_[i], time(levels_->end_activation_), samples_);
  return levels_->prepared_.ends[i].narrow(0, *level_, 1).expand({samples_, -1}).contiguous();
}

}  // namespace atelier::nn
