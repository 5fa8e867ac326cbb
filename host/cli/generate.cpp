// atelier generate: images from prompts.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/generate_flags.h"
#include "host/cli/plan.h"
#include "host/cli/ranks.h"
#include "host/distributed/machine_slabs.h"
#include "host/files/file_reader.h"
#include "host/generate/session.h"
#include "host/model/model_flags.h"
#include "host/plan/prepared_generation.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/memory_timeline.h"
#include "host/run/stop.h"
#include "host/train/config_file.h"

namespace atelier::cli {
namespace {

using distributed::Group;
using generate::Job;
using generate::JobResult;
using generate::PictureRanks;
using generate::Session;
using plan::GenerationRequest;
using plan::PreparedGeneration;
using progress::Progress;
using run::StopSignals;

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

// What was given, and what the table gave to `own`.
struct Given {
  flags::ParsedFlags parsed;
  GenerateFlags own;
};

// What lines of a prompts file leave out.
generate::Settings read_base(const Given& given, std::span<const InputSpec> inputs,
                             report::Problems& problems) {
  generate::Settings base = generate::settings_of(given.parsed, inputs, problems);
  base.lora_dir = given.own.lora_dir;
  check_lora_dir(base.lora_dir, problems);
  try {
    base.loras = lora::parse_flags(given.parsed.texts("lora"));
  } catch (const Error& error) {
    problems.add(error.at("--lora"));
  }
  return base;
}

// The jobs of --prompts_file, or the one of the command line.
void read_jobs(GenerationRequest& request, const std::string& file,
               std::span<const InputSpec> inputs, report::Problems& problems) {
  request.keeps_components = !file.empty();
  request.expects_jobs = file == "-";
  if (file.empty()) {
    request.jobs.emplace_back().settings = request.base;
  } else if (!request.expects_jobs) {
    problems.collect([&] {
      request.jobs =
          generate::parse_jobs(files::read_text_file(file), file, request.base, inputs, problems);
    });
  }
}

GenerationRequest read_request(const Given& given, const plugins::Plugin* plugin,
                               const PlanOnly* only, report::Problems& problems) {
  const auto& [parsed, own] = given;
  const auto inputs = plugin ? plugin->family->inputs() : std::span<const InputSpec>();
  GenerationRequest request = {.plugin = plugin,
                               .limits = own.limits,
                               .base = read_base(given, inputs, problems),
                               .lora_mode = own.lora_mode};
  read_jobs(request, own.prompts_file, inputs, problems);
  run::check_report_path(own.report_memory, problems);
  problems.collect([&] {
    model::LoadRequest load = model::load_request(parsed);
    load.prepares_levels = true;
    load.cuts_texts = own.truncate_captions;
    if (only != nullptr) plan::plan_elsewhere(only->device_profile, request.limits, load);
    request.load = std::move(load);
  });
  request.shares = own.shares;
  request.attention = own.process.attention;
  if (own.tiled) request.tiling = own.tiling;
  if (parsed.is_given("cfg_batch")) request.cfg_batch = own.cfg_batch;
  request.cuda_graphs = own.cuda_graphs;
  if (parsed.is_given("prefetch")) request.prefetch = parsed.integer("prefetch");
  return request;
}

// Runs stdin's jobs one by one as they come. A wrong line is answered with its error and skipped.
void run_stdin(generate::JobRunner& runner, PreparedGeneration& prepared,
               const generate::Settings& base) {
  const auto inputs = prepared.model().family().inputs();
  for (uint64_t line = 1; !StopSignals::is_requested(); ++line) {
    const std::optional<std::string> text = read_stdin_line();
    if (!text) break;
    if (text->find_first_not_of(" \t\r") == std::string::npos) continue;
    report::Problems problems;
    std::optional<Job> job = generate::parse_job(*text, {"stdin", line}, base, inputs, problems);
    if (problems.empty()) prepared.check(*job, problems);
    try {
      problems.throw_if_any();
    } catch (const Error& error) {
      runner.refuse(line, error);
      continue;
    }
    runner.run(*job);
  }
  if (StopSignals::is_requested()) throw Error(ErrorCode::kCancelled, "stopped by the user");
}

// Jobs that this process makes: teams take the jobs of a file in turn.
std::vector<Job> share_of(const std::vector<Job>& jobs, const PictureRanks& ranks) {
  std::vector<Job> share;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (static_cast<int64_t>(i) % ranks.teams == ranks.team) share.push_back(jobs[i]);
  }
  return share;
}

// Makes what was asked for. Returns the exit code.
int run_jobs(Session& session, PreparedGeneration& prepared, const GenerationRequest& request,
             const PictureRanks& ranks) {
  if (!request.keeps_components) {
    JobResult result;
    session.run(request.jobs.front().settings, result);
    return 0;
  }
  generate::JobRunner runner(
      [&](const generate::Settings& settings, JobResult& result) { session.run(settings, result); },
      [&](const JobResult& result) {
        if (ranks.is_first()) print_line(result.to_json());
      },
      /*is_shared=*/!ranks.is_alone());
  if (request.expects_jobs) {
    run_stdin(runner, prepared, request.base);
  } else {
    const std::vector<Job> jobs = share_of(request.jobs, ranks);
    if (!session.keeps_all() && !jobs.empty()) session.encode_ahead(jobs);
    for (const Job& job : jobs) runner.run(job);
  }
  return runner.exit_code();
}

int make_images(PreparedGeneration& prepared, const GenerationRequest& request,
                const GenerateFlags& own, const PictureRanks& ranks, Progress& progress) {
  prepared.follow_plan();
  const StopSignals interrupts(StopSignals::Kind::kInterrupt);
  model::LoadedModel& model = prepared.model();
  std::optional<run::MemoryTimeline> timeline;
  if (!own.report_memory.empty() && ranks.team == 0 && ranks.is_first())
    timeline.emplace(own.report_memory, model.device(), model.transfer());
  generate::SessionOptions options = prepared.session_options();
  options.writes_metadata = !own.no_metadata;
  options.is_cancelled = StopSignals::is_requested;
  if (!request.keeps_components) options.on_file = print_line;
  options.timeline = timeline ? &*timeline : nullptr;
  options.ranks = ranks;
  Session session(model, prepared.loras(), *request.plugin, options, progress);
  const int code = run_jobs(session, prepared, request, ranks);
  for (const std::string& line : model.streaming_report()) progress.note(line);
  if (prepared.planned()) plan::note_measured(*prepared.planned(), model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return code;
}

Progress progress_of(const GenerateFlags& own, bool is_first) {
  progress::Options shown = progress::stderr_options(own.quiet);
  if (!is_first) shown.quiet = true;
  return Progress(shown);
}

// Makes this process's pictures, and waits until the others have made theirs, so that none is ended
// because another one is through, or has failed at a job. One that is stopped while it works by
// itself does not stop the others.
int make_images_beside(Group& world, PreparedGeneration& prepared, const GenerateFlags& own,
                       Progress& progress) {
  const PictureRanks ranks = form_teams(world, prepared.request().shares);
  std::optional<Error> stopped;
  int code = 0;
  try {
    code = make_images(prepared, prepared.request(), own, ranks, progress);
  } catch (const Error& error) {
    if (!ranks.is_alone() || error.code() != ErrorCode::kCancelled) throw;
    stopped = error;
  }
  world.say("through");
  StopSignals::ignore_until_exit();
  world.part();
  if (stopped) throw Error(*stopped);
  return code;
}

// One of the processes that share out the jobs, or the pictures themselves.
int generate_with(Group& world, GenerationRequest request, const GenerateFlags& own,
                  const std::string& arguments, report::Problems& problems) {
  const bool is_shared = request.shares.size() > 1;
  Progress progress = progress_of(own, world.is_first() || !is_shared);
  const auto prepared = prepare_together(world, [&] {
    auto all = std::make_unique<PreparedGeneration>(std::move(request), progress, problems);
    problems.throw_if_any();
    all->make_plan();
    return all;
  });
  distributed::Facts facts = facts_of_program();
  facts.emplace_back("the command line", arguments);
  facts.emplace_back("jobs", std::to_string(prepared->request().jobs.size()));
  // A plan may choose another one on each rank.
  if (is_shared)
    facts.emplace_back("--cfg_batch", prepared->session_options().batches_cfg ? "on" : "off");
  add_model(facts, prepared->model());
  compare_ranks(world, facts);
  prepared->model().share_host(distributed::share_machine(world));
  return make_images_beside(world, *prepared, own, progress);
}

int generate_with_others(GenerationRequest request, const GenerateFlags& own,
                         const distributed::Ranks& ranks, const std::string& arguments,
                         report::Problems& problems) {
  constexpr std::chrono::minutes kMostWait{30};
  distributed::GroupOptions options = {.exchange = kMostWait};
  if (own.dist_timeout > 0) options.exchange = std::chrono::seconds(own.dist_timeout);
  if (request.load && request.shares.size() > 1)
    options.gpu = gpu_of_nccl(request.load->device, own.dist_backend);
  return distributed::run_with_others(ranks, options, [&](Group& world) {
    return generate_with(world, std::move(request), own, arguments, problems);
  });
}

// `only`: null to run, otherwise the plan is printed and nothing is made. Everything that can be
// wrong is found before any weight is read.
int generate_or_plan(std::span<const std::string> said, const PlanOnly* only) {
  if (flags::wants_help(said)) return print_help(generate_command(family_for_help(said)));
  report::Problems problems;
  const plugins::Plugin* const plugin = choose_generate_family(said, problems);
  const ModelFamily* const family = plugin ? plugin->family : nullptr;
  const auto command = generate_command(family);
  std::vector<flags::GivenValue> below;
  if (const auto file = flags::peek_flag(said, "config"))
    problems.collect([&] { below = train::read_config_file(*file, command, problems); });
  const auto arguments = with_family(said, plugin, generate_setting(said, "plugin").has_value());
  Given given = {flags::parse_flags(command, arguments, below, problems), {}};
  generate_table(given.own, family).read(given.parsed, problems);
  flags::apply(given.own.process);
  GenerationRequest request = read_request(given, plugin, only, problems);
  const bool is_shared = request.shares.size() > 1;
  const bool has_jobs = request.keeps_components && !request.expects_jobs;
  if (only == nullptr) {
    const auto ranks = distributed::find_ranks(distributed::process_environment());
    if (request.load) choose_gpu(request.load->device, ranks);
    check_ranks(request.shares, ranks, has_jobs, request.expects_jobs, problems);
    if ((has_jobs || is_shared) && !ranks.is_alone())
      return generate_with_others(std::move(request), given.own, ranks, c10::Join(" ", arguments),
                                  problems);
  }
  Progress progress = progress_of(given.own, /*is_first=*/true);
  PreparedGeneration prepared(request, progress, problems);
  problems.throw_if_any();
  prepared.make_plan();
  if (only != nullptr) return print_plan(prepared.planned(), prepared.unplanned(), *only);
  return make_images(prepared, prepared.request(), given.own, /*ranks=*/{}, progress);
}

}  // namespace

int run_generate(std::span<const std::string> arguments) {
  return generate_or_plan(arguments, /*only=*/nullptr);
}

int plan_generate(std::span<const std::string> arguments, const PlanOnly& only) {
  return generate_or_plan(arguments, &only);
}

}  // namespace atelier::cli
