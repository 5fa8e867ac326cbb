#include "atelier/host/leaf_scope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace atelier::ops {
namespace {

thread_local LeafScope* current_leaf_scope = nullptr;

}  // namespace

LeafScope::LeafScope() : outer_(current_leaf_scope) {
  current_leaf_scope = this;
}
LeafScope::~LeafScope() {
  current_leaf_scope = outer_;
}

at::Tensor LeafScope::place_of(const at::Tensor& trained) {
  const bool has_place = trained.defined() && trained.requires_grad() && at::GradMode::is_enabled();
  return has_place ? place_in(current_leaf_scope, trained) : trained;
}

at::Tensor LeafScope::place_in(LeafScope* scope, const at::Tensor& trained) {
  if (scope == nullptr) return trained;
  at::Tensor& place = scope->places_[trained.unsafeGetTensorImpl()];
  if (!place.defined()) place = place_in(scope->outer_, trained).alias();
  return place;
}

}  // namespace atelier::ops
