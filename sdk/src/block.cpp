#include "atelier/block.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/leaf_scope.h"

namespace atelier {

Block::~Block() = default;
BlockRunner::~BlockRunner() = default;
DirectRunner::~DirectRunner() = default;

std::shared_ptr<void> BlockRunner::hold(Block&) {
  return nullptr;
}

Tensors DirectRunner::run(Block& block, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return block.forward(inputs);
  const ops::LeafScope scope;
  // Inputs as trained tensors: each under an alias. The last one is made first, so that the
  // backward pass meets them in their order.
  Tensors own = inputs;
  for (auto input = own.rbegin(); input != own.rend(); ++input) {
    if (input->defined() && input->requires_grad()) *input = input->alias();
  }
  return block.forward(own);
}

}  // namespace atelier
