// Where a training has what it computes with: what runs obey and processes agree on.
#pragma once

#include <optional>

#include "host/model/placement.h"
#include "host/order/training.h"
#include "memory/activation_budget.h"

namespace atelier::parameters {

struct Layout {
  model::WeightLayout weights = {};
  // What the backward pass needs: computed again, block by block; or as far as a budget says, which
  // wins.
  bool use_gradient_checkpointing = false;
  std::optional<memory::ActivationBudget> activation_budget = {};
  bool optimizes_on_host = false;  // trained weights and the optimizer are there
};

// As the order says, where nothing was planned.
Layout unplanned_layout(const order::Training& order);

}  // namespace atelier::parameters
