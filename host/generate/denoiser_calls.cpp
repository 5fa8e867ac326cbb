#include "host/generate/denoiser_calls.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include "atelier/error.h"

#include "host/distributed/staged.h"
#include "host/generate/guidance.h"
#include "host/plugins/guard.h"

namespace atelier::generate {

// Samples of a trajectory in a call: with the prompt, or without it.
struct DenoiserCalls::Part {
  const Trajectory* of;
  const std::vector<double>* strengths = nullptr;  // of its LoRAs; null: all samples have the same
  bool without = false;
  bool operator==(const Part&) const = default;
  int64_t rows() const { return of->count(); }
  Part other_half() const { return {of, strengths, /*without=*/true}; }
};

// Parts of one size, level and step.
struct DenoiserCalls::Call {
  std::vector<Part> parts;
  std::vector<const Conditioning*> cond;  // that `in` points to
  DenoiseInputs in;
  at::Tensor v;  // float32, once it ran
};

// What a part has of its call.
struct DenoiserCalls::Slice {
  DenoiseInputs in;
  at::Tensor v;
};

namespace {

// Whether the next steps of two trajectories are alike for the denoiser.
bool agree(const Trajectory& a, const Trajectory& b) {
  return a.x_BCTHW().sizes().slice(1) == b.x_BCTHW().sizes().slice(1) && a.step() == b.step() &&
         a.steps() == b.steps() && a.sigma() == b.sigma() && a.next_sigma() == b.next_sigma() &&
         a.request().whole_timesteps == b.request().whole_timesteps;
}

}  // namespace

std::vector<at::Tensor> DenoiserCalls::velocities(std::span<const Trajectory* const> of,
                                                  const ops::SampleStrengths* strengths,
                                                  const model::RangedDenoiser* next) {
  has_unresolved_ = false;
  std::vector<Part> all;
  for (size_t i = 0; i < of.size(); ++i)
    all.push_back({of[i], strengths != nullptr ? &(*strengths)[i] : nullptr});
  if (context_.of.ranks.guidance) return {by_halves(all.front(), next)};
  return make_step(all, next);
}

std::vector<at::Tensor> DenoiserCalls::make_step(std::span<const Part> all,
                                                 const model::RangedDenoiser* next) {
  std::vector<Part> first(all.begin(), all.end()), second;
  for (const Part& part : all) {
    if (part.of->is_guided()) (batches_cfg(*part.of) ? first : second).push_back(part.other_half());
  }
  std::vector<Call> calls = make_calls(first);
  if (second.empty()) hand_over(next);
  if (!run_or_split(calls, all.size() == 1)) {
    calls.clear();
    return make_step(all, next);
  }
  std::vector<Call> others = make_calls(second);
  if (!second.empty()) {
    hand_over(next);
    run(others);
  }
  std::vector<at::Tensor> made;
  for (const Part& part : all) {
    const Slice with = slice_of(calls, part);
    if (!part.of->is_guided()) {
      made.push_back(with.v);
      continue;
    }
    const bool is_second = std::ranges::find(second, part.other_half()) != second.end();
    const Slice without = slice_of(is_second ? others : calls, part.other_half());
    made.push_back(guided(part, with, without.v));
  }
  return made;
}

// Each of two ranks makes one half.
at::Tensor DenoiserCalls::by_halves(const Part& with, const model::RangedDenoiser* next) {
  distributed::Group& halves = *context_.of.ranks.guidance;
  const bool is_guided = with.of->is_guided();
  const Part own = is_guided && !halves.is_first() ? with.other_half() : with;
  std::vector<Call> calls = make_calls({&own, 1});
  hand_over(next);
  run(calls);
  if (!is_guided) return calls.front().v;
  const at::Tensor both = distributed::gathered(halves, calls.front().v);
  std::vector<Call> told = make_calls({&with, 1});
  told.front().v = both[0];
  return guided(with, slice_of(told, with), both[1]);
}

bool DenoiserCalls::batches_cfg(const Trajectory& of) const {
  return of.request().batches_cfg && !splits_cfg_;
}

void DenoiserCalls::hand_over(const model::RangedDenoiser* next) const {
  if (next != nullptr) denoisers_.hand_over(*next);
}

std::vector<DenoiserCalls::Call> DenoiserCalls::make_calls(std::span<const Part> parts) const {
  std::vector<Call> calls;
  for (const Part& part : parts) {
    auto call = std::ranges::find_if(
        calls, [&](const Call& one) { return agree(*one.parts.front().of, *part.of); });
    if (call == calls.end()) call = calls.emplace(calls.end());
    call->parts.push_back(part);
  }
  for (Call& call : calls) fill(call);
  return calls;
}

void DenoiserCalls::fill(Call& call) const {
  const Trajectory& first = *call.parts.front().of;
  int64_t rows = 0;
  std::vector<at::Tensor> levels, next_levels;
  for (const Part& part : call.parts) {
    const Conditionings& cond = part.of->cond();
    call.cond.insert(call.cond.end(), static_cast<size_t>(part.rows()),
                     part.without ? &cond.without : &cond.with);
    levels.push_back(part.of->level(part.of->step(), part.rows()));
    next_levels.push_back(part.of->level(part.of->step() + 1, part.rows()));
    rows += part.rows();
  }
  std::vector<int64_t> shape = first.x_BCTHW().sizes().vec();
  shape[0] = rows;
  const auto options = first.x_BCTHW().options().dtype(denoisers_.current()->dtype);
  call.in = {.x_BCTHW = at::empty(shape, options),
             .sigma_B = at::cat(levels),
             .cond = call.cond,
             .level = denoisers_.level_of(first.request(), first.step()),
             .denoiser = denoisers_.current()->name(),
             .next_sigma_B = at::cat(next_levels),
             .step = first.step(),
             .steps = first.steps()};
  int64_t row = 0;
  for (const Part& part : call.parts) {
    call.in.x_BCTHW.narrow(0, row, part.rows()).copy_(part.of->x_BCTHW());
    row += part.rows();
  }
}

template <class F>
auto DenoiserCalls::with_samples(std::span<const Part> samples, const F& f) {
  ops::SampleStrengths strengths;
  for (const Part& part : samples) {
    if (part.strengths != nullptr)
      strengths.insert(strengths.end(), static_cast<size_t>(part.rows()), *part.strengths);
  }
  std::optional<SequenceScope> shares_rows;
  if (SequenceGroup* const rows = context_.of.ranks.sequence.get()) shares_rows.emplace(*rows);
  if (strengths.empty()) return f();
  ops::SampleScope scope(strengths);
  const auto notes = c10::make_scope_exit([&] { has_unresolved_ |= scope.is_unresolved(); });
  return f();
}

void DenoiserCalls::run(std::vector<Call>& calls) {
  std::vector<Part> samples;
  std::vector<DenoiseInputs> inputs;
  for (const Call& call : calls) {
    samples.insert(samples.end(), call.parts.begin(), call.parts.end());
    inputs.push_back(call.in);
  }
  const std::vector<at::Tensor> made = with_samples(samples, [&]() -> std::vector<at::Tensor> {
    Model& model = context_.of.model;
    if (inputs.size() == 1) return {model.denoise(inputs.front(), context_.runner())};
    return model.denoise_all(inputs, context_.runner());
  });
  for (size_t i = 0; i < calls.size(); ++i) calls[i].v = made[i].to(at::kFloat);
}

// False where both halves of guidance do not fit at once: from this step on they are two calls.
bool DenoiserCalls::run_or_split(std::vector<Call>& calls, bool is_one) {
  try {
    run(calls);
    return true;
  } catch (...) {
    const std::optional<Error> failure = plugins::out_of_memory();
    const bool has_both = is_one && calls.front().parts.size() > 1;
    // Other ranks would go on with one call.
    if (!failure || !has_both || !context_.of.ranks.is_alone()) throw;
    denoisers_.take_back();
    splits_cfg_ = true;
    context_.progress.warn(
        failure->message() +
        "; from this step on guidance is made in two calls, as with --cfg_batch off");
    return false;
  }
}

DenoiserCalls::Slice DenoiserCalls::slice_of(const std::vector<Call>& calls, const Part& part) {
  for (const Call& call : calls) {
    int64_t row = 0;
    for (const Part& one : call.parts) {
      const int64_t rows = one.rows();
      if (one == part) {
        Slice slice = {call.in, call.v.narrow(0, row, rows)};
        slice.in.x_BCTHW = call.in.x_BCTHW.narrow(0, row, rows);
        slice.in.sigma_B = call.in.sigma_B.narrow(0, row, rows);
        slice.in.next_sigma_B = call.in.next_sigma_B->narrow(0, row, rows);
        slice.in.cond = call.in.cond.subspan(static_cast<size_t>(row), static_cast<size_t>(rows));
        return slice;
      }
      row += rows;
    }
  }
  throw Error(ErrorCode::kInternal, "a part of a step was not made");
}

at::Tensor DenoiserCalls::guided(const Part& with, const Slice& slice, const at::Tensor& without) {
  const Trajectory& of = *with.of;
  const GuideInputs in = {slice.v, without, of.cfg_scale(), slice.in};
  const at::Tensor made =
      with_samples({&with, 1}, [&] { return context_.of.model.guide(in, context_.runner()); });
  return renormed(made, slice.v, of.request().cfg_renorm, of.request().cfg_renorm_ratio);
}

}  // namespace atelier::generate
