#include "host/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "host/data/prefetcher.h"
#include "host/random/counter.h"
#include "host/report/problems.h"
#include "host/run/stop.h"

namespace atelier::train {

namespace fs = std::filesystem;
using at::Tensor;

namespace {

constexpr int64_t kStepsAhead = 4;       // that are read and decoded before they are needed
constexpr double kPatienceSeconds = 10;  // for the rest of a step when a signal came

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string print(const char* format, auto... values) {
  char text[160];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// The most memory that the program has had, in bytes.
double peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

data::Order make_order(const Samples& samples, const Config& config) {
  const std::vector<int64_t> shapes = samples.shapes();
  data::OrderOptions options = config.order;
  options.seed = config.seed;
  return data::Order(shapes, options);
}

int64_t count_steps(const data::Order& order, const Config& config) {
  const int64_t all = order.steps_per_epoch() * config.num_epochs;
  return config.max_train_steps.value_or(all);
}

}  // namespace

Trainer::Trainer(const RunParts& parts, Selection selection)
    : parts_(parts),
      config_(parts.config),
      trained_(parts.model, std::move(selection), parts.config),
      optimizer_(optim::make_optimizer(trained_.groups(), parts.config.optimizer)),
      order_(make_order(parts.samples, parts.config)),
      timesteps_(parts.model.family().training_schedule(parts.model.denoiser()->detection),
                 parts.config.timesteps),
      objective_(parts.model,
                 config_.use_gradient_checkpointing
                     ? static_cast<BlockRunner&>(recompute_.emplace(direct_))
                     : direct_,
                 timesteps_, parts.config.seed),
      lr_schedule_(config_.lr_schedule),
      layers_seed_(random::stream_seed(config_.seed, random::Stream::kLayers)),
      caption_seed_(random::stream_seed(config_.seed, random::Stream::kCaptionDropout)) {
  total_steps_ = count_steps(order_, config_);
  lr_schedule_.total_steps = total_steps_;
  if (config_.ema_decay > 0) ema_.emplace(trained_.groups(), config_.ema_decay);
}

Trainer::~Trainer() = default;

void Trainer::resume(const run::Checkpoint& checkpoint) {
  trained_.load(checkpoint.load("trained.safetensors"));
  optimizer_->load_state(checkpoint.load("optimizer.safetensors"));
  if (ema_) ema_->load_state(checkpoint.load("ema.safetensors"));
  step_ = checkpoint.step;
  saved_weights_step_ = saved_state_step_ = step_;
  skipped_ = checkpoint.facts.value("skipped_steps", int64_t{0});
  skipped_in_row_ = checkpoint.facts.value("skipped_in_row", int64_t{0});
  const auto warn_unless = [&](const char* fact, const std::string& now, const char* what) {
    if (checkpoint.facts.value(fact, now) != now) parts_.progress.warn(what);
  };
  warn_unless("dataset", parts_.samples.fingerprint(),
              "the dataset or the encoders have changed since the checkpoint: the run goes on, and "
              "differs from one that was never interrupted");
  warn_unless("version", ATELIER_SDK_VERSION,
              "the checkpoint was written by another version: results may differ in the last bits");
}

Trainer::StepData Trainer::make_step(int64_t step) const {
  StepData data;
  data.plan = order_.step(step);
  for (const data::MicroBatch& batch : data.plan.batches) {
    std::vector<PlacedSample>& samples = data.batches.emplace_back();
    for (const data::Place& place : batch) {
      const bool drops_caption =
          random::uniform(caption_seed_, place.slot, static_cast<uint32_t>(step)) <
          config_.caption_dropout_rate;
      samples.push_back({parts_.samples.load(place.item, drops_caption), place.slot});
    }
  }
  return data;
}

// Whether a signal came and the rest of the step would take long: it is then given up, and made
// again from the start when the run is resumed.
bool Trainer::leaves_now(double begin, size_t done, size_t count) const {
  if (!run::StopSignals::requested() || done == count) return false;
  const double each = (now() - begin) / static_cast<double>(done);
  return each * static_cast<double>(count - done) > kPatienceSeconds;
}

std::optional<Trainer::Outcome> Trainer::train_step(const StepData& data) {
  const double begin = now();
  Tensor total;
  for (size_t i = 0; i < data.batches.size(); ++i) {
    at::manual_seed(random::below(UINT64_MAX, layers_seed_, static_cast<uint32_t>(i),
                                  static_cast<uint32_t>(step_)));
    const Tensor sum = config_.task == Task::kDirectDistill
                           ? objective_.direct_distillation(data.batches[i])
                           : objective_.flow_matching(data.batches[i], step_);
    const Tensor loss = sum / static_cast<double>(data.plan.samples);
    if (!loss.requires_grad())
      throw Error(ErrorCode::kInvalidArgument,
                  "the loss does not depend on anything that is trained",
                  "choose other --trainable_models or --lora_target_modules");
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
    if (leaves_now(begin, i + 1, data.batches.size())) {
      trained_.clear_gradients();
      return std::nullopt;
    }
  }
  Outcome outcome;
  outcome.step = step_ + 1;
  outcome.epoch = data.plan.epoch;
  outcome.lr = config_.learning_rate * lr_schedule_.factor(step_);
  outcome.loss = total;
  const at::NoGradGuard no_grad;
  const optim::GradientNorm gradients =
      optim::measure_gradients(trained_.groups(), total, config_.max_grad_norm);
  optimizer_->step(outcome.lr, gradients.grad_scale, gradients.is_skipped);
  trained_.clear_gradients();
  outcome.norm = gradients.norm;
  outcome.is_skipped = gradients.is_skipped;
  return outcome;
}

// Reads what the last step gave. On a GPU this is called when the next step is queued already.
void Trainer::settle() {
  if (!pending_) return;
  const Outcome outcome = std::move(*pending_);
  pending_.reset();
  const bool is_skipped = outcome.is_skipped.item<float>() != 0;
  if (ema_ && !is_skipped) ema_->update();
  if (!is_skipped) {
    skipped_in_row_ = 0;
    log(outcome, outcome.loss.item<double>(), outcome.norm.item<double>());
    return;
  }
  ++skipped_;
  ++skipped_in_row_;
  parts_.progress.warn("step " + std::to_string(outcome.step) +
                       ": loss or gradients are not finite; the step changes nothing (" +
                       std::to_string(skipped_) + " so far)");
  if (skipped_in_row_ >= config_.max_skipped_steps)
    throw Error(ErrorCode::kNumerics,
                "step " + std::to_string(outcome.step) + ": " + std::to_string(skipped_in_row_) +
                    " steps in a row were not finite",
                "use a lower --learning_rate; what was saved before is whole");
}

void Trainer::log(const Outcome& outcome, double loss, double norm) {
  loss_sum_ += loss;
  ++loss_count_;
  const double elapsed = now() - begin_;
  note_ = print("loss %.4f lr %.2e norm %.3g mem %.1f GB wait %.0f%%", loss, outcome.lr, norm,
                peak_host_bytes() / 1e9, elapsed > 0 ? 100.0 * waited_ / elapsed : 0.0);
  if (outcome.step % config_.log.logging_steps != 0 && outcome.step != total_steps_) return;
  const auto steps = static_cast<double>(outcome.step - first_step_);
  std::map<std::string, double> values = {{"train/loss", loss_sum_ / loss_count_},
                                          {"train/lr", outcome.lr},
                                          {"train/grad_norm", norm},
                                          {"train/epoch", static_cast<double>(outcome.epoch)},
                                          {"train/skipped_steps", static_cast<double>(skipped_)},
                                          {"perf/seconds_per_step", elapsed / steps},
                                          {"perf/data_wait_share", waited_ / elapsed},
                                          {"perf/peak_host_gb", peak_host_bytes() / 1e9}};
  for (const auto& [name, value] : optimizer_->metrics()) values["train/" + name] = value;
  for (const auto& writer : metrics_) writer->write(outcome.step, values);
  loss_sum_ = 0;
  loss_count_ = 0;
}

std::string Trainer::step_name() const {
  return "step-" + std::to_string(step_);
}

// The averages stand in for the trained tensors where the model is looked at or saved.
template <typename F>
void Trainer::with_average(F&& call) {
  if (ema_) ema_->swap();
  trained_.set_training(false);
  try {
    call();
  } catch (...) {
    if (ema_) ema_->swap();
    throw;
  }
  trained_.set_training(true);
  if (ema_) ema_->swap();
}

void Trainer::save_weights(const std::string& name, int64_t epoch) {
  with_average([&] {
    const auto files =
        trained_.save((fs::path(parts_.folder.path()) / name).string(), step_, epoch);
    for (const std::string& file : files) parts_.progress.note(file);
  });
  saved_weights_step_ = step_;
  if (config_.output.weights_total_limit > 0) remove_old_weights();
}

void Trainer::remove_old_weights() const {
  static const std::regex kName(R"((?:step|epoch)-(\d+)(?:\.\w+)?\.safetensors)");
  std::map<int64_t, std::vector<fs::path>> by_number;
  for (const auto& entry : fs::directory_iterator(parts_.folder.path())) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, match, kName)) by_number[std::stoll(match[1])].push_back(entry);
  }
  auto oldest = by_number.begin();
  for (auto left = static_cast<int64_t>(by_number.size());
       left > config_.output.weights_total_limit; --left, ++oldest) {
    for (const fs::path& path : oldest->second) {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  }
}

