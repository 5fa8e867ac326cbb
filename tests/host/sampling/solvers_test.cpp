#include "host/sampling/solvers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "atelier/error.h"

#include "host/sampling/sigma_schedule.h"
#include "support/files.h"

namespace atelier::sampling {
namespace {

// Noise walked to the end: velocity(x, sigma) says where to.
template <typename F>
at::Tensor walk(std::string_view name, const std::vector<float>& sigmas, at::Tensor x,
                const F& velocity) {
  const std::unique_ptr<Solver> solver = find_solver(name).make(sigmas, x);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    const at::Tensor v = velocity(x, sigmas[i]), before = v.clone();
    solver->step(x, v);
    REQUIRE(at::equal(v, before));
  }
  return x;
}

// Data of variance 4: what is clean is known in the mean, and where the flow ends, too.
at::Tensor gaussian_velocity(const at::Tensor& x, double sigma) {
  const double clean = (1 - sigma) * (1 - sigma) * 4, all = clean + sigma * sigma;
  return x * ((1.0 - clean / (1 - sigma + 1e-12) / all) / sigma);
}

// Allocations of this thread while it is its debug info.
struct LargestAllocation final : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;
  void reportMemoryUsage(void*, int64_t allocated, size_t, size_t, c10::Device) override {
    bytes = std::max(bytes, allocated);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

double error_of(std::string_view name, int steps) {
  const std::vector<float> sigmas = make_sigmas(ScheduleDefaults{}, {.num_steps = steps});
  const at::Tensor noise = at::ones({1, 4});
  return (walk(name, sigmas, noise.clone(), gaussian_velocity) - 2 * noise)
      .abs()
      .max()
      .item<double>();
}

}  // namespace

TEST_CASE("Each solver ends at clean latents that the velocity never changes", "[generate]") {
  at::manual_seed(3);
  const at::Tensor clean = at::randn({2, 4, 1, 3, 3}), noise = at::randn({2, 4, 1, 3, 3});
  for (const SolverSpec& solver : solvers()) {
    for (const int steps : {1, 2, 3, 9}) {
      INFO(solver.name << ", " << steps << " steps");
      const auto to_clean = [&](const at::Tensor& x, double sigma) { return (x - clean) / sigma; };
      const std::vector<float> sigmas = make_sigmas(ScheduleDefaults{}, {.num_steps = steps});
      CHECK(at::allclose(walk(solver.name, sigmas, noise.clone(), to_clean), clean, 0, 1e-5));
    }
  }
}

TEST_CASE("Solvers of order 2 come nearer in as many steps", "[generate]") {
  const double straight = error_of("euler", 20);
  for (const char* name : {"unipc", "dpm++"}) {
    INFO(name);
    CHECK(error_of(name, 20) < straight / 4);
    CHECK(error_of(name, 40) < error_of(name, 20) / 3);
  }
}

TEST_CASE("Levels that coincide stop no solver", "[generate]") {
  const std::vector<float> sigmas =
      make_sigmas(ScheduleDefaults{}, {.num_steps = 8, .flow_shift = 1e9});
  for (const SolverSpec& solver : solvers()) {
    INFO(solver.name);
    const at::Tensor x = walk(solver.name, sigmas, at::ones({1, 4}),
                              [](const at::Tensor& at, double) { return at * 0.5; });
    CHECK(at::isfinite(x).all().item<bool>());
  }
}

TEST_CASE("Steps allocate no latents", "[generate]") {
  const std::vector<float> sigmas = make_sigmas(ScheduleDefaults{}, {.num_steps = 5});
  for (const SolverSpec& spec : solvers()) {
    INFO(spec.name);
    at::Tensor x = at::ones({1, 1000});
    const at::Tensor v = at::ones({1, 1000});
    const auto solver = spec.make(sigmas, x);
    const auto largest = std::make_shared<LargestAllocation>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, largest);
    for (int i = 0; i < 5; ++i) solver->step(x, v);
    CHECK(largest->bytes < static_cast<int64_t>(x.nbytes()));
  }
}

TEST_CASE("A solver that there is not is answered with the nearest one", "[generate]") {
  CHECK(find_solver("euler").title == "Euler");
  test::expect_error(ErrorCode::kNotFound, {"there is no solver \"unipcc\"", "did you mean unipc?"},
                     [] { find_solver("unipcc"); });
  test::expect_error(ErrorCode::kNotFound, {"\"euler\", \"unipc\", \"dpm++\""},
                     [] { find_solver("heun"); });
}

}  // namespace atelier::sampling
