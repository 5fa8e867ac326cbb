// What a training step keeps of its activations, as strategies of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "host/order/training.h"
#include "host/plan/dry_model.h"
#include "memory/activation_budget.h"
#include "memory/activation_plan.h"
#include "memory/planner.h"

namespace atelier::plan {

// Whether the user says what is kept.
bool orders_activations(const order::Training& config);
// The budgets that may be chosen, fast ones first.
std::vector<memory::ActivationBudget> possible_budgets(const order::Training& config);

// Whether it keeps a part.
bool is_part(const memory::ActivationBudget& budget);

memory::ActivationPlan plan_of(const DryModel::TrainingPass& pass,
                               const memory::ActivationBudget& budget,
                               const memory::OffloadLimits& offload = {});

// Most bytes of activations of blocks and of gradients at one time of a backward pass: gradients of
// blocks behind the one that goes backward are there, and activations of those before it are there
// still. `held`: the part of its gradients that a rank keeps; `ranks`: those that share the rows.
// `sends_inputs`: see send_inputs().
int64_t backward_bytes(const DryModel::TrainingPass& pass, const memory::ActivationPlan& plan,
                       double held, int64_t ranks, bool sends_inputs);

// The first step of a budget keeps inputs of blocks alone, measures, and tries which outputs no
// gradient reads: gradients of a block are then there twice.
int64_t measuring_bytes(const DryModel::TrainingPass& pass);
// What that takes beside the bytes of a plan that keeps inputs of blocks alone.
int64_t trying_bytes(const DryModel::TrainingPass& pass);

// Lets what blocks hand on wait on the host: it leaves when two more blocks have run, and that of
// the last two never does.
void send_inputs(const DryModel::TrainingPass& pass, memory::Strategy& strategy);

// A strategy with its name, and nothing else.
memory::Strategy named_strategy(const memory::ActivationPlan& plan,
                                const memory::ActivationBudget& budget);

}  // namespace atelier::plan
