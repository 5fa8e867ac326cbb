// atelier generate: pictures from prompts.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/outputs.h"
#include "host/cli/plan.h"
#include "host/cli/process_flags.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"
#include "host/generate/engine.h"
#include "host/generate/jobs.h"
#include "host/generate/metadata.h"
#include "host/generate/settings.h"
#include "host/generate/sigma_schedule.h"
#include "host/generate/text_lengths.h"
#include "host/lora/registry.h"
#include "host/media/pixels.h"
#include "host/media/png.h"
#include "host/model/memory_holders.h"
#include "host/model/model_flags.h"
#include "host/model/model_loader.h"
#include "host/plan/size_guard.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/progress/interrupt.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/memory_timeline.h"

namespace atelier::cli {
namespace {

using generate::Generator;
using generate::Job;
using generate::JobResult;
using generate::Place;
using generate::Request;
using generate::Settings;
using model::LoadedModel;
using progress::InterruptGuard;
using progress::Progress;

void check_lora_dir(const std::string& folder, report::Problems& problems) {
  std::error_code failure;
  if (folder.empty() || std::filesystem::is_directory(folder, failure)) return;
  problems.add("--lora_dir: " + files::display_path(folder) + " is no folder",
               "give the folder of the LoRA files", ErrorCode::kNotFound);
}

// One line of stdin without its end; nullopt at the end of input and after Ctrl-C. Not
// std::getline, which goes on reading after a signal.
std::optional<std::string> read_stdin_line() {
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  const std::unique_ptr<char, decltype(&std::free)> owner(buffer, std::free);
  if (length < 0) return std::nullopt;
  std::string line(buffer, static_cast<size_t>(length));
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

void print_line(const std::string& line) {
  if (std::printf("%s\n", line.c_str()) < 0 || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kEnvironment, std::string("stdout: ") + std::strerror(errno));
  }
}

uint64_t first_seed(const Settings& settings) {
  return settings.seed ? *settings.seed : std::random_device()();
}

// Whether all weights of a model, and the largest pictures, fit into a GPU at once.
bool everything_fits(const LoadedModel& model) {
  if (model.is_stand_in()) return false;
  if (model.device().is_cpu()) return true;
  constexpr double kWorkspaceBytes = 6e9;
  double weights = 0;
  for (const auto& part : model.parts()) weights += static_cast<double>(part.checkpoint.bytes());
  const auto [free, total] = at::accelerator::getMemoryInfo(model.device().index());
  return weights + kWorkspaceBytes < static_cast<double>(free);
}

generate::ModelRecord record_of(const LoadedModel& model, const plugins::Plugin& plugin) {
  generate::ModelRecord record;
  record.version = ATELIER_SDK_VERSION;
  record.family = plugin.file.family;
  record.plugin_version = plugin.file.version;
  if (const auto* denoiser = model.denoiser()) record.variant = denoiser->detection.variant;
  record.dtype = at::toString(model.dtype());
  record.device = model.device().str();
  for (const auto& part : model.parts()) {
    for (const std::string& file : part.checkpoint.files()) {
      record.files[part.detection.component].push_back(generate::short_path(file));
    }
    const weights::Storage storage = model.storage(part.detection.component);
    if (storage != weights::Storage::kPlain)
      record.storage[part.detection.component] = weights::storage_name(storage);
    const weights::Compute compute = model.compute(part.detection.component);
    if (compute == weights::Compute::kW8A8)
      record.compute[part.detection.component] = weights::compute_name(compute);
  }
  return record;
}

// The LoRAs of a run; the model's layers are looked through with the first of them.
class Loras {
 public:
  Loras(LoadedModel& model, lora::Mode mode, Progress& progress)
      : model_(model), mode_(mode), progress_(progress) {}

  // Whether they fit the model; reads no values.
  void check(const Settings& settings, const Place& place, report::Problems& problems) {
    for (const lora::Use& use : settings.loras) {
      try {
        registry().check(use.path);
      } catch (const Error& error) {
        problems.add(error.at(place.of(place.file.empty() ? "lora" : "loras")));
      }
    }
  }

