// The solvers that images are made with.
#pragma once

#include <span>
#include <string_view>

#include "atelier/solver.h"

namespace atelier::sampling {

// The solvers of every family.
std::span<const SolverSpec> solvers();

// The solver of that name, among these and a family's own. Throws Error{kNotFound} naming the
// solvers there are.
const SolverSpec& find_solver(std::string_view name, std::span<const SolverSpec> own = {});

}  // namespace atelier::sampling
