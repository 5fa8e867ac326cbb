#include "host/generate/session.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"
#include "atelier/host/device_graph.h"
#include "atelier/plugin.h"

#include "host/device/cpu_memory.h"
#include "host/generate/request.h"
#include "host/model/graphs.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"
#include "host/plugins/guard.h"
#include "memory/clock.h"

namespace atelier::generate {
namespace {

using memory::seconds_now;
using model::LoadedModel;

// What one job may leave of the host for the next.
constexpr int64_t kMostFreedBytes = int64_t{256} << 20;

ModelRecord record_of(const LoadedModel& model, const plugins::Plugin& plugin) {
  ModelRecord record;
  record.version = ATELIER_SDK_VERSION;
  record.family = plugin.file.family;
  record.plugin_version = plugin.file.version;
  record.variant = model.stages().variant;
  record.inputs = model.family().inputs();
  record.dtype = at::toString(model.dtype());
  record.device = model.device().str();
  for (const auto& part : model.parts()) {
    const std::string& component = part.detection.component;
    for (const std::string& file : part.checkpoint.files())
      record.files[component].push_back(short_path(file));
    if (model.dtype(component) != model.dtype())
      record.dtypes[component] = at::toString(model.dtype(component));
    const weights::Storage storage = model.storage(component);
    if (storage != weights::Storage::kPlain)
      record.storage[component] = weights::storage_name(storage);
    const weights::Compute compute = model.compute(component);
    if (compute == weights::Compute::kW8A8)
      record.compute[component] = weights::compute_name(compute);
  }
  return record;
}

Error error_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (...) {
    try {
      plugins::rethrow_at("generate");
    } catch (const Error& error) {
      return error;
    }
  }
}

// Whether all weights of a model, and the largest images, fit into a GPU at once.
bool everything_fits(const LoadedModel& model) {
  if (model.is_simulated()) return false;
  if (model.device().is_cpu()) return true;
  constexpr double kWorkspaceBytes = 6e9;
  double weights = 0;
  for (const auto& part : model.parts()) weights += static_cast<double>(part.checkpoint.bytes());
  const auto [free, total] = at::accelerator::getMemoryInfo(model.device().index());
  return weights + kWorkspaceBytes < static_cast<double>(free);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Layout::shared_flags() const {
  return {{"--cfg_batch", batches_cfg ? "on" : "off"}};
}

Layout unplanned_layout(const order::Generation& order, const LoadedModel& model) {
  const at::Device device = model.device();
  // With a profile of a device that is elsewhere the model's own is the CPU.
  if (order.cuda_graphs == memory::GraphChoice::kOn && !order.limits.device_profile &&
      !ops::can_record_graphs(device.type()))
    throw Error(ErrorCode::kInvalidArgument,
                "--cuda_graphs on: device " + device.str() + " has no CUDA graphs", "leave it out");
  Layout layout = {.batches_cfg = order.cfg_batch.value_or(true),
                   .keeps_all = order.has_several_jobs() && everything_fits(model),
                   .graph_rows = memory::graph_rows(order.cuda_graphs, device)};
  if (order.load) layout.weights = {order.load->placement, order.load->storage};
  return layout;
}

Session::Session(LoadedModel& model, LoraSet& loras, const order::Generation& order,
                 const Layout& layout, SessionHooks hooks, progress::Progress& progress)
    : model_(model),
      loras_(loras),
      order_(order),
      layout_(layout),
      hooks_(std::move(hooks)),
      progress_(progress),
      resting_(model),
      record_(record_of(model, *order.plugin)),
      engine_(engine_model(), progress, hooks_.is_cancelled,
              {.max_batch = layout.max_batch, .max_tokens = layout.max_tokens}) {}

Session::~Session() {
  end_graphs();
}

// One that is drawn is that of the first rank.
uint64_t Session::seed_of(const order::Settings& settings) const {
  if (settings.seed) return *settings.seed;
  const at::Tensor drawn = at::full({1}, int64_t{std::random_device()()}, at::kLong);
  if (!hooks_.ranks.is_alone()) hooks_.ranks.all->broadcast(drawn, 0).wait();
  return static_cast<uint64_t>(drawn.item<int64_t>());
}

// What Session has of a job that is going on.
struct Session::Job {
  JobResult result;
  JobHooks hooks;
  OnFailed on_failed;
  Request request;
  bool is_cancelled = false;
  double begin = seconds_now();
  std::optional<JobFiles> files;  // none: another rank writes
};

uint64_t Session::add(const order::Settings& settings, JobHooks hooks) {
  return add(settings, std::move(hooks), {});
}

uint64_t Session::add(const order::Settings& settings, JobHooks hooks, OnFailed on_failed) {
  const uint64_t seed = seed_of(settings);
  auto job = std::make_unique<Job>();
  job->result.seed = seed;
  job->hooks = std::move(hooks);
  job->on_failed = std::move(on_failed);
  job->request = request_of(settings, seed);
  steps_ = steps_of_all(job->request);
  if (hooks_.ranks.is_first()) open_files(*job, settings);
  Sink sink = sink_of(*job);
  const uint64_t ticket = engine_.add(job->request, std::move(sink));
  jobs_.emplace(ticket, std::move(job));
  return ticket;
}

void Session::open_files(Job& job, const order::Settings& settings) {
  const auto text_of = [this, &job, settings](size_t index) -> media::Text {
    if (order_.leaves_out_metadata) return {};
    return metadata_of(record_, settings, job.request, index);
  };
  const auto on_file = [this, &job](const std::string& path) {
    if (job.is_cancelled) return;
    job.result.output.push_back(path);
    if (hooks_.on_file) hooks_.on_file(path);
    if (job.hooks.on_file) job.hooks.on_file(path);
  };
  job.files.emplace(settings, job.request, model_.family(), progress_,
                    JobFiles::Hooks{text_of, on_file});
}

Sink Session::sink_of(Job& job) {
  Sink sink = {.on_step = job.hooks.on_step,
               .preview_every = job.hooks.preview_every,
               .on_preview = job.hooks.on_preview,
               .on_done = [this, &job] { end(job, nullptr); },
               .on_failed = [this, &job](std::exception_ptr failure) { end(job, failure); }};
  if (!job.files) return sink;
  sink.on_frames = [&job](size_t index, int64_t first, const at::Tensor& pixels) {
    job.files->add(index, first, pixels);
  };
  sink.on_sound = [&job](size_t, const Sound& made) { job.files->add_sound(made); };
  return sink;
}

bool Session::advance() {
  const std::vector<uint64_t> cancelled = std::exchange(cancelled_, {});
  const bool has_worked = engine_.advance();
  for (const uint64_t job : cancelled) jobs_.erase(job);  // nothing calls its hooks any more
  return has_worked;
}

void Session::cancel(uint64_t job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second->is_cancelled = true;
  engine_.cancel(job);
  cancelled_.push_back(job);
}

void Session::rest() {
  engine_.rest();
  resting_.rest();
}

void Session::run(const order::Settings& settings, JobResult& result) {
  bool is_done = false;
  std::exception_ptr failure;
  JobHooks hooks;
  hooks.on_done = [&](const JobResult& done) {
    is_done = true;
    result.seed = done.seed;
    result.output = done.output;
  };
  add(settings, std::move(hooks), [&](std::exception_ptr found) { failure = std::move(found); });
  while (!is_done) advance();
  if (failure) std::rethrow_exception(failure);
}

void Session::end(Job& job, std::exception_ptr failure) {
  const auto found =
      std::ranges::find_if(jobs_, [&](const auto& one) { return one.second.get() == &job; });
  const std::unique_ptr<Job> ended = std::move(found->second);
  jobs_.erase(found);
  if (failure) fail(job, failure);
  device::bound_freed_memory(kMostFreedBytes);
  job.result.seconds = seconds_now() - job.begin;
  if (job.hooks.on_done) job.hooks.on_done(job.result);
}

void Session::fail(Job& job, std::exception_ptr failure) {
  end_graphs();  // where others go on they make their own
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    if (const std::optional<Error> no_room = plugins::out_of_memory())
      failure = std::make_exception_ptr(does_not_fit(*no_room, job.request));
  }
  if (job.files) job.files->end_early();
  const Error error = error_of(failure);
  job.result.error = error.what();
  job.result.code = error.code();
  if (job.on_failed) job.on_failed(failure);
}

void Session::encode_ahead(std::span<const order::Job> jobs) {
  std::vector<Request> requests;
  for (const order::Job& job : jobs) {
    order::Settings settings = job.settings;
    if (!loras_.encoder_state(settings).empty()) continue;
    if (const InputSpec* start = model::start_input(model_.family().inputs()))
      settings.family_inputs.erase(std::string(start->name));
    settings.latents.clear();
    requests.push_back(read_request(settings, model_, /*seed=*/0));
  }
  engine_.encode_ahead(requests);
}

Request Session::request_of(const order::Settings& settings, uint64_t seed) {
  Request request = read_request(settings, model_, seed);
  request.batches_cfg = layout_.batches_cfg;
  request.tiling = order_.tiling();
  request.encoder_state = loras_.encoder_state(settings);
  return request;
}

EngineModel Session::engine_model() {
  EngineModel engine = engine_model_of(model_);
  engine.loras = &loras_;
  engine.load = [this](std::string_view component) { load(component); };
  engine.is_resident = [this, is_there = engine.is_resident](std::string_view component) {
    return is_there(component) && !resting_.is_resting(component);
  };
  if (layout_.keeps_all) {
    for (const model::PresentComponent& component : engine.stages.components)
      engine.stays.emplace(component.name);
  }
  engine.ranks = hooks_.ranks;
  engine.on_phase = [this](std::string_view phase, int64_t number) { begin_phase(phase, number); };
  if (hooks_.timeline != nullptr)
    engine.runner = &sampling_.emplace(model_.runner(), *hooks_.timeline);
  return engine;
}

void Session::begin_phase(std::string_view phase, int64_t number) {
  phase_ = phase;
  if (phase == "denoise" && model_.device().is_cpu()) watch_steps(number);
  if (layout_.graph_rows > 0) make_graphs(phase == "denoise");
  if (hooks_.timeline != nullptr) hooks_.timeline->begin(phase, number);
}

// Tells of a long run as soon as its first step has shown how long one takes.
void Session::watch_steps(int64_t number) {
  if (number == 1) first_step_began_s_ = seconds_now();
  if (number != 2 || steps_ == 0) return;
  const auto rest = static_cast<double>(std::exchange(steps_, 0) - 1);
  const std::string note = long_run_note((seconds_now() - first_step_began_s_) * rest);
  if (!note.empty()) progress_.note(note);
}

void Session::load(std::string_view component) {
  resting_.wake(component);
  if (model_.is_loaded(component)) return;
  begin_phase("load");
  model::load_shown(model_, component, progress_);
  if (model_.transfer() == nullptr) return;
  const std::string problem = pinning_.news(model_.transfer()->stats());
  if (!problem.empty()) progress_.warn(problem);
}

// Blocks of a denoiser become graphs. What comes behind its steps may need their memory.
void Session::make_graphs(bool wanted) {
  if (has_graphs_ == wanted) return;
  memory::GraphRunner& graphs = model::graphs_of(model_);
  if (!wanted) {
    if (const auto [recorded, replayed] = graphs.stats(); recorded > 0)
      progress_.note(
          c10::str("CUDA graphs: ", recorded, " recorded, replayed ", replayed, " times"));
    return end_graphs();
  }
  has_graphs_ = true;
  graphs.begin({.recorder = ops::make_graph_recorder(model_.device()),
                .most_rows = layout_.graph_rows,
                .warn = [this](const std::string& what) { progress_.warn(what); }});
}

void Session::end_graphs() {
  if (std::exchange(has_graphs_, false)) model::graphs_of(model_).end();
}

// Says who holds what. Nothing of what failed is held any more.
Error Session::does_not_fit(const Error& failure, const Request& request) {
  const memory::DeviceMeter meter(model_.device(), model_.transfer());
  const memory::DeviceBytes device = meter.bytes();
  std::vector<model::Holder> holders = model::weight_holders(model_);
  holders.push_back({"encoded prompts", engine_.cached_bytes()});
  const int64_t taken = device.when_refused > 0 ? device.when_refused : device.peak;
  holders.push_back({phase_ + ", while it went on", std::max<int64_t>(0, taken - device.live)});
  for (const std::string& line : model::holder_lines(holders, device)) progress_.warn(line);
  if (phase_ == "load") return failure;
  std::vector<std::string> flags;
  if (phase_ == "denoise" && layout_.graph_rows > 0) flags.emplace_back("--cuda_graphs off");
  if (phase_ == "denoise" && request.batch_size > 1) flags.emplace_back("--batch_size 1");
  if (phase_ == "decode" || (phase_ == "encode" && request.input_pixels.defined()))
    flags.emplace_back(request.tiling ? "a smaller --tile_size" : "--tiled");
  const auto for_weights = model::flags_for_weights(model_);
  flags.insert(flags.end(), for_weights.begin(), for_weights.end());
  if (request.target.frames > 1 && !model::media_defaults(model_).frames_are_pictures)
    flags.emplace_back("a smaller --num_frames");
  flags.emplace_back("a smaller --height and --width");
  return {failure.code(), failure.message(), model::hint_of(flags), failure.tag()};
}

std::string long_run_note(double seconds) {
  constexpr double kLong = 120.0;
  if (seconds < kLong) return "";
  const auto minutes = static_cast<int64_t>(std::round(seconds / 60.0));
  const std::string time = minutes < 120 ? std::to_string(minutes) + " min"
                                         : std::to_string((minutes + 30) / 60) + " hours";
  return "note: the steps take about " + time +
         " on this CPU; a smaller --height and --width, or fewer --num_inference_steps, are "
         "quicker";
}

}  // namespace atelier::generate
