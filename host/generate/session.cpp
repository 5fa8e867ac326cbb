#include "host/generate/session.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/util/ScopeExit.h>

#include "atelier/error.h"
#include "atelier/host/device_graph.h"
#include "atelier/plugin.h"

#include "host/files/outputs.h"
#include "host/files/safetensors_writer.h"
#include "host/generate/clip_file.h"
#include "host/generate/engine.h"
#include "host/generate/request.h"
#include "host/media/jpeg.h"
#include "host/media/pixels.h"
#include "host/model/graphs.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"
#include "host/plugins/guard.h"
#include "host/report/text.h"
#include "memory/clock.h"

namespace atelier::generate {
namespace {

using memory::seconds_now;
using model::LoadedModel;

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

std::shared_ptr<const media::Sound> sound_of(const Sound& made) {
  const at::Tensor samples = made.samples_CN.to(at::kCPU).contiguous();
  const float* const values = samples.const_data_ptr<float>();
  return std::make_shared<const media::Sound>(
      media::Sound{.channels = static_cast<int>(samples.size(0)),
                   .sample_rate = static_cast<int>(made.sample_rate),
                   .values = {values, values + samples.numel()}});
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
      record_(record_of(model, *order.plugin)),
      generator_(make_engine(), progress, hooks_.is_cancelled) {}

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

void Session::run(const order::Settings& settings, JobResult& result) {
  result.seed = seed_of(settings);
  const Request request = request_of(settings, *result.seed);
  loras_.use(settings);
  const auto batches = (std::ssize(request.seeds) + request.batch_size - 1) / request.batch_size;
  const auto in_a_clip = std::max<int64_t>(std::ssize(request.pieces), 1);
  steps_ = batches * in_a_clip * (std::ssize(request.sigmas) - 1);
  if (!hooks_.ranks.is_first())
    return make_images(request, [](size_t, int64_t, const at::Tensor&) {}, {});
  const std::vector<std::string> paths = order::written_files(settings);
  if (const std::string note = files::replaced_note(paths); !note.empty()) progress_.warn(note);
  for (const std::string& folder : order::make_folders(paths))
    progress_.note("made " + folder + "/");
  const bool is_clip = media::find_clip_format(settings.output) != nullptr;
  const int64_t frames = request.target.frames;
  const auto finished = [&](const std::string& path, size_t index) {
    result.output.push_back(path);
    progress_.note(path + ": " + report::size_text(request.target.height, request.target.width) +
                   (is_clip ? ", " + std::to_string(frames) + " frames" : "") + ", seed " +
                   std::to_string(request.seeds[index]));
    if (hooks_.on_file) hooks_.on_file(path);
  };
  const auto write_images = [&](size_t index, int64_t first, const at::Tensor& pixels) {
    for (int64_t t = 0; t < pixels.size(1); ++t) {
      const std::string& path = paths.at(index * static_cast<size_t>(frames) + first + t);
      const at::Tensor image = pixels.select(1, t);
      const media::Text text = text_of(settings, request, index);
      files::write_file(path, order::is_jpeg(path)
                                  ? media::encode_jpeg(media::to_image(image), text)
                                  : media::png_of(image, text));
      finished(path, index);
    }
  };
  std::shared_ptr<const media::Sound> sound = soundtrack_of(settings);
  const auto keep_sound = [&](size_t, const Sound& made) {
    if (holds_sound(settings)) sound = sound_of(made);
  };
  std::optional<ClipFile> clip;  // that is being decoded
  std::string clip_path;
  int64_t written = 0;  // of its frames
  const auto write_clip = [&](size_t index, int64_t first, const at::Tensor& pixels) {
    if (first == 0) {
      clip_path = paths.at(index);
      clip.emplace(clip_path, request.target, settings.fps.value(),
                   text_of(settings, request, index), sound);
    }
    clip->add(pixels);
    written = first + pixels.size(1);
    if (written < frames) return;
    const auto closes = c10::make_scope_exit([&] { clip.reset(); });  // also where that fails
    clip->finish();
    finished(clip_path, index);
  };
  try {
    make_images(request, is_clip ? Generator::OnFrames(write_clip) : write_images, keep_sound);
  } catch (...) {
    if (clip && !request.pieces.empty() && written >= request.pieces.front().frames)
      keep_pieces(*clip, clip_path, written);
    throw;
  }
}

// A clip that ends behind the pieces that were finished. Why it ends there is told by the caller.
void Session::keep_pieces(ClipFile& clip, const std::string& path, int64_t frames) {
  try {
    clip.finish();
    progress_.warn(path + ": has the first " + std::to_string(frames) + " frames");
  } catch (const Error& error) {
    progress_.warn(std::string(error.what()));
  }
}

void Session::make_images(const Request& request, const Generator::OnFrames& on_frames,
                          Generator::OnSound on_sound) {
  try {
    generator_.run(request, on_frames, std::move(on_sound));
  } catch (...) {
    const std::optional<Error> failure = plugins::out_of_memory();
    end_graphs();  // no other phase comes
    if (!failure) throw;
    throw does_not_fit(*failure, request);
  }
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
  generator_.encode_ahead(requests);
}

Request Session::request_of(const order::Settings& settings, uint64_t seed) {
  Request request = read_request(settings, model_, seed);
  request.batches_cfg = layout_.batches_cfg;
  request.tiling = order_.tiling();
  request.encoder_state = loras_.encoder_state(settings);
  return request;
}

// Whether the file that is written may have a sound, which is told where it may not.
bool Session::holds_sound(const order::Settings& settings) {
  const media::ClipFormat* const format = media::find_clip_format(settings.output);
  if (format != nullptr && format->has_sound) return true;
  progress_.note(settings.output + ": has no sound beside it, which .mp4 files have");
  return false;
}

// The sound that is written beside a clip; null: there is none, or the file's format has none.
std::shared_ptr<const media::Sound> Session::soundtrack_of(const order::Settings& settings) {
  const std::string file = soundtrack_file(settings, model_.family());
  if (file.empty()) return nullptr;
  if (!holds_sound(settings)) return nullptr;
  const double seconds =
      static_cast<double>(order::target_of(settings).frames) / settings.fps.value();
  try {
    return std::make_shared<const media::Sound>(media::read_soundtrack(file, seconds));
  } catch (const Error& error) {  // of a clip whose frames can be read
    progress_.warn("warning: the clip gets no sound: " + std::string(error.what()));
    return nullptr;
  }
}

// How an image was made.
media::Text Session::text_of(const order::Settings& settings, const Request& request,
                             size_t index) const {
  if (order_.leaves_out_metadata) return {};
  return metadata_of(record_, settings, request, index);
}

Engine Session::make_engine() {
  Engine engine = generate::make_engine(model_);
  engine.load = [this](std::string_view component) { load(component); };
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
  holders.push_back({"encoded prompts", generator_.cached_bytes()});
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
  if (request.target.frames > 1) flags.emplace_back("a smaller --num_frames");
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
