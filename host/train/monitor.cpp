#include "host/train/monitor.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/stop.h"

#include "host/plugins/guard.h"
#include "host/random/counter.h"
#include "host/report/text.h"
#include "memory/clock.h"

namespace atelier::train {

using samples::Timestep;
using samples::Timesteps;
using samples::TrainSample;

namespace fs = std::filesystem;
using memory::seconds_now;
using report::print;

namespace {

// The most memory that the program has had.
double peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

// Asks of the exception that is being handled: what it says, where it ends no run.
std::optional<Error> failure_of_images(bool in_lockstep) {
  if (!in_lockstep) {
    if (const auto failure = plugins::out_of_memory()) return failure;
  }
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kEnvironment) return error;
  } catch (...) {  // it is thrown on
  }
  return std::nullopt;
}

}  // namespace

Monitor::Monitor(const RunContext& context, RunState& state, Objective& objective,
                 const Timesteps& timesteps, const Agreement& agreement, const StepMemory& memory)
    : context_(context),
      config_(context.config),
      state_(state),
      objective_(objective),
      timesteps_(timesteps),
      agreement_(agreement),
      memory_(memory) {
  if (!context.model.device().is_cpu() || context.model.is_simulated())
    meter_.emplace(context.model.device(), context.model.transfer());
}

void Monitor::open() {
  if (context_.folder == nullptr) return;
  const auto path_of = [&](std::string_view name) {
    return (fs::path(context_.folder->path()) / name).string();
  };
  const int64_t step = state_.counters().step;
  if (config_.log.tensorboard)
    writers_.push_back(run::open_tensorboard(path_of(run::kTensorboardName)));
  if (config_.log.csv)
    writers_.push_back(run::open_csv(path_of(run::kCsvName), step == 0 ? -1 : step));
}

// What of it did not fit into memory. Processes that share blocks come to the end of it, or none.
template <typename F>
std::optional<Error> Monitor::attempt(F&& work) {
  std::optional<Error> failure;
  Attempt::End mine = Attempt::End::kWhole;
  ended_ = mine;
  try {
    work();
  } catch (...) {
    failure = plugins::out_of_memory();
    const bool may_be_stopped = context_.in_lockstep() || agreement_.is_stop_requested();
    if (!failure && !(is_stop() && may_be_stopped)) throw;
    mine = failure ? Attempt::End::kOutOfMemory : Attempt::End::kStopped;
  }
  if (failure && context_.in_lockstep()) context_.group->call_off();
  if (ended_ == Attempt::End::kWhole) ended_ = agreement_.worst(mine);
  // Ranks that are told so have to know it before they exchange again.
  if (ended_ == Attempt::End::kOutOfMemory && context_.in_lockstep()) context_.group->call_off();
  return failure;
}

template <typename F>
bool Monitor::run_with_average(std::string_view name, F&& work) {
  std::optional<Error> failure;
  if (context_.in_lockstep()) context_.group->begin_work();
  state_.with_average([&] { failure = attempt(work); });
  if (ended_ != Attempt::End::kOutOfMemory) return ended_ == Attempt::End::kWhole;
  if (context_.in_lockstep()) context_.group->leave();
  ends_together_ = true;
  const std::string place =
      std::string(name) + " after step " + std::to_string(state_.counters().step);
  throw(failure ? memory_.does_not_fit(*failure) : too_little_memory_elsewhere()).at(place);
}

void Monitor::begin() {
  begin_ = seconds_now();
  first_step_ = state_.counters().step;
  if (context_.group == nullptr) return;
  first_sent_ = context_.group->bytes_sent();
  waited_before_ = context_.group->seconds_waited();
}

void Monitor::leave_out(double seconds, double waited) {
  left_out_ += seconds;
  waited_before_ += waited;
}

