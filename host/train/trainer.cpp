#include "host/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <regex>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/ops/stop.h"
#include "atelier/plugin.h"

#include "host/data/prefetcher.h"
#include "host/generate/sigma_schedule.h"
#include "host/model/fingerprint.h"
#include "host/plugins/guard.h"
#include "host/random/counter.h"
#include "host/report/problems.h"
#include "host/run/stop.h"
#include "host/train/config_checks.h"

namespace atelier::train {

namespace fs = std::filesystem;
using at::Tensor;

namespace {

constexpr int64_t kStepsAhead = 4;       // that are read and decoded before they are needed
constexpr double kPatienceSeconds = 10;  // for the rest of a step when a signal came
constexpr int64_t kTimelineSteps = 8;    // of which memory is reported block by block

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

std::string describe(const memory::ActivationPlan& plan) {
  const auto bytes = [](int64_t count) {
    return report::format_bytes(static_cast<uint64_t>(count));
  };
  const std::string peak = "activations of blocks: at most " + bytes(plan.peak_bytes);
  if (plan.num_recomputed == 0) return peak + ", nothing is computed again";
  return peak + ", " + std::to_string(plan.num_recomputed) + " of " +
         std::to_string(plan.runs.size()) + " blocks are computed again but for " +
         bytes(plan.kept_bytes) + " that are kept, " +
         (plan.offloaded_bytes > 0 ? bytes(plan.offloaded_bytes) + " wait on the host, " : "") +
         print("about %.3g s longer each time", plan.extra_seconds);
}

data::Order make_order(const Samples& samples, const Config& config) {
  const std::vector<int64_t> shapes = samples.shapes();
  data::OrderOptions options = config.order;
  options.seed = config.seed;
  return data::Order(shapes, options);
}

// What the order of samples and their random numbers depend on.
std::string order_facts(const Config& config) {
  return c10::str("seed ", config.seed, " batch ", config.order.batch_size, " accumulation ",
                  config.order.gradient_accumulation_steps, " repeat ",
                  config.order.dataset_repeat);
}

int64_t steps_of(const data::Order& order, const Config& config) {
  const int64_t all = order.steps_per_epoch() * config.num_epochs;
  return config.max_train_steps.value_or(all);
}

}  // namespace

int64_t count_steps(const Samples& samples, const Config& config) {
  return steps_of(make_order(samples, config), config);
}

std::string find_weights_to_write(const run::Checkpoint& checkpoint, const Selection& selection,
                                  const Config& config) {
  const std::string name = checkpoint.facts.value("weights", "");
  if (name.empty()) return {};
  const std::string stem = (fs::path(config.output.output_path) / name).string();
  const auto files = weight_files(selection, stem);
  const bool are_there = std::all_of(files.begin(), files.end(), [](const auto& file) {
    std::error_code ignored;
    return fs::exists(file.second, ignored);
  });
  return are_there ? "" : name;
}

Trainer::Trainer(const RunParts& parts, Selection selection)
    : parts_(parts),
      config_(parts.config),
      trained_(parts.model, std::move(selection), parts.config),
      optimizer_(make_optimizer()),
      order_(make_order(parts.samples, parts.config)),
      timesteps_(parts.model.family().training_schedule(parts.model.denoiser()->detection),
                 parts.config.timesteps, generate::dynamic_shift(parts.model.family().schedules())),
      objective_(parts.model, make_runner(), timesteps_, parts.config.seed),
      lr_schedule_(config_.lr_schedule),
      fingerprint_(model::fingerprint(*parts.model.denoiser())),
      layers_seed_(random::stream_seed(config_.seed, random::Stream::kLayers)),
      caption_seed_(random::stream_seed(config_.seed, random::Stream::kCaptionDropout)) {
  total_steps_ = steps_of(order_, config_);
  lr_schedule_.total_steps = total_steps_;
  if (trained_.kept_bytes() > 0)
    parts.progress.note("small trained weights stay on the device: " +
                        report::format_bytes(static_cast<uint64_t>(trained_.kept_bytes())));
  if (config_.ema_decay > 0) {
    const memory::HostScope host;
    ema_.emplace(trained_.groups(), config_.ema_decay);
  }
}

Trainer::~Trainer() = default;

std::unique_ptr<optim::Optimizer> Trainer::make_optimizer() {
  std::optional<memory::HostScope> host;
  if (trained_.host_gradients() != nullptr) host.emplace();
  return optim::make_optimizer(trained_.groups(), config_.optimizer);
}

BlockRunner& Trainer::make_runner() {
  BlockRunner& blocks =
      parts_.timeline == nullptr
          ? parts_.model.runner()
          : static_cast<BlockRunner&>(sampling_.emplace(parts_.model.runner(), *parts_.timeline));
  BlockRunner& runner = recomputing(blocks);
  HostGradients* const gradients = trained_.host_gradients();
  if (gradients == nullptr) return runner;
  return expecting_.emplace(runner, *gradients);
}

// Blocks whose weights come and go are computed again: the weights are needed twice, and not
// between.
BlockRunner& Trainer::recomputing(BlockRunner& inner) {
  offloader_ = make_offloader();
  std::vector<std::string> run = config_.trained_names();
  run.push_back(parts_.model.denoiser()->detection.component);
  const bool streams = std::any_of(run.begin(), run.end(), [&](const std::string& name) {
    return parts_.model.is_streamed(component_of(name));
  });
  if (!config_.activation_budget && (config_.use_gradient_checkpointing || streams))
    return recompute_.emplace(inner, memory::RecomputeRunner::Planner(),
                              memory::RecomputeOptions{.offloader = offloader_,
                                                       .offloads_inputs = offloader_ != nullptr});
  return activations_.emplace(
      inner, config_.activation_budget.value_or(memory::ActivationBudget()), parts_.model.device(),
      [this](const memory::ActivationPlan& plan) { tell(plan); }, offloader_);
}

// Null where activations stay.
std::shared_ptr<memory::Offloader> Trainer::make_offloader() {
  if (!config_.offloads_activations) return nullptr;
  memory::Port* port = parts_.model.port();
  if (port == nullptr) port = (port_ = memory::make_port(parts_.model.device())).get();
  return std::make_shared<memory::Offloader>(*port, memory::available_bytes(at::kCPU));
}

// One line for the first plan, and for one that needs more than all before.
void Trainer::tell(const memory::ActivationPlan& plan) {
  if (plan.peak_bytes <= told_bytes_) return;
  told_bytes_ = plan.peak_bytes;
  const std::string line = describe(plan);
  if (plan.is_over_budget) {
    parts_.progress.warn(line + "; the budget is less than that");
  } else {
    parts_.progress.note(line);
  }
}

void Trainer::resume(const run::Checkpoint& checkpoint) {
  trained_.load(checkpoint.load("trained.safetensors"));
  optimizer_->load_state(checkpoint.load("optimizer.safetensors"));
  if (ema_) ema_->load_state(checkpoint.load("ema.safetensors"));
  step_ = saved_state_step_ = checkpoint.step;
  epoch_ = checkpoint.facts.value("epoch", int64_t{0});
  for (const auto& [name, file] : checkpoint.files) state_bytes_ += file.bytes;
  weights_to_write_ = find_weights_to_write(checkpoint, trained_.selection(), config_);
  if (weights_to_write_.empty()) saved_weights_step_ = step_;
  skipped_ = checkpoint.facts.value("skipped_steps", int64_t{0});
  skipped_in_row_ = checkpoint.facts.value("skipped_in_row", int64_t{0});
  const auto warn_unless = [&](const char* fact, const std::string& now, const char* what) {
    if (checkpoint.facts.value(fact, now) != now) parts_.progress.warn(what);
  };
  warn_unless("dataset", parts_.samples.fingerprint(),
              "the dataset or the encoders have changed since the checkpoint: the run goes on, and "
              "differs from one that was never interrupted");
  warn_unless(
      "order", order_facts(config_),
      "seed, batch size, accumulation or repeats are not those of the checkpoint: the order of "
      "samples goes on from the same step of another run");
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

// Asked at the edges of a step's work. When a signal came and the rest of the step takes long, it
// is given up, and made again from the start when the run is resumed.
void Trainer::stop_if_long() {
  if (!run::StopSignals::requested()) return;
  const double time = now();
  if (signal_seen_ == 0) signal_seen_ = time;
  const double rest = step_begin_ + step_seconds_ - time;
  if (std::max(rest, time - signal_seen_) > kPatienceSeconds)
    throw Error(ErrorCode::kCancelled, "stopped by a signal");
}

// nullopt: the step was given up, and nothing of it is left.
std::optional<Trainer::Outcome> Trainer::make_one(const StepData& data) {
  const ops::StopScope stops([this] { stop_if_long(); });
  try {
    return fit_step(data);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
  }
  give_up_step();
  return std::nullopt;
}

Trainer::Outcome Trainer::fit_step(const StepData& data) {
  while (true) {
    std::optional<Error> failure;
    try {
      return train_step(data);
    } catch (...) {
      failure = plugins::out_of_memory();
      if (!failure) throw;
    }
    make_room(*failure);  // here, where nothing of the step is held any more
  }
}

// Ends the work of a step that failed. Returns whether it had begun to move weights.
bool Trainer::give_up_step() {
  HostGradients* const gradients = trained_.host_gradients();
  const bool has_moved = gradients != nullptr && gradients->give_up();
  trained_.clear_gradients();
  return has_moved || is_moving_;
}

std::vector<model::Holder> Trainer::memory_holders(const memory::DeviceBytes& device) {
  std::vector<model::Holder> holders = model::weight_holders(parts_.model);
  const bool is_on_host = trained_.host_gradients() != nullptr;
  const auto add = [&](const std::string& name, int64_t bytes, bool rests_on_host) {
    holders.push_back({name, rests_on_host ? 0 : bytes, rests_on_host ? bytes : 0});
  };
  const bool is_lora = !config_.lora.base_model.empty();
  int64_t layers = 0, gradients = 0;
  for (const optim::Group& group : trained_.groups()) {
    for (const optim::Parameter& parameter : group.parameters) {
      const auto bytes = static_cast<int64_t>(parameter.leaf.nbytes());
      if (is_lora) layers += bytes;
      if (parameter.leaf.grad().defined()) gradients += bytes;
    }
  }
  add("LoRA layers", layers, /*rests_on_host=*/false);
  add("optimizer", optimizer_->state_bytes(), is_on_host);
  add("gradients", gradients, is_on_host);
  const int64_t offloaded = offloader_ ? offloader_->stats().host_bytes : 0;
  const int64_t taken = device.when_refused > 0 ? device.when_refused : device.peak;
  model::Holder activations = {"activations and what else the step makes",
                               std::max<int64_t>(0, taken - device.live), offloaded};
  if (activations_ && activations_->planned_bytes() > 0)
    activations.detail =
        report::format_bytes(static_cast<uint64_t>(activations_->planned_bytes())) +
        " are planned for blocks";
  holders.push_back(std::move(activations));
  return holders;
}

void Trainer::report_holders() {
  const memory::DeviceMeter meter(parts_.model.device(), parts_.model.port());
  const memory::DeviceBytes device = meter.bytes();
  for (const std::string& line : model::holder_lines(memory_holders(device), device))
    parts_.progress.warn(line);
}

Error Trainer::does_not_fit(const Error& failure) {
  std::vector<std::string> flags;
  if (config_.order.batch_size > 1)
    flags.push_back("--batch_size 1 with more --gradient_accumulation_steps");
  const auto for_weights = model::flags_for_weights(parts_.model);
  const bool trains_whole = config_.lora.base_model.empty();  // that is not stored in 8 bits
  std::copy_if(
      for_weights.begin(), for_weights.end(), std::back_inserter(flags),
      [&](const std::string& flag) { return !trains_whole || !flag.starts_with("--storage "); });
  if (trained_.host_gradients() == nullptr && trains_whole) flags.push_back("--optimize_on_cpu");
  flags.push_back("a smaller --max_pixels");
  return {ErrorCode::kOutOfMemory, failure.message(), model::hint_of(flags)};
}

// After `failure` of a step: what it leaves is dropped, and less is kept from now on. Throws when
// that cannot be.
void Trainer::make_room(const Error& failure) {
  const std::string step = "step " + std::to_string(step_ + 1);
  const bool is_first = !std::exchange(has_reported_, true);
  if (is_first) report_holders();
  const bool has_moved = give_up_step();
  if (has_moved || !activations_ || !activations_->tighten()) {
    if (!is_first) report_holders();
    is_moving_ = has_moved;
    throw does_not_fit(failure).at(step);
  }
  told_bytes_ = -1;
  const memory::ActivationBudget& budget = activations_->budget();
  const std::string less = budget.kind == memory::ActivationBudget::Kind::kBytes
                               ? "activations of blocks within " +
                                     report::format_bytes(static_cast<uint64_t>(budget.bytes))
                           : budget.fraction > 0 ? std::string("only products and attention kept")
                                                 : std::string("blocks computed again");
  parts_.progress.warn(step + ": " + failure.message() + "; it is made again with " + less);
}

Trainer::Outcome Trainer::train_step(const StepData& data) {
  step_begin_ = now();
  run::MemoryTimeline* const timeline = parts_.timeline;
  const auto phase = [&](const char* name) {
    if (timeline != nullptr && step_ < first_step_ + kTimelineSteps)
      timeline->begin(name, step_ + 1);
  };
  Tensor total;
  for (size_t i = 0; i < data.batches.size(); ++i) {
    at::manual_seed(random::below(UINT64_MAX, layers_seed_, static_cast<uint32_t>(i),
                                  static_cast<uint32_t>(step_)));
    phase("forward");
    if (activations_) activations_->begin_pass();
    if (auto* const gradients = trained_.host_gradients()) gradients->begin_pass();
    const Tensor sum = config_.task == Task::kDirectDistill
                           ? objective_.direct_distillation(data.batches[i])
                           : objective_.flow_matching(data.batches[i], step_);
    const Tensor loss = sum / static_cast<double>(data.plan.samples);
    if (!loss.requires_grad())
      throw Error(ErrorCode::kInvalidArgument,
                  "the loss does not depend on anything that is trained",
                  "choose other --trainable_models or --lora_target_modules");
    total = total.defined() ? total + loss.detach() : loss.detach();
    phase("backward");
    backward(loss, total, i + 1 == data.batches.size());
  }
  phase("optimizer");
  Outcome outcome = finish_step(data, total);
  if (timeline != nullptr && step_ + 1 == first_step_ + kTimelineSteps) timeline->stop();
  step_seconds_ = now() - step_begin_;
  return outcome;
}

// `total`: the loss of the step so far. On the host, tensors are moved while the last backward pass
// goes on, unless their gradients are to be scaled by what is known after it.
void Trainer::backward(const Tensor& loss, const Tensor& total, bool is_last) {
  HostGradients* const gradients = trained_.host_gradients();
  if (gradients == nullptr) {
    loss.backward();
    return;
  }
  std::optional<HostGradients::Move> move;
  if (is_last && config_.max_grad_norm == 0 && optimizer_->has_parts())
    move = {optimizer_.get(), learning_rate()};
  // Once a block has moved, the step is brought to its end.
  std::optional<ops::StopScope> to_the_end;
  if (move) to_the_end.emplace([] {});
  gradients->begin_backward(total, move);
  loss.backward();
  gradients->finish();
}

double Trainer::learning_rate() const {
  return config_.learning_rate * lr_schedule_.factor(step_);
}

Trainer::Outcome Trainer::finish_step(const StepData& data, const Tensor& total) {
  const at::NoGradGuard no_grad;
  HostGradients* const gradients = trained_.host_gradients();
  std::optional<memory::HostScope> host;
  if (gradients != nullptr) host.emplace();
  Outcome outcome;
  outcome.step = step_ + 1;
  outcome.epoch = data.plan.epoch;
  outcome.lr = learning_rate();
  outcome.loss = total;
  const optim::GradientNorm measured =
      optim::measure_gradients(trained_.groups(), total, config_.max_grad_norm,
                               gradients != nullptr ? gradients->norms() : NamedTensors());
  is_moving_ = true;
  optimizer_->step(outcome.lr, measured.grad_scale, measured.is_skipped);
  outcome.norm = measured.norm;
  outcome.is_skipped = measured.is_skipped;
  outcome.has_moved = gradients != nullptr && gradients->has_moved();
  trained_.clear_gradients();
  trained_.publish();
  is_moving_ = false;
  return outcome;
}

// Reads what the last step gave. On a GPU this is called when the next step is queued already.
void Trainer::settle() {
  if (!pending_) return;
  const Outcome outcome = std::move(*pending_);
  pending_.reset();
  const bool is_skipped = outcome.is_skipped.item<float>() != 0;
  if (ema_ && !is_skipped) {
    const memory::HostScope host;
    ema_->update();
  }
  if (!is_skipped) {
    skipped_in_row_ = 0;
    log(outcome, outcome.loss.item<double>(), outcome.norm.item<double>());
    return;
  }
  ++skipped_;
  ++skipped_in_row_;
  parts_.progress.warn("step " + std::to_string(outcome.step) +
                       ": loss or gradients are not finite; the step changes " +
                       (outcome.has_moved ? "only blocks with finite ones" : "nothing") + " (" +
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
  const double elapsed = now() - begin_ - left_out_;
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
  const auto swap = [this] {
    if (!ema_) return;
    const memory::HostScope host;
    ema_->swap();
    trained_.publish();
  };
  const auto put_back = [&] {
    trained_.set_training(true);
    swap();
  };
  swap();
  trained_.set_training(false);
  try {
    call();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
}

// `reserve`: bytes of the disk that stay free.
void Trainer::save_weights(const std::string& name, int64_t epoch, uint64_t reserve) {
  parts_.folder.require_space("saving the weights " + name +
                                  (reserve > 0 ? " and leaving room for the next checkpoint" : ""),
                              trained_.saved_bytes() + reserve);
  with_average([&] {
    const auto files =
        trained_.save((fs::path(parts_.folder.path()) / name).string(), step_, epoch);
    for (const std::string& file : files) parts_.progress.note(file);
  });
  saved_weights_step_ = step_;
  if (config_.output.weights_total_limit > 0) remove_old_weights();
}

// Files of one name are one set; the sets written longest ago go.
void Trainer::remove_old_weights() const {
  static const std::regex kName(R"(((?:step|epoch)-\d+)(?:\.\w+)?\.safetensors)");
  struct Set {
    fs::file_time_type written = fs::file_time_type::min();
    std::vector<fs::path> files;
  };
  std::map<std::string, Set> sets;
  for (const auto& entry : fs::directory_iterator(parts_.folder.path())) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (!std::regex_match(name, match, kName)) continue;
    Set& set = sets[match[1]];
    set.written = std::max(set.written, entry.last_write_time());
    set.files.push_back(entry.path());
  }
  std::vector<Set> oldest_first;
  for (auto& [name, set] : sets) oldest_first.push_back(std::move(set));
  std::sort(oldest_first.begin(), oldest_first.end(),
            [](const Set& a, const Set& b) { return a.written < b.written; });
  const auto limit = static_cast<size_t>(config_.output.weights_total_limit);
  for (size_t i = 0; i + limit < oldest_first.size(); ++i) {
    std::error_code ignored;
    for (const fs::path& path : oldest_first[i].files) fs::remove(path, ignored);
  }
}

// `name`: of the weights that belong to it.
void Trainer::save_state(const std::string& name, int64_t epoch) {
  run::CheckpointFiles files;
  files.tensors["trained.safetensors"] = trained_.values();
  files.tensors["optimizer.safetensors"] = optimizer_->state();
  if (ema_) files.tensors["ema.safetensors"] = ema_->state();
  files.texts["config.toml"] = config_.effective_toml;
  const nlohmann::json facts = {{"epoch", epoch},
                                {"weights", name},
                                {"order", order_facts(config_)},
                                {"model", fingerprint_},
                                {"skipped_steps", skipped_},
                                {"skipped_in_row", skipped_in_row_},
                                {"dataset", parts_.samples.fingerprint()},
                                {"family", parts_.model.family().name()},
                                {"version", ATELIER_SDK_VERSION}};
  state_bytes_ = run::bytes_needed(files, facts);
  parts_.folder.save(step_, files, facts, config_.output.checkpoints_total_limit);
  saved_state_step_ = step_;
}

// The state comes first, and weights leave room for the next one: from a state, weights can be
// written again. A save on the way that fails is told, and the next one tries again; the last one
// of a run (`is_last`) throws.
void Trainer::save_all(const std::string& name, int64_t epoch, bool is_last) {
  settle();
  if (step_ == 0) return;
  std::optional<Error> failed;
  const auto attempt = [&](const auto& save) {
    try {
      save();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEnvironment) throw;
      if (!is_last) parts_.progress.warn("not saved: " + std::string(error.what()));
      if (!failed) failed = error;
    }
  };
  if (config_.output.save_state && saved_state_step_ != step_)
    attempt([&] { save_state(name, epoch); });
  if (saved_weights_step_ != step_)
    attempt([&] { save_weights(name, epoch, is_last ? 0 : state_bytes_); });
  if (failed && is_last) throw Error(*failed);
}

void Trainer::validate() {
  if (parts_.validation == nullptr) return;
  settle();
  if (parts_.timeline != nullptr) parts_.timeline->begin("validate");
  const at::NoGradGuard no_grad;
  const std::vector<Timestep> grid = timesteps_.grid(config_.validation.timesteps);
  const uint64_t seed = random::stream_seed(config_.seed, random::Stream::kValidation);
  at::Tensor sums = at::zeros({static_cast<int64_t>(grid.size())}, at::kDouble);
  const ops::StopScope stops([] {
    if (run::StopSignals::requested()) throw Error(ErrorCode::kCancelled, "stopped by a signal");
  });
  try {
    with_average([&] {
      progress::Step bar(parts_.progress, "validate",
                         static_cast<int64_t>(parts_.validation->size()), progress::Unit::kParts);
      for (size_t i = 0; i < parts_.validation->size(); ++i) {
        ops::check_stop();
        const TrainSample sample = parts_.validation->load(i, /*empty_caption=*/false);
        sums +=
            objective_.at_levels(sample, grid, seed, static_cast<uint32_t>(i)).to(sums.options());
        bar.advance();
      }
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) return;  // the signal is seen to by the loop
    throw;
  }
  std::map<std::string, double> values;
  double mean = 0;
  for (size_t level = 0; level < grid.size(); ++level) {
    const double loss = sums[static_cast<int64_t>(level)].item<double>() /
                        static_cast<double>(parts_.validation->size());
    values[print("validation/loss_sigma_%.3f", static_cast<double>(grid[level].sigma))] = loss;
    mean += loss / static_cast<double>(grid.size());
  }
  values["validation/loss"] = mean;
  for (const auto& writer : metrics_) writer->write(step_, values);
  parts_.progress.note(step_name() + ": validation loss " + print("%.5f", mean));
}

// Pictures are not worth a run: what goes wrong with their files is told.
void Trainer::show() {
  if (parts_.preview == nullptr) return;
  settle();
  if (parts_.timeline != nullptr) parts_.timeline->begin("sample");
  try {
    with_average([&] {
      parts_.preview->run(step_, [&](const Preview::Shown& shown) {
        const run::EncodedPicture picture = {"samples/" + std::to_string(shown.number),
                                             shown.prompt, shown.png, shown.height, shown.width};
        for (const auto& writer : metrics_) writer->write_picture(step_, picture);
      });
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) return;  // the signal is seen to by the loop
    if (error.code() != ErrorCode::kEnvironment) throw;
    parts_.progress.warn("no sample pictures: " + std::string(error.what()));
  }
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
    if (is_due(config_.output.save_steps)) save_all(step_name(), plan.epoch);
  } else if (plan.is_last_of_epoch) {
    save_all("epoch-" + std::to_string(plan.epoch), plan.epoch);
  }
  if (run::StopSignals::take_save_request()) save_all(step_name(), plan.epoch);
}

int Trainer::run() {
  const std::string logs = (fs::path(parts_.folder.path()) / run::kTensorboardName).string();
  if (config_.log.tensorboard) metrics_.push_back(run::open_tensorboard(logs));
  if (config_.log.csv) {
    const std::string path = (fs::path(parts_.folder.path()) / run::kCsvName).string();
    metrics_.push_back(run::open_csv(path, step_ == 0 ? -1 : step_));
  }
  trained_.set_training(true);
  if (step_ == 0) {
    validate();
    if (config_.samples.at_first) show();
  }
  if (!weights_to_write_.empty()) save_all(weights_to_write_, epoch_, step_ >= total_steps_);
  progress::Step bar(parts_.progress, "train", total_steps_, progress::Unit::kSteps);
  bar.begin_at(step_);
  begin_ = now();
  first_step_ = step_;
  try {
    loop(bar);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNumerics) throw;
    if (give_up_step()) {
      parts_.progress.warn("not saved: the step had begun to move weights");
      throw;
    }
    save_all(step_name(), epoch_);
    throw;
  }
  save_all(step_name(), epoch_, /*is_last=*/true);
  if (step_ < total_steps_) return leave();
  bar.finish();
  return 0;
}

void Trainer::loop(progress::Step& bar) {
  data::Prefetcher<StepData> steps(config_.dataset_num_workers, kStepsAhead, step_, total_steps_,
                                   [this](int64_t step) { return make_step(step); });
  while (step_ < total_steps_ && !run::StopSignals::requested()) {
    const StepData data = steps.next();
    waited_ = steps.waited();
    std::optional<Outcome> outcome = make_one(data);
    if (!outcome) return;
    settle();
    pending_ = std::move(outcome);
    ++step_;
    epoch_ = data.plan.epoch;
    if (ema_ || parts_.model.device().is_cpu()) settle();
    bar.set_note(note_);
    bar.advance();
    const double begin = now();
    after_step(data.plan);
    const double left_out = now() - begin;
    left_out_ += left_out;
    bar.leave_out(left_out);
  }
}

int Trainer::leave() const {
  const bool is_resumable = config_.output.save_state && step_ > 0;
  parts_.progress.note("stopped after step " + std::to_string(step_) +
                       (is_resumable ? "; continue with --resume " + parts_.folder.path() : ""));
  return run::StopSignals::exit_code(run::StopSignals::requested().value());
}

}  // namespace atelier::train
