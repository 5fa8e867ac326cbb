// Work that can be asked to end: between the products of a model, and between the tiles of a large
// one.
#pragma once

#include <functional>

#include "atelier/export.h"

namespace atelier::ops {

// Calls the check of the innermost StopScope; does nothing where there is none. For operators, and
// for whoever runs blocks.
ATELIER_API void check_stop();

// While one lives, `check` is called at every edge of work, and throws to end it: before each
// product, convolution and attention of a model, forward and backward, and between the tiles of a
// large attention. It is called on whatever thread computes. Of several the innermost counts; they
// are made and destroyed on one thread.
class ATELIER_API StopScope {
 public:
  explicit StopScope(std::function<void()> check);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  friend void check_stop();
  std::function<void()> check_;
  const StopScope* outer_;
};

}  // namespace atelier::ops