  // Makes the model's LoRAs those of `settings`.
  void use(const Settings& settings) {
    if (!registry_ && settings.loras.empty()) return;
    registry().use(settings.loras);
    for (const lora::Use& use : settings.loras) {
      const std::vector<std::string>& unmatched = registry().check(use.path);
      if (unmatched.empty() || !warned_.insert(use.path).second) continue;
      progress_.warn("LoRA " + use.name + ": " + std::to_string(unmatched.size()) +
                     " of its names are nothing in this model and change nothing: " +
                     report::list_names(unmatched, 10));
    }
  }

  // Of Request::encoder_state.
  std::string encoder_state(const Settings& settings) {
    std::string state;
    if (settings.loras.empty()) return state;
    for (const ComponentSpec& component : model_.family().components()) {
      if (component.phases.encode && component.role != "vae")
        state += registry().fingerprint(settings.loras, component.name);
    }
    return state;
  }

 private:
  lora::Registry& registry() {
    if (!registry_) registry_.emplace(model_, lora::Registry::Options{.mode = mode_});
    return *registry_;
  }

  LoadedModel& model_;
  lora::Mode mode_;
  Progress& progress_;
  std::optional<lora::Registry> registry_;
  std::set<std::string> warned_;  // files
};

// A model that is ready to run jobs.
class Session {
 public:
  Session(LoadedModel& model, Loras& loras, const plugins::Plugin& plugin,
          const flags::ParsedFlags& flags, bool batches_cfg, bool keeps_all, Progress& progress,
          run::MemoryTimeline* timeline)
      : model_(model),
        loras_(loras),
        progress_(progress),
        timeline_(timeline),
        record_(record_of(model, plugin)),
        writes_metadata_(!flags.flag("no_metadata")),
        batches_cfg_(batches_cfg),
        generator_(engine_of(keeps_all), progress, InterruptGuard::is_requested) {
    if (flags.flag("tiled")) tiling_ = tiling_of(flags);
  }

  static generate::Tiling tiling_of(const flags::ParsedFlags& flags) {
    return {flags.integer("tile_size"), flags.integer("tile_stride")};
  }

  // Adds finished files to `result` as they are written.
  void run(const Settings& settings, JobResult& result) {
    const uint64_t seed = first_seed(settings);
    result.seed = seed;
    Request request = generate::make_request(settings, model_.family(), model_.model(), seed);
    request.batches_cfg = batches_cfg_;
    request.tiling = tiling_;
    request.encoder_state = loras_.encoder_state(settings);
    loras_.use(settings);
    const auto paths = generate::output_paths(settings.output, settings.num_images);
    tell_replaced(paths);
    const std::string schedule(
        generate::find_schedule(model_.family().schedules(), settings.schedule).name);
    const auto on_picture = [&](size_t index, const at::Tensor& pixels) {
      const media::Picture picture = media::to_picture(pixels.select(1, 0));
      media::PngText text;
      if (writes_metadata_) {
        text = generate::metadata_of(record_, settings, request, schedule, index);
      }
      files::write_file(paths[index], media::encode_png(picture, text));
      result.output.push_back(paths[index]);
      progress_.note(paths[index] + ": " + std::to_string(picture.width) + "x" +
                     std::to_string(picture.height) + ", seed " +
                     std::to_string(request.seeds[index]));
    };
    try {
      generator_.run(request, on_picture);
    } catch (...) {
      const std::optional<Error> failure = plugins::out_of_memory();
      if (!failure) throw;
      throw does_not_fit(*failure, request);
    }
  }

  // Encodes the prompts of all jobs, before the text encoder leaves.
  void encode_ahead(const std::vector<Job>& jobs) {
    std::vector<Request> requests;
    for (const Job& job : jobs) {
      Settings settings = job.settings;
      // Encoded when the LoRA is in use.
      if (!loras_.encoder_state(settings).empty()) continue;
      settings.input_image.clear();
      settings.latents.clear();
      requests.push_back(generate::make_request(settings, model_.family(), model_.model(), 0));
    }
    generator_.encode_ahead(requests);
  }

