#include "host/generate/denoiser_calls.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/distributed/staged.h"
#include "host/generate/guidance.h"
#include "host/plugins/guard.h"

namespace atelier::generate {

// Samples of a trajectory in a call: with the prompt, or without it.
struct DenoiserCalls::Part {
  const Trajectory* of;
  bool without = false;
  bool operator==(const Part&) const = default;
  int64_t rows() const { return of->count(); }
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
                                                  const model::RangedDenoiser* next) {
  if (context_.of.ranks.guidance) return {by_halves(*of.front(), next)};
  std::vector<Part> first, second;
  for (const Trajectory* one : of) first.push_back({one});
  for (const Trajectory* one : of)
    if (one->is_guided()) (batches_cfg(*one) ? first : second).push_back({one, /*without=*/true});
  std::vector<Call> calls = make_calls(first);
  if (second.empty()) hand_over(next);
  if (!run_or_split(calls, of.size() == 1)) {
    calls.clear();
    return velocities(of, next);
  }
  std::vector<Call> others = make_calls(second);
  if (!second.empty()) {
    hand_over(next);
    run(others);
  }
  std::vector<at::Tensor> made;
  for (const Trajectory* one : of) {
    const Slice with = find(calls, {one});
    if (!one->is_guided()) {
      made.push_back(with.v);
      continue;
    }
    const Part without = {one, /*without=*/true};
    const bool is_second = std::ranges::find(second, without) != second.end();
    made.push_back(guided(*one, with, find(is_second ? others : calls, without).v));
  }
  return made;
}

// Each of two ranks makes one half.
at::Tensor DenoiserCalls::by_halves(const Trajectory& of, const model::RangedDenoiser* next) {
  distributed::Group& halves = *context_.of.ranks.guidance;
  const Part with = {&of}, own = {&of, /*without=*/of.is_guided() && !halves.is_first()};
  std::vector<Call> calls = make_calls({&own, 1});
  hand_over(next);
  run(calls);
  if (!of.is_guided()) return calls.front().v;
  const at::Tensor both = distributed::gathered(halves, calls.front().v);
  std::vector<Call> told = make_calls({&with, 1});
  told.front().v = both[0];
  return guided(of, find(told, with), both[1]);
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
auto DenoiserCalls::with_ranks(const F& f) const {
  std::optional<SequenceScope> shares_rows;
  if (SequenceGroup* const rows = context_.of.ranks.sequence.get()) shares_rows.emplace(*rows);
  return f();
}

void DenoiserCalls::run(std::vector<Call>& calls) const {
  with_ranks([&] {
    for (Call& call : calls)
      call.v = context_.of.model.denoise(call.in, context_.runner()).to(at::kFloat);
  });
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

DenoiserCalls::Slice DenoiserCalls::find(const std::vector<Call>& calls, const Part& part) {
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

at::Tensor DenoiserCalls::guided(const Trajectory& of, const Slice& with,
                                 const at::Tensor& without) const {
  const GuideInputs in = {with.v, without, of.cfg_scale(), with.in};
  const at::Tensor made =
      with_ranks([&] { return context_.of.model.guide(in, context_.runner()); });
  return renormed(made, with.v, of.request().cfg_renorm, of.request().cfg_renorm_ratio);
}

}  // namespace atelier::generate
