// What goes from the first of two denoisers to the second one, against one walk over the levels by
// hand.
#include <ATen/ATen.h>

#include "host/generate/engine.h"
#include "host/random/noise.h"
#include "host/sampling/solvers.h"
#include "support/files.h"
#include "tests/host/generate/fake_model.h"

namespace atelier::generate {
namespace {

using namespace sampling;

constexpr double kHighRate = 0.5, kLowRate = 0.125, kLetters = 4 / 100.0;
constexpr size_t kSwitch = 4;  // the first level of the second denoiser

Request request_of(std::string_view solver, std::vector<uint64_t> seeds) {
  Request request;
  request.inputs["prompt"] = std::string("four");
  request.sigmas = {1.0F, 0.9F, 0.75F, 0.6F, 0.45F, 0.3F, 0.2F, 0.1F, 0.0F};
  request.solver = sampling::find_solver(solver);
  request.target = {1, 32, 48};
  request.seeds = std::move(seeds);
  return request;
}

// The latents that the denoiser is given at each level, from both denoisers of one run.
std::vector<at::Tensor> seen_by_both(const Request& request, bool both_stay) {
  FakeModel model;
  model.rates = {{"dit", kHighRate}, {"dit_low", kLowRate}};
  std::vector<std::string> log;
  progress::Progress progress{progress::Options{.quiet = true}};
  EngineModel of = two_denoisers(model, log);
  if (both_stay) of.stays = {"dit", "dit_low"};
  Engine engine(std::move(of), progress);
  engine.run(request, [](size_t, int64_t, const at::Tensor&) {});
  return model.latents_seen;
}

// Walks one image by one solver that walks through all levels while the function that says
// the velocity changes. `restarts`: by a solver of its own for each of the two functions.
std::vector<at::Tensor> walked(const Request& request, uint64_t seed, bool restarts = false) {
  at::Tensor x = random::normal_noise({.seed = seed}, {1, 4, 1, 4, 6});
  const std::vector<float>& sigmas = request.sigmas;
  auto solver = request.solver.make(sigmas, x);
  std::vector<at::Tensor> seen;
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    if (restarts && i == kSwitch)
      solver = request.solver.make(std::span(sigmas).subspan(kSwitch), x);
    seen.push_back(x.clone());
    solver->step(x, x * (i < kSwitch ? kHighRate : kLowRate) + kLetters);
  }
  return seen;
}

TEST_CASE("The second denoiser goes on with the latents and the history of the first one",
          "[generate]") {
  for (const SolverSpec& solver : solvers()) {
    INFO(solver.name);
    const Request request = request_of(solver.name, {7});
    const auto seen = seen_by_both(request, /*both_stay=*/false);
    const auto wanted = walked(request, 7);
    REQUIRE(seen.size() == wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      INFO(i);
      CHECK(at::equal(seen[i], wanted[i]));
    }
    // It shows: a solver that forgets goes elsewhere, but for the one that remembers nothing.
    const auto forgotten = walked(request, 7, /*restarts=*/true);
    CHECK(at::equal(seen[kSwitch], forgotten[kSwitch]));
    CHECK(at::equal(seen.back(), forgotten.back()) == (solver.name == "euler"));
  }
}

TEST_CASE("Images that wait for the second denoiser keep what is theirs", "[generate]") {
  const std::vector<uint64_t> seeds = {7, 8, 9};
  for (const SolverSpec& solver : solvers()) {
    for (const bool both_stay : {false, true}) {
      INFO(solver.name << (both_stay ? ", one after the other" : ", all through the first one"));
      const Request request = request_of(solver.name, seeds);
      const auto seen = seen_by_both(request, both_stay);
      const size_t steps = request.sigmas.size() - 1, later = steps - kSwitch;
      REQUIRE(seen.size() == seeds.size() * steps);
      for (size_t image = 0; image < seeds.size(); ++image) {
        const auto wanted = walked(request, seeds[image]);
        for (size_t i = 0; i < steps; ++i) {
          const size_t call = both_stay     ? image * steps + i
                              : i < kSwitch ? image * kSwitch + i
                                            : seeds.size() * kSwitch + image * later + i - kSwitch;
          CHECK(at::equal(seen[call], wanted[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace atelier::generate
