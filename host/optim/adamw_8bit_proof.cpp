#include "host/optim/adamw_8bit_proof.h"

#include <memory>

#include <ATen/ATen.h>

#include "host/optim/optimizer.h"

namespace atelier::optim {
namespace {

using at::Tensor;
using tune::Tensors;
using tune::Traced;

constexpr int kSteps = 3;

// A parameter with its optimizer and a gradient.
struct Stepped {
  Stepped(const Tensor& value, const Tensor& gradient, MasterWeights master_weights)
      : leaf(value.detach().clone().requires_grad_()),
        one(at::ones({}, value.options().dtype(at::kFloat).requires_grad(false))) {
    leaf.mutable_grad() = gradient.detach();
    const Group group = {.parameters = {{"weight", leaf}}, .weight_decay = 0.1};
    optimizer = make_optimizer(
        {group}, {.kind = Kind::kAdamW8bit, .master_weights = master_weights, .seed = 7});
  }
  void step() { optimizer->step(/*lr=*/3e-3, /*grad_scale=*/one, /*is_skipped=*/one - 1); }

  Tensor leaf, one;
  std::unique_ptr<Optimizer> optimizer;
};

// What stands for float64 are steps in float32, which round nothing.
std::function<Traced()> prepare(const Tensors& in, MasterWeights master_weights) {
  const bool is_exact = in[0].scalar_type() == at::kDouble;
  const auto dtype = is_exact ? at::kFloat : in[0].scalar_type();
  const auto state = std::make_shared<Stepped>(in[0].to(dtype), in[1].to(dtype), master_weights);
  return [state, is_exact] {
    for (int i = 0; i < kSteps; ++i) state->step();
    const Tensor leaf = state->leaf.detach();
    return Traced{{is_exact ? leaf.to(at::kDouble) : leaf}, {}};
  };
}

std::vector<tune::Operator> cases(const tune::Sizes& sizes, const tune::Noise& noise) {
  std::vector<tune::Operator> all;
  for (const auto master_weights : {MasterWeights::kFp32, MasterWeights::kStochastic}) {
    all.push_back({.name = "adamw_8bit",
                   .inputs = {noise({sizes.layer_width, sizes.width}),
                              noise({sizes.layer_width, sizes.width})},
                   .run = {},
                   .slack = 2.0,
                   .prepare = [=](const Tensors& in) { return prepare(in, master_weights); }});
  }
  return all;
}

}  // namespace

tune::KernelProof adamw_8bit_proof() {
  return {"adamw_8bit", cases};
}

}  // namespace atelier::optim