 private:
  generate::Engine engine_of(bool keeps_all) {
    generate::Engine engine = generate::make_engine(model_);
    engine.load = [this](std::string_view component) { load(component); };
    engine.keeps_all = keeps_all;
    engine.on_phase = [this](std::string_view phase, int64_t number) {
      begin_phase(phase, number);
    };
    if (timeline_ != nullptr) engine.runner = &sampling_.emplace(model_.runner(), *timeline_);
    return engine;
  }

  void begin_phase(std::string_view phase, int64_t number = 0) {
    phase_ = phase;
    if (timeline_ != nullptr) timeline_->begin(phase, number);
  }

  // Says who holds what. Nothing of what failed is held any more.
  Error does_not_fit(const Error& failure, const Request& request) {
    const memory::DeviceMeter meter(model_.device(), model_.port());
    const memory::DeviceBytes device = meter.bytes();
    std::vector<model::Holder> holders = model::weight_holders(model_);
    holders.push_back({"encoded prompts", generator_.cached_bytes()});
    const int64_t taken = device.when_refused > 0 ? device.when_refused : device.peak;
    holders.push_back({phase_ + ", while it went on", std::max<int64_t>(0, taken - device.live)});
    for (const std::string& line : model::holder_lines(holders, device)) progress_.warn(line);
    if (phase_ == "load") return failure;
    std::vector<std::string> flags;
    if (phase_ == "denoise" && request.batch_size > 1) flags.push_back("--batch_size 1");
    if (phase_ == "decode" || (phase_ == "encode" && request.input_pixels.defined()))
      flags.push_back(request.tiling ? "a smaller --tile_size" : "--tiled");
    const auto for_weights = model::flags_for_weights(model_);
    flags.insert(flags.end(), for_weights.begin(), for_weights.end());
    flags.push_back("a smaller --height and --width");
    return {failure.code(), failure.message(), model::hint_of(flags), failure.tag()};
  }

  void load(std::string_view component) {
    if (model_.is_loaded(component)) return;
    begin_phase("load");
    progress::Step step(progress_, "load " + std::string(component), 0, progress::Unit::kBytes);
    model_.load_component(component, [&](const model::LoadProgress& state) {
      step.set(state.bytes_done, state.bytes_total);
    });
    step.finish();
  }

  LoadedModel& model_;
  Loras& loras_;
  Progress& progress_;
  run::MemoryTimeline* timeline_;  // null: none
  std::optional<run::SamplingRunner> sampling_;
  std::string phase_ = "load";  // what the generator does
  generate::ModelRecord record_;
  bool writes_metadata_, batches_cfg_;
  std::optional<generate::Tiling> tiling_;
  Generator generator_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Errors after which the next job would fare no better.
bool ends_the_run(ErrorCode code) {
  return code == ErrorCode::kCancelled || code == ErrorCode::kInternal ||
         code == ErrorCode::kEnvironment;
}

// Runs the jobs of a prompts file and prints a line for each.
class JobRunner {
 public:
  explicit JobRunner(Session& session) : session_(session) {}

  void run(const Job& job) {
    JobResult result;
    result.line = job.place.line;
    const double begin = seconds_now();
    try {
      session_.run(job.settings, result);
      result.seconds = seconds_now() - begin;
      print_line(result.to_json());
    } catch (const Error& error) {
      result.seconds = seconds_now() - begin;
      fail(result, error);
      if (ends_the_run(error.code())) throw;
    }
  }

  // A job that never began.
  void refuse(uint64_t line, const Error& error) {
    JobResult result;
    result.line = line;
    fail(result, error);
  }

  // Of the first job that failed; 0 when none did.
  int exit_code() const { return exit_code_; }

 private:
  void fail(JobResult& result, const Error& error) {
    result.error = error.what();
    print_line(result.to_json());
    if (exit_code_ == 0) exit_code_ = atelier::exit_code(error.code());
  }

