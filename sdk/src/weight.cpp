#include "atelier/weight.h"

#include <sstream>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/ops/leaf_scope.h"

namespace atelier {

namespace {

// A tensor that stays where it is.
class ResidentStore final : public WeightStore {
 public:
  explicit ResidentStore(at::Tensor value) : value_(std::move(value)) {}
  at::Tensor draw() const override { return value_; }
  at::Tensor draw_rows(const at::Tensor& index) const override {
    return value_.index_select(0, index.reshape({-1}).to(value_.device()));
  }

 private:
  at::Tensor value_;
};

}  // namespace

WeightStore::~WeightStore() = default;

at::Tensor WeightStore::draw_rows(const at::Tensor& index) const {
  const at::Tensor table = draw();
  return table.index_select(0, index.reshape({-1}).to(table.device()));
}

std::optional<RowCodes> WeightStore::draw_codes() const {
  return std::nullopt;
}

GradientSink::~GradientSink() = default;

Weight::Weight(std::string name, std::vector<int64_t> shape, WeightOptions options)
    : name_(std::move(name)), shape_(std::move(shape)), options_(options) {}
Weight::~Weight() = default;

int64_t Weight::numel() const {
  return c10::multiply_integers(shape_);
}

void Weight::set(at::Tensor value) {
  if (value.sizes() != sizes())
    throw Error(ErrorCode::kInvalidArgument,
                "weight '" + name_ + "' is " + c10::str(at::IntArrayRef(shape_)) +
                    ", the tensor given is " + c10::str(value.sizes()));
  set_store(std::make_shared<ResidentStore>(value.detach()));
}

void Weight::set_store(std::shared_ptr<const WeightStore> store) {
  store_ = std::move(store);
  leaf_ = at::Tensor();
  sink_ = nullptr;
  ++version_;
}

at::Tensor Weight::draw() const {
  if (store_ == nullptr)
    throw Error(ErrorCode::kInternal, "weight '" + name_ + "' is used before it is loaded");
  return leaf_.defined() ? ops::LeafScope::place_of(leaf_) : store_->draw();
}

at::Tensor Weight::draw_rows(const at::Tensor& index) const {
  if (store_ == nullptr)
    throw Error(ErrorCode::kInternal, "weight '" + name_ + "' is used before it is loaded");
  return store_->draw_rows(index);
}

std::optional<RowCodes> Weight::draw_codes() const {
  if (store_ == nullptr || leaf_.defined()) return std::nullopt;
  return store_->draw_codes();
}

void Weight::set_trainable(bool trainable) {
  if (trainable == is_trainable()) return;
  if (trainable) {
    if (dynamic_cast<const ResidentStore*>(store_.get()) == nullptr)
      throw Error(ErrorCode::kInvalidArgument,
                  "weight '" + name_ + "' does not rest on the compute device",
                  "train it resident");
    leaf_ = store_->draw().detach().set_requires_grad(true);
  } else {
    leaf_ = at::Tensor();
  }
  ++version_;
}

}  // namespace atelier