void Trainer::save_state(int64_t epoch) {
  run::CheckpointFiles files;
  files.tensors["trained.safetensors"] = trained_.values();
  files.tensors["optimizer.safetensors"] = optimizer_->state();
  if (ema_) files.tensors["ema.safetensors"] = ema_->state();
  files.texts["config.toml"] = config_.effective_toml;
  const nlohmann::json facts = {{"epoch", epoch},
                                {"seed", config_.seed},
                                {"skipped_steps", skipped_},
                                {"skipped_in_row", skipped_in_row_},
                                {"dataset", parts_.samples.fingerprint()},
                                {"family", parts_.model.family().name()},
                                {"version", ATELIER_SDK_VERSION}};
  parts_.folder.save(step_, files, facts, config_.output.checkpoints_total_limit);
  saved_state_step_ = step_;
}

void Trainer::save_all(const std::string& name, int64_t epoch) {
  settle();
  if (saved_weights_step_ != step_) save_weights(name, epoch);
  if (config_.output.save_state && saved_state_step_ != step_) save_state(epoch);
}

// A save on the way that fails, on a full disk say, is told; the next one tries again.
void Trainer::try_save_all(const std::string& name, int64_t epoch) {
  try {
    save_all(name, epoch);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    parts_.progress.warn("not saved: " + std::string(error.what()));
  }
}

