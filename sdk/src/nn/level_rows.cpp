#include "atelier/nn/level_rows.h"

#include <ATen/ATen.h>

namespace atelier::nn {
namespace {

constexpr int64_t kLevelRows = 8;

// Gives what was drawn once: for as many products as there are groups, a weight that comes from
// afar comes once.
class DrawnOnce final : public WeightStore {
 public:
  explicit DrawnOnce(WeightPtr weight) : weight_(std::move(weight)), codes_(weight_->draw_codes()) {
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
  drawn->set_store(std::make_shared<DrawnOnce>(layer.weight));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& group : groups.unbind(0))
    parts.push_back(ops::linear(group, drawn, layer.bias, layer.adapters));
  return at::cat(parts, 0).narrow(0, 0, levels);
}

}  // namespace atelier::nn