Usage Monitor::usage() const {
  const memory::DeviceBytes device = meter_ ? meter_->bytes() : memory::DeviceBytes();
  Usage usage = {.waited_for_samples = waited_for_samples_,
                 .peak_host_bytes = peak_host_bytes(),
                 .peak_device_bytes = static_cast<double>(std::max(device.peak, device.reserved))};
  if (const distributed::Group* group = context_.group) {
    usage.waited_for_others = group->seconds_waited() - waited_before_;
    usage.sent_bytes = static_cast<double>(group->bytes_sent() - first_sent_);
  }
  return usage;
}

void Monitor::write(const std::map<std::string, double>& values, int64_t step) {
  for (const auto& writer : writers_) writer->write(step, values);
}

void Monitor::log(const StepResult& result, bool is_last) {
  const auto loss = result.loss.item<double>(), norm = result.norm.item<double>();
  loss_sum_ += loss;
  ++loss_count_;
  const double elapsed = seconds_now() - begin_ - left_out_;
  const Usage usage = agreement_.usage_of_all(this->usage());
  const double waited = usage.waited_for_samples;
  note_ = print("loss %.4f lr %.2e norm %.3g mem %.1f GB wait %.0f%%", loss, result.lr, norm,
                (meter_ ? usage.peak_device_bytes : usage.peak_host_bytes) / 1e9,
                elapsed > 0 ? 100.0 * waited / elapsed : 0.0);
  if (result.step % config_.log.logging_steps != 0 && !is_last) return;
  const auto steps = static_cast<double>(result.step - first_step_);
  std::map<std::string, double> values = {
      {"train/loss", loss_sum_ / static_cast<double>(loss_count_)},
      {"train/lr", result.lr},
      {"train/grad_norm", norm},
      {"train/epoch", static_cast<double>(result.epoch)},
      {"train/skipped_steps", static_cast<double>(state_.counters().skipped)},
      {"perf/seconds_per_step", elapsed / steps},
      {"perf/data_wait_share", waited / elapsed},
      {"perf/peak_host_gb", usage.peak_host_bytes / 1e9}};
  if (context_.group) {
    values["perf/sent_gb_per_step"] = usage.sent_bytes / steps / 1e9;
    values["perf/peers_wait_share"] = usage.waited_for_others / elapsed;
    values["perf/slowest_rank"] = agreement_.slowest_rank();
  }
  if (meter_ && meter_->bytes().reserved > 0)
    values["perf/peak_device_gb"] = usage.peak_device_bytes / 1e9;
  for (const auto& [name, value] : state_.optimizer().metrics()) values["train/" + name] = value;
  write(values, result.step);
  loss_sum_ = 0;
  loss_count_ = 0;
}

// Ends a validation before its next row, where a signal came; in lockstep to all or to none.
void Monitor::check_validation() {
  const bool is_asked = agreement_.is_stop_requested();
  const Attempt::End mine = is_asked ? Attempt::End::kStopped : Attempt::End::kWhole;
  if (context_.in_lockstep()) ended_ = agreement_.worst(mine);
  if (is_asked || ended_ != Attempt::End::kWhole) throw_stopped();
}

// Sums over the samples that this rank computes, one for each level.
at::Tensor Monitor::validation_losses(const std::vector<Timestep>& grid) {
  const uint64_t seed = random::stream_seed(config_.seed, random::Stream::kValidation);
  at::Tensor sums = at::zeros({static_cast<int64_t>(grid.size())}, at::kDouble);
  const size_t first = context_.group ? static_cast<size_t>(context_.group->rank()) : 0;
  const size_t stride = context_.group ? static_cast<size_t>(context_.group->size()) : 1;
  const size_t size = context_.validation->size(), rows = (size + stride - 1) / stride;
  const size_t own = (size + stride - 1 - first) / stride;
  progress::Step bar(context_.progress, "validate", static_cast<int64_t>(own),
                     progress::Unit::kParts);
  for (size_t row = 0; row < (context_.in_lockstep() ? rows : own); ++row) {
    check_validation();
    const size_t i = first + row * stride;
    const TrainSample sample = context_.validation->load(i % size, /*empty_caption=*/false);
    const at::Tensor losses = objective_.at_levels(sample, grid, seed, static_cast<uint32_t>(i));
    if (row >= own) break;  // only the others' blocks wanted it
    sums += losses.to(sums.options());
    bar.advance();
  }
  return sums;
}

