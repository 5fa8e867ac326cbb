#include "host/train/trainer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>

#include "atelier/error.h"
#include "atelier/host/stop.h"

#include "host/data/prefetcher.h"
#include "host/plugins/guard.h"
#include "host/random/counter.h"

namespace atelier::train {

namespace {

using order::Task;
using order::Training;
using parameters::Selection;
using samples::Samples;

constexpr int64_t kStepsAhead = 4;  // that are read and decoded before they are needed

data::Order make_order(const Samples& samples, const Training& config) {
  const std::vector<int64_t> shapes = samples.shapes();
  data::OrderOptions options = config.order;
  options.seed = config.seed;
  return data::Order(shapes, options);
}

int64_t steps_of(const data::Order& order, const Training& config) {
  const int64_t all = order.steps_per_epoch() * config.num_epochs;
  return config.max_train_steps.value_or(all);
}

// What batches are dealt by: tokens that the denoiser computes.
std::vector<int64_t> costs_of(const Samples& samples, const Training& config) {
  std::vector<int64_t> costs = samples.tokens();
  if (config.task != Task::kDirectDistill) return costs;
  for (size_t i = 0; i < costs.size(); ++i) costs[i] *= distillation_steps(samples.values(i));
  return costs;
}

// The samples of one shape that make the dearest batch, in the places of a step.
data::MicroBatch largest_batch(std::span<const int64_t> shapes, std::span<const int64_t> costs,
                               int64_t batch_size) {
  struct Batch {
    int64_t cost = 0;
    data::MicroBatch samples = {};
  };
  std::vector<size_t> items(costs.size());
  std::iota(items.begin(), items.end(), size_t{0});
  std::ranges::stable_sort(items, std::greater(), [&](size_t item) { return costs[item]; });
  std::map<int64_t, Batch> batches;  // by shape
  for (const size_t item : items) {
    Batch& batch = batches[shapes[item]];
    if (std::ssize(batch.samples) == batch_size) continue;
    batch.samples.push_back({.item = item, .slot = static_cast<uint32_t>(batch.samples.size())});
    batch.cost += costs[item];
  }
  return std::ranges::max_element(batches, {}, [](const auto& batch) { return batch.second.cost; })
      ->second.samples;
}

}  // namespace

int64_t count_steps(const Samples& samples, const Training& config) {
  return steps_of(make_order(samples, config), config);
}

Trainer::Trainer(const RunContext& context, Selection selection, std::function<double()> now)
    : context_(context),
      config_(context.config),
      order_(make_order(context.samples, context.config)),
      costs_(costs_of(context.samples, context.config)),
      total_steps_(steps_of(order_, context.config)),
      settles_at_once_(context.model.device().is_cpu() && !context.model.is_simulated()),
      state_(context, std::move(selection)),
      memory_(context.model, context.config, context.layout, state_.trained(), context.progress,
              context.timeline),
      timesteps_(
          timesteps_of(context.model, context.config.timesteps,
                       parameters::running_denoisers(context.model, state_.trained().selection()))),
      objective_(context.model,
                 parameters::running_denoisers(context.model, state_.trained().selection()),
                 memory_.runner(), timesteps_, context.config.seed),
      step_(context.config, state_.trained(), state_.optimizer(), objective_, memory_, total_steps_,
            context.timeline, context.group),
      agreement_(context.config.max_skipped_steps, std::move(now), context.group),
      monitor_(context, state_, objective_, timesteps_, agreement_, memory_),
      caption_seed_(random::stream_seed(config_.seed, random::Stream::kCaptionDropout)),
      frames_seed_(random::stream_seed(config_.seed, random::Stream::kFrames)) {}

double Trainer::waited_for_others() const {
  return context_.group ? context_.group->seconds_waited() : 0.0;
}

// Called by the threads that read ahead.
StepData Trainer::read_step(int64_t step) const {
  data::StepBatches plan = order_.step(step);
  if (context_.group == nullptr) return read(std::move(plan), step);
  const int P = config_.sequence_parallel;  // ranks that have the same batches
  std::vector<std::vector<int64_t>> calls = calls_of(plan);
  plan = data::share(std::move(plan), costs_, context_.group->rank() / P,
                     context_.group->size() / P, context_.in_lockstep());
  StepData data = read(std::move(plan), step);
  data.calls = std::move(calls);
  return data;
}

// Where rows have their own numbers of steps, and all processes run the same blocks: of each batch
// of a process, the most that any of them needs meanwhile. Empty elsewhere.
std::vector<std::vector<int64_t>> Trainer::calls_of(const data::StepBatches& plan) const {
  std::vector<std::vector<int64_t>> calls;
  if (!context_.in_lockstep() || config_.task != Task::kDirectDistill) return calls;
  const int size = context_.group->size() / config_.sequence_parallel;
  for (const std::vector<size_t>& round : data::rounds(plan, costs_, size)) {
    std::vector<int64_t>& most = calls.emplace_back();
    for (const size_t batch : round) {
      std::vector<int64_t> needed;
      for (const data::StepSample& place : plan.batches[batch]) {
        const auto more = objective_.distillation_calls(context_.samples.values(place.item));
        needed.resize(more.size());
        std::ranges::transform(needed, more, needed.begin(), std::plus());
      }
      most.resize(needed.size());
      std::ranges::transform(most, needed, most.begin(), std::ranges::max);
    }
  }
  return calls;
}

// `is_trial`: nothing is dropped.
StepData Trainer::read(data::StepBatches plan, int64_t step, bool is_trial) const {
  StepData data;
  data.plan = std::move(plan);
  data.is_trial = is_trial;
  for (const data::MicroBatch& batch : data.plan.batches) {
    std::vector<StepSample>& samples = data.batches.emplace_back();
    for (const data::StepSample& place : batch) {
      const bool drops_caption =
          !is_trial && random::uniform(caption_seed_, place.slot, static_cast<uint32_t>(step)) <
                           config_.caption_dropout_rate;
      const double drawn = random::uniform(frames_seed_, place.slot, static_cast<uint32_t>(step));
      samples.push_back({context_.samples.load(place.item, drops_caption, drawn), place.slot});
      objective_.read_ahead(samples.back(), step, config_.task != Task::kDirectDistill);
    }
  }
  return data;
}

// With several processes: makes the passes of the largest batch that may come, so that it is known
// before the first step whether it fits everywhere, and all keep as much as the one with the least
// room. They are made twice: what blocks keep for the backward pass is measured, and then planned.
// Where all batches have one size, the first steps show it.
void Trainer::try_largest() {
  if (context_.group == nullptr || state_.counters().step >= total_steps_ ||
      std::ranges::count(costs_, costs_.front()) == std::ssize(costs_))
    return;
  const data::MicroBatch batch =
      largest_batch(context_.samples.shapes(), costs_, config_.order.batch_size);
  const data::StepBatches plan = {
      .batches = {batch}, .numbers = {0}, .samples = std::ssize(batch), .passes = 1};
  StepData data = read(plan, state_.counters().step, /*is_trial=*/true);
  data.calls = calls_of(plan);
  if (make_step(data) && make_step(data)) memory_.agree(*context_.group);
}

// One attempt at a step, which may fail on any process, for want of memory or by a stop:
//
//   passes of all batches ──► gather: how did it go for all? ──► optimizer ──► kept
//        │ fails                     │ not whole everywhere
//        ▼                           ▼
//   give up, gather «mine»      give up, what was gathered
//
// Up to the gathering nothing has moved, so that the attempt can be made again by all, with less
// kept. Processes that share a step's products cannot reach the gathering without each other: there
// all leave (leave_step()). A failure behind the gathering is this process's alone; the others go
// on, and the step cannot be made again. What follows from all attempts is Agreement's to decide.
Trainer::Outcome Trainer::attempt_step(const StepData& data) {
  Outcome outcome;
  std::optional<Attempt> gathered;
  bool leaves = false;
  const double begin = memory::seconds_now() - waited_for_others();
  const auto own_seconds = [&] { return memory::seconds_now() - waited_for_others() - begin; };
  const auto gather_status = [this](const std::vector<double>& numbers) {
    return step_.gather_status(numbers);
  };
  try {
    const ops::StopScope stops([this] {
      if (!context_.computes_with_others() && agreement_.should_give_up_step()) throw_stopped();
    });
    std::optional<SequenceScope> shares_rows;
    if (context_.sequence != nullptr) shares_rows.emplace(*context_.sequence);
    agreement_.begin_step();
    if (context_.group) context_.group->begin_work();
    outcome.result = step_.run(data, state_.counters().step, [&] {
      if (context_.blocks) context_.blocks->compare();
      gathered =
          agreement_.gather({.seconds = own_seconds(), .usage = monitor_.usage()}, gather_status);
      if (gathered->end != Attempt::End::kWhole) throw_stopped();
      state_.leave_to_optimizer();
    });
    agreement_.end_step();
    return outcome;
  } catch (...) {
    outcome.failure = plugins::out_of_memory();
    const bool is_called_off = context_.group && context_.group->is_called_off();
    leaves = context_.computes_with_others() && !gathered && (outcome.failure || is_called_off);
    const bool is_given_up = leaves || agreement_.has_given_up_step() ||
                             (gathered && gathered->end != Attempt::End::kWhole);
    if (!outcome.failure && !(is_given_up && is_stop())) throw;
  }
  // From here on nothing of the step is held any more.
  if (leaves) return leave_step(std::move(outcome));
  const bool is_stopped = agreement_.has_given_up_step();
  if (outcome.failure && !is_stopped && !has_reported_) memory_.report(state_.optimizer());
  const Attempt mine = {.end = is_stopped ? Attempt::End::kStopped : Attempt::End::kOutOfMemory,
                        .has_moved = step_.give_up(),
                        .can_keep_less = memory_.can_keep_less(),
                        .seconds = own_seconds(),
                        .usage = monitor_.usage()};
  if (!gathered) {
    outcome.attempt = agreement_.gather(mine, gather_status);
  } else if (gathered->end != Attempt::End::kWhole) {
    outcome.attempt = *gathered;
  } else {  // the others go on with this step, which cannot be repeated then
    outcome.attempt = mine;
    outcome.attempt.has_moved |= context_.group != nullptr;
  }
  return outcome;
}

// Processes that compute a step together cannot come to its end without each other: where one has
// failed, all leave it.
Trainer::Outcome Trainer::leave_step(Outcome outcome) {
  if (outcome.failure) context_.group->call_off();
  if (outcome.failure && !has_reported_) memory_.report(state_.optimizer());
  outcome.attempt = {.end = Attempt::End::kOutOfMemory, .has_moved = step_.give_up()};
  context_.group->leave();
  return outcome;
}

std::string Trainer::place_of(const StepData& data) const {
  return (data.is_trial ? "the largest batch, before step " : "step ") +
         std::to_string(state_.counters().step + 1);
}

// nullopt: the run is to leave, and nothing is left of the step.
std::optional<StepResult> Trainer::make_step(const StepData& data) {
  while (true) {
    const Outcome outcome = attempt_step(data);
    const Decision decision = agreement_.decide(outcome.attempt);
    if (decision == Decision::kKeep || decision == Decision::kLeave) return outcome.result;
    const std::string step = place_of(data);
    if (decision == Decision::kFail) {
      fails_together_ = !outcome.attempt.has_moved;
      if (!outcome.failure) throw too_little_memory_elsewhere().at(step);
      if (has_reported_) memory_.report(state_.optimizer());
      throw memory_.does_not_fit(*outcome.failure).at(step);
    }
    if (!outcome.failure) continue;  // only the process that it did not fit into keeps less
    has_reported_ = true;
    memory_.keep_less(step, *outcome.failure);
  }
}

// Reads what the last step gave. On a GPU this is called when the next step is queued already.
void Trainer::settle() {
  if (!pending_) return;
  const StepResult result = *std::exchange(pending_, std::nullopt);
  const bool is_skipped = result.is_skipped.item<float>() != 0;
  if (is_skipped)
    context_.progress.warn("step " + std::to_string(result.step) +
                           ": loss or gradients are not finite; the step changes " +
                           (result.has_moved ? "only blocks with finite ones" : "nothing") + " (" +
                           std::to_string(state_.counters().skipped + 1) + " so far)");
  agreement_.count(is_skipped, result.step, state_.counters());
  if (is_skipped) return;
  state_.update_average(result.denoiser);
  monitor_.log(result, /*is_last=*/result.step == total_steps_);
}

void Trainer::save(const std::string& name, bool is_last) {
  settle();
  state_.trained().placement().complete();
  state_.save(name, is_last);
  wait_for_first();
}

// What rank 0 does alone may take longer than an exchange.
void Trainer::wait_for_first() {
  if (context_.group) context_.group->gather_texts("");
}

// What shows how far the run is. All processes end together where one has too little memory for it.
void Trainer::look(void (Monitor::*work)()) {
  settle();
  state_.trained().placement().complete();
  try {
    (monitor_.*work)();
  } catch (...) {
    fails_together_ = monitor_.ends_together();
    throw;
  }
}

void Trainer::after_step(const data::StepBatches& plan) {
  const int64_t step = state_.counters().step;
  const auto is_due = [](const std::optional<int64_t>& interval, int64_t count) {
    return interval && count % *interval == 0;
  };
  const auto& previews = config_.previews;
  if (is_due(previews.every_n_steps, step) ||
      (plan.is_last_of_epoch && is_due(previews.every_n_epochs, plan.epoch + 1)))
    look(&Monitor::preview);
  if (step % config_.validation.steps == 0 || step == total_steps_) look(&Monitor::validate);
  if (config_.output.save_steps) {
    if (is_due(config_.output.save_steps, step)) save(state_.step_name());
  } else if (plan.is_last_of_epoch) {
    save("epoch-" + std::to_string(plan.epoch));
  }
  if (agreement_.should_save()) save(state_.step_name());
}

int Trainer::run() {
  monitor_.open();
  state_.trained().set_training(true);
  const int64_t first = state_.counters().step;
  if (first == 0) {
    monitor_.validate();
    if (config_.previews.at_first) monitor_.preview();
  }
  if (const std::string& name = state_.weights_to_write(); !agreement_.all(name.empty()))
    save(name, /*is_last=*/first >= total_steps_);
  try_largest();
  progress::Step bar(context_.progress, "train", total_steps_, progress::Unit::kSteps);
  bar.begin_at(first);
  monitor_.begin();
  try {
    loop(bar);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNumerics || (context_.group && !fails_together_)) throw;
    if (step_.give_up()) {
      context_.progress.warn("not saved: the step had begun to move weights");
      throw;
    }
    save(state_.step_name());
    throw;
  }
  save(state_.step_name(), /*is_last=*/true);
  if (state_.counters().step < total_steps_) return leave();
  bar.finish();
  return 0;
}

