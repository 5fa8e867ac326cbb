#include "atelier/weight.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/leaf_scope.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"

namespace atelier {

namespace {

// A tensor that stays where it is.
class ResidentStore final : public WeightStore {
 public:
  explicit ResidentStore(at::Tensor value) : value_(std::move(value)) {}
  at::Tensor draw() const override { return value_; }
  bool is_resident() const override { return true; }
  std::vector<at::Tensor> parts() const override { return {value_}; }
  std::shared_ptr<const WeightStore> over(std::vector<at::Tensor> copies) const override {
    return std::make_shared<ResidentStore>(std::move(copies.at(0)));
  }

 private:
  at::Tensor value_;
};

}  // namespace

WeightStore::~WeightStore() = default;

at::Tensor WeightStore::draw_rows(const at::Tensor& index) const {
  const at::Tensor table = draw();
  return table.index_select(0, ops::upload(index.reshape({-1}), table.device()));
}

std::optional<RowCodes> WeightStore::draw_codes() const {
  return std::nullopt;
}

bool WeightStore::is_resident() const {
  return false;
}

std::vector<at::Tensor> WeightStore::parts() const {
  return {};
}

std::shared_ptr<const WeightStore> WeightStore::over(std::vector<at::Tensor>) const {
  throw Error(ErrorCode::kInternal, "a weight that cannot rest elsewhere is made over copies");
}

const lora::AddedWeight* WeightStore::added() const {
  return nullptr;
}

bool WeightStore::draw_pieces(int64_t, const UsePiece&) const {
  return false;
}

GradientSink::~GradientSink() = default;

WeightState::WeightState(std::string name, std::vector<int64_t> shape, WeightOptions options)
    : name_(std::move(name)), shape_(std::move(shape)), options_(options) {}
WeightState::~WeightState() = default;

const WeightStore& WeightState::loaded() const {
  if (store_ == nullptr)
    throw Error(ErrorCode::kInternal, "weight '" + name_ + "' is used before it is loaded");
  return *store_;
}

void WeightState::set_store(std::shared_ptr<const WeightStore> store) {
  store_ = std::move(store);
  leaf_ = at::Tensor();
  sink_ = nullptr;
  ++version_;
}

std::optional<RowCodes> WeightState::draw_codes() const {
  if (store_ == nullptr || leaf_.defined()) return std::nullopt;
  return store_->draw_codes();
}

bool WeightState::draw_pieces(int64_t axis, const WeightStore::UsePiece& use) const {
  return store_ != nullptr && !leaf_.defined() && store_->draw_pieces(axis, use);
}

void WeightState::set_trainable(bool trainable) {
  if (trainable == is_trainable()) return;
  if (trainable) {
    if (store_ == nullptr || !store_->is_resident())
      throw Error(ErrorCode::kInvalidArgument,
                  "weight '" + name_ + "' does not rest on the compute device",
                  "train it resident");
    leaf_ = store_->draw().detach().set_requires_grad(true);
  } else {
    leaf_ = at::Tensor();
  }
  ++version_;
}

Weight::Weight(std::string name, std::vector<int64_t> shape, WeightOptions options)
    : state_(std::make_unique<WeightState>(std::move(name), std::move(shape), options)) {}
Weight::~Weight() = default;

const std::string& Weight::name() const {
  return state_->name_;
}

at::IntArrayRef Weight::sizes() const {
  return state_->shape_;
}

int64_t Weight::numel() const {
  return c10::multiply_integers(state_->shape_);
}

bool Weight::keeps_float32() const {
  return state_->options_.keeps_float32;
}

at::ScalarType Weight::drawn_dtype(at::ScalarType dtype) const {
  return keeps_float32() ? at::kFloat : dtype;
}

bool Weight::is_loaded() const {
  return state_->store_ != nullptr;
}

void Weight::set(at::Tensor value) {
  if (value.sizes() != sizes())
    throw Error(ErrorCode::kInvalidArgument, "weight '" + name() + "' is " + c10::str(sizes()) +
                                                 ", the tensor given is " +
                                                 c10::str(value.sizes()));
  state_->set_store(std::make_shared<ResidentStore>(value.detach()));
}

at::Tensor Weight::draw() const {
  const WeightStore& store = state_->loaded();
  return state_->leaf_.defined() ? ops::LeafScope::place_of(state_->leaf_) : store.draw();
}

at::Tensor Weight::draw_rows(const at::Tensor& index) const {
  return state_->loaded().draw_rows(index);
}

}  // namespace atelier