void Monitor::validate() {
  if (context_.validation == nullptr) return;
  if (context_.timeline != nullptr) context_.timeline->begin("validate");
  const at::NoGradGuard no_grad;
  const std::vector<Timestep> grid = timesteps_.grid(config_.validation.timesteps);
  at::Tensor sums;
  const ops::StopScope stops([this] {
    if (!context_.in_lockstep()) check_validation();
  });
  if (!run_with_average("the validation", [&] { sums = validation_losses(grid); })) return;
  if (context_.group) context_.group->all_reduce(sums).wait();
  std::map<std::string, double> values;
  double mean = 0;
  for (size_t level = 0; level < grid.size(); ++level) {
    const double loss = sums[static_cast<int64_t>(level)].item<double>() /
                        static_cast<double>(context_.validation->size());
    values[print("validation/loss_sigma_%.3f", static_cast<double>(grid[level].sigma))] = loss;
    mean += loss / static_cast<double>(grid.size());
  }
  values["validation/loss"] = mean;
  write(values, state_.counters().step);
  context_.progress.note(state_.step_name() + ": validation loss " + print("%.5f", mean));
}

void Monitor::show(const Preview::Shown& shown) {
  const run::EncodedImage image = {"samples/" + std::to_string(shown.number), shown.prompt,
                                   shown.png, shown.height, shown.width};
  for (const auto& writer : writers_) writer->write_image(state_.counters().step, image);
  context_.progress.note(shown.path);
}

// Shows what the others have drawn. All processes come here, some of them minutes before others.
void Monitor::show_of_others(const std::vector<Preview::Shown>& drawn) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Preview::Shown& one : drawn)
    mine.push_back({one.prompt, one.path, one.number, one.height, one.width, one.png.size()});
  const std::vector<std::string> told = context_.group->gather_texts(
      mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (int rank = 1; rank < context_.group->size(); ++rank) {
    size_t next = 0;
    for (const auto& one : nlohmann::json::parse(told[static_cast<size_t>(rank)])) {
      const at::Tensor bytes = at::empty({one.at(5).get<int64_t>()}, at::kByte);
      auto* const begin = reinterpret_cast<char*>(bytes.mutable_data_ptr<uint8_t>());
      if (rank == context_.group->rank()) std::ranges::copy(drawn[next++].png, begin);
      context_.group->broadcast(bytes, rank).wait();
      if (context_.group->is_first())
        show({.png = std::string(begin, static_cast<size_t>(bytes.numel())),
              .prompt = one.at(0),
              .path = one.at(1),
              .number = one.at(2),
              .height = one.at(3),
              .width = one.at(4)});
    }
  }
}

void Monitor::preview() {
  if (context_.preview == nullptr) return;
  if (context_.timeline != nullptr) context_.timeline->begin("sample");
  std::vector<Preview::Shown> drawn;  // for another process, which shows it
  const auto draw = [&] {
    context_.preview->run(state_.counters().step, [&](const Preview::Shown& shown) {
      if (context_.group == nullptr || context_.group->is_first())
        show(shown);
      else
        drawn.push_back(shown);
    });
  };
  // Ranks that draw together wait for the disk of the one that writes.
  const distributed::TimeoutExtension patience(context_.in_lockstep() ? context_.group : nullptr);
  run_with_average("the sample images", [&] {
    try {
      draw();
    } catch (...) {
      const std::optional<Error> failure = failure_of_images(context_.in_lockstep());
      if (!failure) throw;
      context_.progress.warn("no sample images: " + std::string(failure->what()));
    }
  });
  if (context_.group != nullptr) show_of_others(drawn);
}

}  // namespace atelier::train
