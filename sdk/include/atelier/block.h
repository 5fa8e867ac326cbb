// The unit in which a model is streamed, recomputed and sharded, and the one seam around it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/nn/module.h"

namespace atelier {

using Tensors = std::vector<at::Tensor>;

// One transformer block, or whatever a family repeats.
//
// `forward` is pure: its outputs depend on `inputs`, on the block's weights and on the default
// generator, and on nothing else. It may run again in the backward pass, with the generator put
// back as it was. It never changes an operator's output in place. Integer tensors (see Segments)
// are allowed among the inputs.
class ATELIER_API Block : public nn::Module {
 public:
  using nn::Module::Module;
  ~Block() override;

  virtual Tensors forward(const Tensors& inputs) = 0;

  // Blocks of one kind cost the same at the same shapes, so the host measures each kind once.
  virtual std::string_view kind() const = 0;
};

// Runs blocks for a model. The host's implementations bring weights in, decide what is kept for the
// backward pass, count progress and cancel; the model only says which block comes next.
class ATELIER_API BlockRunner {
 public:
  virtual ~BlockRunner();
  virtual Tensors run(Block& block, const Tensors& inputs) = 0;

  // Keeps the block's weights where they can be drawn until the result is let go; run() does so by
  // itself for as long as it runs. Null when they are always there. A backward pass that draws them
  // holds the block.
  virtual std::shared_ptr<void> hold(Block& block);
};

// Runs each block where it stands. In grad mode the gradients of all uses of a weight leave the
// block as one.
class ATELIER_API DirectRunner final : public BlockRunner {
 public:
  ~DirectRunner() override;
  Tensors run(Block& block, const Tensors& inputs) override;
};

}  // namespace atelier
