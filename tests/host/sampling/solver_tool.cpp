// Walks latents through a schedule for solvers_parity_test.py.
//
//   solver_tool SOLVER STEPS HIGH LOW SHIFT KEPT IN.safetensors OUT.safetensors
//
// The grid falls from HIGH to LOW and is shifted by SHIFT; the part KEPT of its steps is walked. IN
// holds "latents" and "velocities" [steps, ...]; OUT holds "sigmas", "timesteps" in whole
// thousandths, and "latents" after each step.
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "host/files/checkpoint.h"
#include "host/files/safetensors_writer.h"
#include "host/sampling/sigma_schedule.h"
#include "host/sampling/solvers.h"

namespace {

using namespace atelier;

void walk(const std::vector<std::string>& words) {
  const ScheduleDefaults schedule = {
      .shift = {.kind = SigmaShift::Kind::kConstant, .value = std::stod(words.at(4))},
      .grid = {.high = std::stod(words.at(2)), .low = std::stod(words.at(3))},
      .whole_timesteps = true};
  const std::vector<float> sigmas = sampling::keep_last_steps(
      sampling::make_sigmas(schedule, {.num_steps = std::stoi(words.at(1))}),
      std::stod(words.at(5)));
  const auto file = files::Checkpoint::open(words.at(6), {words.at(6)});
  at::Tensor x = file.read("latents").clone();
  const at::Tensor velocities = file.read("velocities");
  const auto solver = sampling::find_solver(words.at(0)).make(sigmas, x);
  std::vector<at::Tensor> walked;
  for (int64_t i = 0; i + 1 < std::ssize(sigmas); ++i) {
    solver->step(x, velocities[i]);
    walked.push_back(x.clone());
  }
  files::write_safetensors(
      words.at(7), {{"sigmas", at::tensor(sigmas, at::kFloat)},
                    {"timesteps", at::tensor(sampling::whole_timesteps(sigmas), at::kFloat) * 1000},
                    {"latents", at::stack(walked)}});
}

}  // namespace

int main(int count, char** words) {
  try {
    walk({words + 1, words + count});
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