void Trainer::validate() {
  if (parts_.validation == nullptr) return;
  settle();
  const at::NoGradGuard no_grad;
  const std::vector<Timestep> grid = timesteps_.grid(config_.validation.timesteps);
  const uint64_t seed = random::stream_seed(config_.seed, random::Stream::kValidation);
  std::vector<double> sums(grid.size());
  with_average([&] {
    progress::Step bar(parts_.progress, "validate", static_cast<int64_t>(parts_.validation->size()),
                       progress::Unit::kParts);
    for (size_t i = 0; i < parts_.validation->size(); ++i) {
      const TrainSample sample = parts_.validation->load(i, /*empty_caption=*/false);
      for (size_t level = 0; level < grid.size(); ++level) {
        sums[level] += objective_
                           .at_level(sample, grid[level], seed, static_cast<uint32_t>(i),
                                     static_cast<uint32_t>(level))
                           .item<double>();
      }
      bar.advance();
    }
  });
  std::map<std::string, double> values;
  double mean = 0;
  for (size_t level = 0; level < grid.size(); ++level) {
    const double loss = sums[level] / static_cast<double>(parts_.validation->size());
    values[print("validation/loss_sigma_%.3f", static_cast<double>(grid[level].sigma))] = loss;
    mean += loss / static_cast<double>(grid.size());
  }
  values["validation/loss"] = mean;
  for (const auto& writer : metrics_) writer->write(step_, values);
  parts_.progress.note(step_name() + ": validation loss " + print("%.5f", mean));
}

void Trainer::show() {
  if (parts_.preview == nullptr) return;
  settle();
  with_average([&] { parts_.preview->run(step_); });
}

void Trainer::after_step(const data::StepPlan& plan) {
  const auto is_due = [&](const std::optional<int64_t>& interval) {
    return interval && step_ % *interval == 0;
  };
  const auto& samples = config_.samples;
  if (is_due(samples.every_n_steps) || (plan.is_last_of_epoch && samples.every_n_epochs &&
                                        (plan.epoch + 1) % *samples.every_n_epochs == 0))
    show();
  if (step_ % config_.validation.steps == 0 || step_ == total_steps_) validate();
  if (config_.output.save_steps) {
    if (is_due(config_.output.save_steps)) try_save_all(step_name(), plan.epoch);
  } else if (plan.is_last_of_epoch) {
    try_save_all("epoch-" + std::to_string(plan.epoch), plan.epoch);
  }
  if (run::StopSignals::take_save_request()) try_save_all(step_name(), plan.epoch);
}

int Trainer::run() {
  const std::string logs = (fs::path(parts_.folder.path()) / "tensorboard_log").string();
  if (config_.log.tensorboard) metrics_.push_back(run::open_tensorboard(logs));
  if (config_.log.csv) {
    const std::string path = (fs::path(parts_.folder.path()) / "loss.csv").string();
    metrics_.push_back(run::open_csv(path, step_ == 0 ? -1 : step_));
  }
  trained_.set_training(true);
  if (step_ == 0) {
    validate();
    if (config_.samples.at_first) show();
  }
  data::Prefetcher<StepData> steps(config_.dataset_num_workers, kStepsAhead, step_, total_steps_,
                                   [this](int64_t step) { return make_step(step); });
  progress::Step bar(parts_.progress, "train", total_steps_, progress::Unit::kSteps);
  bar.begin_at(step_);
  begin_ = now();
  first_step_ = step_;
  int64_t epoch = 0;
  while (step_ < total_steps_ && !run::StopSignals::requested()) {
    const StepData data = steps.next();
    waited_ = steps.waited();
    std::optional<Outcome> outcome = train_step(data);
    if (!outcome) break;
    settle();
    pending_ = std::move(outcome);
    ++step_;
    epoch = data.plan.epoch;
    if (ema_ || parts_.model.device().is_cpu()) settle();
    bar.set_note(note_);
    bar.advance();
    after_step(data.plan);
  }
  settle();
  save_all(step_name(), epoch);
  if (step_ < total_steps_) {
    const int signal = run::StopSignals::requested().value();
    parts_.progress.note("stopped after step " + std::to_string(step_) +
                         "; continue with --resume " + parts_.folder.path());
    return run::StopSignals::exit_code(signal);
  }
  bar.finish();
  return 0;
}

}  // namespace atelier::train
