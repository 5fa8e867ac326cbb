#include "host/lora/added_weight.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::lora {

namespace {

constexpr double kLeastNorm = 1e-30;  // of a row of zeros, which stays one

at::Tensor part_of(const at::Tensor& whole, int axis, int64_t start, int64_t length) {
  return axis < 0 ? whole : whole.narrow(axis, start, length);
}

// What `addition` adds to `weight`, the part that it is for, at strength 1; float32.
at::Tensor change_of(const Addition& addition, const at::Tensor& weight) {
  const Difference& difference = *addition.difference;
  at::Tensor value =
      part_of(difference.value(), addition.axis, addition.difference_start, addition.length);
  if (!difference.magnitude.defined()) return value;
  // Magnitudes lie along one axis, which may be the one that is cut; the norm is over the other.
  at::Tensor magnitude = difference.magnitude.to(at::kFloat);
  const int along = magnitude.size(1) == 1 && magnitude.size(0) == difference.shape[0] ? 0 : 1;
  if (addition.axis == along)
    magnitude = magnitude.narrow(along, addition.difference_start, addition.length);
  const at::Tensor base = weight.to(at::kFloat), sum = base + value;
  const at::Tensor norm = at::linalg_vector_norm(sum, 2, 1 - along, /*keepdim=*/true);
  return sum.mul(magnitude / norm.clamp_min(kLeastNorm)).sub_(base);
}

// Adds all of `addition` to `sum`, which began as `weight`; both are the part that it is for.
void add_to(const at::Tensor& sum, const Addition& addition, const at::Tensor& weight) {
  const Difference& difference = *addition.difference;
  const bool is_product = difference.form == Difference::Form::kOne &&
                          difference.first.right.defined() && !difference.magnitude.defined();
  if (!is_product) {
    sum.add_(change_of(addition, weight), addition.strength);
    return;
  }
  const auto cut = [&](const at::Tensor& factor, int axis) {
    return (addition.axis == axis ? factor.narrow(axis, addition.difference_start, addition.length)
                                  : factor)
        .to(at::kFloat);
  };
  sum.addmm_(cut(difference.first.left, 0), cut(difference.first.right, 1), 1,
             addition.strength * difference.scale);
}

const AddedWeight* added_store(const Weight& weight) {
  const auto& store = weight.state().store();
  return store != nullptr ? store->added() : nullptr;
}

}  // namespace

AddedWeight::AddedWeight(std::shared_ptr<const WeightStore> base, std::vector<Addition> additions,
                         bool keeps_sum)
    : base_(std::move(base)), additions_(std::move(additions)), keeps_sum_(keeps_sum) {}

at::Tensor AddedWeight::sum() const {
  const at::NoGradGuard no_grad;
  const at::Tensor base = base_->draw();
  const at::Tensor sum = base.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (const Addition& of : additions_) {
    add_to(part_of(sum, of.axis, of.weight_start, of.length), of,
           part_of(base, of.axis, of.weight_start, of.length));
  }
  return sum.to(base.scalar_type());
}

at::Tensor AddedWeight::draw() const {
  if (!keeps_sum_) return sum();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sum_.defined()) sum_ = sum();
  return sum_;
}

int64_t AddedWeight::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sum_.defined() ? static_cast<int64_t>(sum_.nbytes()) : 0;
}

void set_additions(Weight& weight, const void* owner, std::vector<Addition> additions,
                   bool keeps_sum) {
  if (!weight.is_loaded()) return;
  const AddedWeight* added = added_store(weight);
  std::vector<Addition> all, now;
  if (added != nullptr) {
    for (const Addition& addition : added->additions())
      (addition.owner == owner ? now : all).push_back(addition);
  }
  for (Addition& addition : additions) addition.owner = owner;
  if (now == additions) return;
  std::move(additions.begin(), additions.end(), std::back_inserter(all));
  if (weight.state().is_trainable())
    throw Error(ErrorCode::kUnsupported,
                "weight " + formats::quote_and_escape(weight.name()) +
                    " is trained: nothing can be added to it when it is drawn",
                "take the LoRA away, or train another component", "LORA_TRAINED");
  std::shared_ptr<const WeightStore> base =
      added != nullptr ? added->base() : weight.state().store();
  if (!all.empty())
    base = std::make_shared<AddedWeight>(std::move(base), std::move(all), keeps_sum);
  weight.state().set_store(std::move(base));
  weight.state().keep_derived({});
}

int64_t added_bytes(const Weight& weight) {
  const AddedWeight* added = added_store(weight);
  return added != nullptr ? added->bytes() : 0;
}

}  // namespace atelier::lora