void Trainer::loop(progress::Step& bar) {
  RunCounters& counters = state_.counters();
  const int64_t size = context_.group ? context_.group->size() / config_.sequence_parallel : 1;
  const int64_t batches = (config_.order.gradient_accumulation_steps + size - 1) / size;
  const int64_t step_bytes = context_.samples.decoded_bytes() * config_.order.batch_size * batches;
  const int64_t depth = data::depth_within(kStepsAhead, step_bytes);
  data::Prefetcher<StepData> steps(config_.dataset_num_workers, depth, counters.step, total_steps_,
                                   [this](int64_t step) { return read_step(step); });
  while (counters.step < total_steps_ && !agreement_.should_leave()) {
    if (context_.group) context_.group->begin_step(counters.step + 1);
    const StepData data = steps.next();
    monitor_.wait_for_samples(steps.waited());
    std::optional<StepResult> result = make_step(data);
    if (!result) return;
    settle();
    state_.read_average();
    pending_ = std::move(result);
    ++counters.step;
    counters.epoch = data.plan.epoch;
    if (settles_at_once_ || state_.reads_average_at_once()) settle();
    bar.set_note(monitor_.note());
    bar.advance();
    const double begin = memory::seconds_now(), waited = waited_for_others();
    after_step(data.plan);
    const double left_out = memory::seconds_now() - begin;
    monitor_.leave_out(left_out, waited_for_others() - waited);
    bar.leave_out(left_out);
  }
}

int Trainer::leave() const {
  const int64_t step = state_.counters().step;
  const bool is_resumable = config_.output.save_state && step > 0;
  const std::string hint = "; continue with --resume " + config_.output.output_path;
  context_.progress.note("stopped after step " + std::to_string(step) + (is_resumable ? hint : ""));
  return run::StopSignals::exit_code(agreement_.signal());
}

}  // namespace atelier::train
