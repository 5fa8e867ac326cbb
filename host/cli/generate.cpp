// atelier generate: images from prompts.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "host/check/generation.h"
#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/plan.h"
#include "host/cli/process.h"
#include "host/cli/ranks.h"
#include "host/distributed/machine_slabs.h"
#include "host/generate/session.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/memory_timeline.h"
#include "host/run/stop.h"

namespace atelier::cli {
namespace {

using check::OpenedGeneration;
using distributed::Group;
using generate::JobResult;
using generate::PictureRanks;
using generate::Session;
using order::Generation;
using order::Job;
using progress::Progress;
using run::StopSignals;

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

// Runs stdin's jobs one by one as they come. A wrong line is answered with its error and skipped.
void run_stdin(generate::JobRunner& runner, OpenedGeneration& opened, const order::Settings& base) {
  const auto inputs = opened.model().family().inputs();
  for (uint64_t line = 1; !StopSignals::is_requested(); ++line) {
    const std::optional<std::string> text = read_stdin_line();
    if (!text) break;
    if (text->find_first_not_of(" \t\r") == std::string::npos) continue;
    report::Problems problems;
    std::optional<Job> job = order::parse_job(*text, {"stdin", line}, base, inputs, problems);
    if (problems.empty()) opened.check(*job, problems);
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
int run_jobs(Session& session, OpenedGeneration& opened, const PictureRanks& ranks) {
  const Generation& order = opened.order();
  if (!order.has_prompts_file()) {
    JobResult result;
    session.run(order.jobs.front().settings, result);
    return 0;
  }
  generate::JobRunner runner(
      [&](const order::Settings& settings, JobResult& result) { session.run(settings, result); },
      [&](const JobResult& result) {
        if (ranks.is_first()) print_line(result.to_json());
      },
      /*is_shared=*/!ranks.is_alone());
  if (order.reads_stdin()) {
    run_stdin(runner, opened, order.base);
  } else {
    const std::vector<Job> jobs = share_of(order.jobs, ranks);
    if (!session.keeps_all() && !jobs.empty()) session.encode_ahead(jobs);
    for (const Job& job : jobs) runner.run(job);
  }
  return runner.exit_code();
}

int make_images(OpenedGeneration& opened, const plan::Outcome& outcome, const PictureRanks& ranks,
                Progress& progress) {
  const Generation& order = opened.order();
  model::LoadedModel& model = opened.model();
  plan::follow_plan(outcome, order, model, opened.unchecked(), progress);
  const StopSignals interrupts(StopSignals::Kind::kInterrupt);
  std::optional<run::MemoryTimeline> timeline;
  if (!order.report_memory.empty() && ranks.team == 0 && ranks.is_first())
    timeline.emplace(order.report_memory, model.device(), model.transfer());
  generate::SessionHooks hooks = {.is_cancelled = StopSignals::is_requested,
                                  .timeline = timeline ? &*timeline : nullptr,
                                  .ranks = ranks};
  if (!order.has_prompts_file()) hooks.on_file = print_line;
  Session session(model, opened.loras(), order, plan::layout_of(order, model, outcome.planned),
                  std::move(hooks), progress);
  const int code = run_jobs(session, opened, ranks);
  for (const std::string& line : model.streaming_report()) progress.note(line);
  if (outcome.planned) plan::note_measured(*outcome.planned, model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return code;
}

// Plans what was opened.
plan::Outcome plan_opened(OpenedGeneration& opened, Progress& progress) {
  if (const std::string note = opened.note(); !note.empty()) progress.note("note: " + note);
  return plan::plan_generation(opened.model(), opened.order(), opened.planned_jobs());
}

Progress progress_of(const Generation& order, bool is_first) {
  return Progress(progress::stderr_options(order.is_quiet || !is_first));
}

// Makes this process's pictures, and waits until the others have made theirs, so that none is ended
// because another one is through, or has failed at a job. One that is stopped while it works by
// itself does not stop the others.
int make_images_beside(Group& world, OpenedGeneration& opened, const plan::Outcome& outcome,
                       Progress& progress) {
  const PictureRanks ranks = generate::form_teams(world, opened.order().processes);
  std::optional<Error> stopped;
  int code = 0;
  try {
    code = make_images(opened, outcome, ranks, progress);
  } catch (const Error& error) {
    if (!ranks.is_alone() || error.code() != ErrorCode::kCancelled) throw;
    stopped = error;
  }
  world.gather_texts("through");
  StopSignals::ignore_until_exit();
  world.part();
  if (stopped) throw Error(*stopped);
  return code;
}

// One of the processes that share out the jobs, or the pictures themselves.
int generate_with(Group& world, Generation order, const std::string& arguments,
                  report::Problems& problems) {
  const bool is_shared = order.processes.per_picture() > 1;
  agree_on_kernels(world, order.process.kernels);
  Progress progress = progress_of(order, world.is_first() || !is_shared);
  plan::Outcome outcome;
  const auto opened = prepare_together(world, [&] {
    auto all = std::make_unique<OpenedGeneration>(std::move(order), progress, problems);
    problems.throw_if_any();
    outcome = plan_opened(*all, progress);
    return all;
  });
  model::LoadedModel& model = opened->model();
  distributed::RunIdentity facts = program_identity();
  facts.emplace_back("the command line", arguments);
  facts.emplace_back("jobs", std::to_string(opened->order().jobs.size()));
  // A plan may choose another one on each rank.
  const generate::Layout layout = plan::layout_of(opened->order(), model, outcome.planned);
  if (is_shared)
    for (const auto& flag : layout.shared_flags()) facts.push_back(flag);
  add_model(facts, model);
  compare_ranks(world, facts);
  model.share_host(distributed::share_machine(world));
  return make_images_beside(world, *opened, outcome, progress);
}

int generate_with_others(Generation order, const distributed::Ranks& ranks,
                         const std::string& arguments, report::Problems& problems) {
  constexpr std::chrono::minutes kMostWait{30};
  distributed::GroupOptions options = {.exchange = kMostWait};
  const order::Processes& processes = order.processes;
  if (processes.dist_timeout > 0) options.exchange = std::chrono::seconds(processes.dist_timeout);
  if (order.load && processes.per_picture() > 1)
    options.gpu = gpu_of_nccl(order.load->device, processes.dist_backend);
  return distributed::run_with_others(ranks, options, [&](Group& world) {
    return generate_with(world, std::move(order), arguments, problems);
  });
}

// `only`: null to run, otherwise the plan is printed and nothing is made. Everything that can be
// wrong is found before any weight is read.
int generate_or_plan(std::span<const std::string> said, const PlanOnly* only) {
  if (flags::wants_help(said)) return print_help(order::generate_command(family_for_help(said)));
  report::Problems problems;
  order::Words words({said.begin(), said.end()}, order::generate_command(nullptr), problems);
  Generation order = read_generation(words, choose_family(words, problems), problems);
  const std::string device = order.load ? order.load->device : "cpu";
  set_up(order.process, {.device = device, .is_quiet = order.is_quiet, .computes = only == nullptr},
         problems);
  if (order.load) note_slow_products(*order.load, order.is_quiet);
  if (only != nullptr) {
    if (order.load) plan::plan_elsewhere(only->device_profile, order.limits, *order.load);
  } else {
    const auto ranks = distributed::find_ranks(distributed::process_environment());
    if (order.load) choose_gpu(order.load->device, ranks);
    const bool has_file = order.has_prompts_file() && !order.reads_stdin();
    generate::check_ranks(order.processes, ranks, has_file, order.reads_stdin(), problems);
    if ((has_file || order.processes.per_picture() > 1) && !ranks.is_alone())
      return generate_with_others(std::move(order), ranks, c10::Join(" ", words.command_line()),
                                  problems);
  }
  Progress progress = progress_of(order, /*is_first=*/true);
  OpenedGeneration opened(std::move(order), progress, problems);
  problems.throw_if_any();
  const plan::Outcome outcome = plan_opened(opened, progress);
  if (only != nullptr) return print_plan(outcome, *only);
  return make_images(opened, outcome, /*ranks=*/{}, progress);
}

}  // namespace

int run_generate(std::span<const std::string> arguments) {
  try {
    return generate_or_plan(arguments, /*only=*/nullptr);
  } catch (const Error& error) {
    // By now what is unfinished is removed.
    const std::optional<int> signal = StopSignals::requested();
    if (error.code() == ErrorCode::kCancelled && signal && *signal != SIGINT)
      StopSignals::end_by(*signal);
    throw;
  }
}

int plan_generate(std::span<const std::string> arguments, const PlanOnly& only) {
  return generate_or_plan(arguments, &only);
}

}  // namespace atelier::cli