  Session& session_;
  int exit_code_ = 0;
};

// Runs stdin's jobs one by one as they come. A wrong line is answered with its error and skipped.
int run_stdin(JobRunner& runner, const LoadedModel& model, const Settings& base,
              const std::function<void(const Job&, report::Problems&)>& check) {
  for (uint64_t line = 1; !InterruptGuard::is_requested(); ++line) {
    const std::optional<std::string> text = read_stdin_line();
    if (!text) break;
    if (text->find_first_not_of(" \t\r") == std::string::npos) continue;
    report::Problems problems;
    const std::optional<Job> job =
        generate::parse_job(*text, {"stdin", line}, base, model.family().inputs(), problems);
    if (problems.empty()) check(*job, problems);
    try {
      problems.throw_if_any();
    } catch (const Error& error) {
      runner.refuse(line, error);
      continue;
    }
    runner.run(*job);
  }
  if (InterruptGuard::is_requested()) throw Error(ErrorCode::kCancelled, "stopped by the user");
  return runner.exit_code();
}

// What the planner is told of the jobs.
plan::GenerationAsked asked_of(const flags::ParsedFlags& flags, const std::vector<Job>& jobs,
                               const Settings& base, bool reads_stdin) {
  plan::GenerationAsked asked;
  asked.jobs = jobs;
  if (asked.jobs.empty()) asked.jobs.push_back({Place{}, base});
  asked.reads_stdin = reads_stdin;
  if (flags.is_given("cfg_batch")) asked.cfg_batch = flags.text("cfg_batch") == "on";
  if (flags.flag("tiled")) asked.tiling = Session::tiling_of(flags);
  if (flags.is_given("prefetch")) asked.prefetch = flags.integer("prefetch");
  return asked;
}

// `only`: null to run, otherwise the plan is printed and nothing is made.
int generate_or_plan(std::span<const std::string> arguments, const PlanOnly* only) {
  if (flags::wants_help(arguments)) {
    std::fputs(flags::help_text(generate_command(family_for_help(arguments))).c_str(), stdout);
    return 0;
  }
  // Everything that can be wrong is found before any weight is read.
  report::Problems problems;
  const auto peek = [&](const char* name) {
    return flags::peek_flag(arguments, name).value_or("");
  };
  const plugins::Plugin* const plugin =
      choose_family({flags::peek_flag(arguments, "plugin"), peek("plugin_path"),
                     peek("model_paths"), peek("model_id_with_origin_paths")},
                    problems);
  const ModelFamily* const family = plugin ? plugin->family : nullptr;
  const auto inputs = family ? family->inputs() : std::span<const InputSpec>();
  const flags::ParsedFlags flags =
      flags::parse_flags(generate_command(family), arguments, {}, problems);
  Progress progress(progress::stderr_options(flags.flag("quiet")));
  apply_process_flags(flags.text("attention"), flags.text("kernels"), flags.integer("threads"),
                      problems);
  Settings base = generate::settings_of(flags, inputs, problems);
  base.lora_dir = flags.text("lora_dir");
  check_lora_dir(base.lora_dir, problems);
  try {
    base.loras = lora::parse_flags(flags.texts("lora"));
  } catch (const Error& error) {
    problems.add(error.at("--lora"));
  }
  const std::string prompts_file = flags.find_text("prompts_file").value_or("");
  const bool reads_stdin = prompts_file == "-";
  std::vector<Job> jobs;
  if (prompts_file.empty()) {
    jobs.push_back({Place{}, base});
  } else if (!reads_stdin) {
    problems.collect([&] {
      jobs = generate::parse_jobs(files::read_text_file(prompts_file), prompts_file, base, inputs,
                                  problems);
    });
  }
  std::unique_ptr<LoadedModel> model;
  model::LoadRequest request;
  plan::MemoryWishes wishes = memory_wishes(flags);
  const size_t before_wishes = problems.size();
  problems.collect([&] { plan::check_wishes(wishes); });
  const bool has_wishes = problems.size() == before_wishes;
  run::check_report_path(flags.text("report_memory"), problems);
  problems.collect([&] {
    request = model::load_request(flags);
    request.prepares_levels = true;
    request.cuts_texts = flags.flag("truncate_captions");
    if (only != nullptr) plan_elsewhere(*only, wishes, request);
    if (family != nullptr) model = LoadedModel::open(*family, request);
  });
  std::optional<plan::SizeGuard> sizes;
  if (model && has_wishes) sizes.emplace(*model, request, wishes);
  std::optional<generate::Tiling> tiling;
  if (flags.flag("tiled")) tiling = Session::tiling_of(flags);
  std::optional<generate::TextLengths> lengths;
  if (model) lengths.emplace(model->model(), family->name(), request.cuts_texts);
  std::optional<Loras> loras;
  const lora::Mode mode =
      flags.text("lora_mode") == "merge" ? lora::Mode::kMerge : lora::Mode::kHot;
  if (model) loras.emplace(*model, mode, progress);
  const auto check = [&](const Job& job, report::Problems& found) {
    const size_t before = found.size();
    generate::check_settings(job.settings, family, job.place, found);
    generate::check_output(job.settings, job.place, found);
    if (!model) return;
    loras->check(job.settings, job.place, found);
    const auto* denoiser = model->denoiser();
    generate::check_against_model(job.settings, *family, model->model(),
                                  denoiser ? denoiser->detection.variant : "", job.place, found);
    lengths->check(job.settings, *family, job.place, found);
    if (sizes && found.size() == before)
      sizes->check(job.settings, job.place, tiling, /*may_tile=*/true, found);
  };
  if (tiling && model) {
    problems.collect(
        [&] { generate::check_tiling(*tiling, model->model().latent_spec().spatial_stride); });
  }
  for (const Job& job : jobs) check(job, problems);
  if (reads_stdin && model)  // what lines leave out
    generate::check_sizes(base, *family, model->model().latent_spec(), Place{}, problems);
  problems.throw_if_any();
  if (const std::string note = lengths->note(); !note.empty()) progress.note("note: " + note);

  std::string reason;  // why nothing is planned
  const std::optional<plan::Planned> planned = plan::plan_generation(
      *model, request, wishes, asked_of(flags, jobs, base, reads_stdin), reason);
  if (only != nullptr) return print_plan(planned, reason, *only);
  if (!reason.empty()) progress.warn("warning: no plan: " + reason);
  bool batches_cfg = flags.text("cfg_batch") == "on";
  if (planned) {
    note_plan(*planned, progress);
    plan::apply_plan(planned->result.plan, request);
    model->rearrange(request);
    if (!flags.is_given("cfg_batch")) batches_cfg = plan::cfg_batch_of(*planned);
  }
  for (const std::string& note : model->notes()) progress.note("note: " + note);
  const InterruptGuard interrupts;
  const bool keeps_all = !prompts_file.empty() &&
                         (planned ? plan::everything_stays(*planned) : everything_fits(*model));
  std::optional<run::MemoryTimeline> timeline;
  if (const std::string file = flags.text("report_memory"); !file.empty())
    timeline.emplace(file, model->device(), model->port());
  Session session(*model, *loras, *plugin, flags, batches_cfg, keeps_all, progress,
                  timeline ? &*timeline : nullptr);
  const auto run_jobs = [&] {
    if (prompts_file.empty()) {
      JobResult result;
      session.run(jobs.front().settings, result);
      for (const std::string& path : result.output) print_line(path);
      return 0;
    }
    JobRunner runner(session);
    if (reads_stdin) return run_stdin(runner, *model, base, check);
    if (!keeps_all) session.encode_ahead(jobs);
    for (const Job& job : jobs) runner.run(job);
    return runner.exit_code();
  };
  const int code = run_jobs();
  for (const std::string& line : model->streaming_report()) progress.note(line);
  if (planned) note_measured(*planned, *model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return code;
}

}  // namespace

int run_generate(std::span<const std::string> arguments) {
  return generate_or_plan(arguments, /*only=*/nullptr);
}

int plan_generate(std::span<const std::string> arguments, const PlanOnly& only) {
  return generate_or_plan(arguments, &only);
}

}  // namespace atelier::cli
