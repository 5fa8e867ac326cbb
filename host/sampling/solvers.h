// The solvers that images are made with.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::sampling {

// Those of every family.
std::span<const SolverSpec> solvers();

// All that a family's images may be made with: those, then its own.
std::vector<SolverSpec> solvers_of(const ModelFamily& family);

// Throws Error{kNotFound} naming the solvers there are.
SolverSpec find_solver(const ModelFamily& family, std::string_view name);

}  // namespace atelier::sampling
