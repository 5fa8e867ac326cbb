// How latents go from one noise level to the next.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// Walks one batch of latents through the levels it was made for. What it remembers of earlier steps
// is on the latents' device, and is allocated when it is made. Steps wait for nothing. Not
// thread-safe.
class ATELIER_API Solver {
 public:
  virtual ~Solver();

  // Takes `x` to the next level, in place. Called once for each level but the last one, in order.
  // x: float32. v: the velocity there, of x's shape, float32; it is left as it is.
  virtual void step(at::Tensor& x, const at::Tensor& v) = 0;
  // Calls `visit` with all that it remembers: between two steps it may be moved elsewhere and back.
  virtual void visit(const std::function<void(at::Tensor&)>& visit) = 0;
};

struct SolverSpec {
  std::string_view name;   // chosen with --solver
  std::string_view title;  // as images name it
  std::string_view help;   // one line
  // sigmas: levels that fall from at most 1 to 0, one more than steps. like: the latents that will
  // be walked.
  std::unique_ptr<Solver> (*make)(std::span<const float> sigmas, const at::Tensor& like);
};

}  // namespace atelier
