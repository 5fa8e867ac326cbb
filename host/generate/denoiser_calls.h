// The calls of a denoiser that make one step of several trajectories.
#pragma once

#include <span>
#include <vector>

#include "host/generate/denoisers.h"
#include "host/generate/engine_context.h"
#include "host/generate/trajectory.h"

namespace atelier::generate {

// Packs samples of all trajectories with the prompt, and those without it, into one call. Not
// thread-safe.
class DenoiserCalls {
 public:
  // Both outlive it.
  DenoiserCalls(EngineContext& context, Denoisers& denoisers)
      : context_(context), denoisers_(denoisers) {}

  // The velocities at the next steps of `of`, all of which the denoiser that is there makes:
  // float32 of each one's shape, guided where it is. next: the denoiser that takes its place behind
  // these calls; null: none does. Where ranks share pictures there is one trajectory.
  std::vector<at::Tensor> velocities(std::span<const Trajectory* const> of,
                                     const model::RangedDenoiser* next);

 private:
  struct Part;
  struct Call;
  struct Slice;

  at::Tensor by_halves(const Trajectory& of, const model::RangedDenoiser* next);
  std::vector<Call> make_calls(std::span<const Part> parts) const;
  void fill(Call& call) const;
  void run(std::vector<Call>& calls) const;
  bool run_or_split(std::vector<Call>& calls, bool is_one);
  static Slice find(const std::vector<Call>& calls, const Part& part);
  at::Tensor guided(const Trajectory& of, const Slice& with, const at::Tensor& without) const;
  bool batches_cfg(const Trajectory& of) const;
  void hand_over(const model::RangedDenoiser* next) const;
  // Runs what may call the denoiser, with its rows shared out among ranks that do so.
  template <class F>
  auto with_ranks(const F& f) const;

  EngineContext& context_;
  Denoisers& denoisers_;
  bool splits_cfg_ = false;  // both halves at once did not fit
};

}  // namespace atelier::generate
