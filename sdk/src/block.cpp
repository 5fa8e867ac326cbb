#include "atelier/block.h"

namespace atelier {

Block::~Block() = default;
BlockRunner::~BlockRunner() = default;
DirectRunner::~DirectRunner() = default;

std::shared_ptr<void> BlockRunner::hold(Block&) {
  return nullptr;
}

Tensors DirectRunner::run(Block& block, const Tensors& inputs) {
  return block.forward(inputs);
}

}  // namespace atelier
