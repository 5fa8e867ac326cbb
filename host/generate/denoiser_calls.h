// The calls of a denoiser that make one step of several trajectories.
#pragma once

#include <span>
#include <vector>

#include "atelier/host/sample_scope.h"

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
  // float32 of each one's shape, guided where it is. strengths: of the LoRAs of each of them, see
  // LoraUse::use_each(). next: the denoiser that takes its place behind these calls; null: none
  // does. Where ranks share pictures there is one trajectory.
  std::vector<at::Tensor> velocities(std::span<const Trajectory* const> of,
                                     const ops::SampleStrengths* strengths,
                                     const model::RangedDenoiser* next);
  // Whether the last calls failed because it is not known which rows are which sample's.
  bool has_unresolved() const { return has_unresolved_; }

 private:
  struct Part;
  struct Call;
  struct Slice;

  std::vector<at::Tensor> make_step(std::span<const Part> all, const model::RangedDenoiser* next);
  at::Tensor by_halves(const Part& with, const model::RangedDenoiser* next);
  std::vector<Call> make_calls(std::span<const Part> parts) const;
  void fill(Call& call) const;
  void run(std::vector<Call>& calls);
  bool run_or_split(std::vector<Call>& calls, bool is_one);
  static Slice slice_of(const std::vector<Call>& calls, const Part& part);
  at::Tensor guided(const Part& with, const Slice& slice, const at::Tensor& without);
  bool batches_cfg(const Trajectory& of) const;
  void hand_over(const model::RangedDenoiser* next) const;
  // Runs what calls the denoiser for samples: with the LoRAs of each, and with its rows shared out
  // among ranks that do so.
  template <class F>
  auto with_samples(std::span<const Part> samples, const F& f);

  EngineContext& context_;
  Denoisers& denoisers_;
  bool splits_cfg_ = false;  // both halves at once did not fit
  bool has_unresolved_ = false;
};

}  // namespace atelier::generate
