// A model that stays up and makes images, one request after another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "host/generate/generator.h"
#include "host/generate/jobs.h"
#include "host/generate/lora_set.h"
#include "host/generate/metadata.h"
#include "host/generate/order.h"
#include "host/model/memory_holders.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"

namespace atelier::generate {

// Who is told of a session's work, and who shares it.
struct SessionHooks {
  std::function<bool()> is_cancelled = {};                    // see Generator
  std::function<void(const std::string& path)> on_file = {};  // behind each that is finished
  run::MemoryTimeline* timeline = nullptr;                    // null: none is made
  PictureRanks ranks = {};                                    // all of them run the same requests
};

// Not thread-safe.
class Session {
 public:
  // Carries out jobs of `order`, whose plugin is known, as `layout` says. What is given by
  // reference outlives the session.
  Session(model::LoadedModel& model, LoraSet& loras, const Order& order, const Layout& layout,
          SessionHooks hooks, progress::Progress& progress);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Writes the images of `settings`, which the checks have let through; of several ranks the first
  // does. `result` gets the seed, and each file as it is finished. Throws Error{kOutOfMemory} with
  // the flags that would help.
  void run(const Settings& settings, JobResult& result);

  bool keeps_all() const { return layout_.keeps_all; }

  // Encodes the prompts of all jobs, before the text encoder leaves. Those of jobs whose LoRAs
  // change the encoder are encoded when their turn comes.
  void encode_ahead(std::span<const Job> jobs);

 private:
  Engine make_engine();
  uint64_t seed_of(const Settings& settings) const;
  void make_images(const Request& request, const Generator::OnFrames& on_frames);
  void begin_phase(std::string_view phase, int64_t number = 0);
  void watch_steps(int64_t number);
  void load(std::string_view component);
  void make_graphs(bool wanted);
  void end_graphs();
  Request request_of(const Settings& settings, uint64_t seed);
  media::Text text_of(const Settings& settings, const Request& request, size_t index) const;
  Error does_not_fit(const Error& failure, const Request& request);

  model::LoadedModel& model_;
  LoraSet& loras_;
  const Order& order_;
  const Layout layout_;
  const SessionHooks hooks_;
  progress::Progress& progress_;
  std::optional<run::SamplingRunner> sampling_;
  std::string phase_ = "load";  // what the generator does
  int64_t steps_ = 0;           // of all images of this request; 0: nobody waits to be told
  double first_step_began_s_ = 0.0;
  bool has_graphs_ = false;
  model::PinningProblem pinning_;
  const ModelRecord record_;
  Generator generator_;
};

// What to say of steps that will go on for so long; empty where nobody needs to be told.
std::string long_run_note(double seconds);

// Runs jobs of which one may fail without ending the others, unless other ranks wait for it. Not
// thread-safe.
class JobRunner {
 public:
  using Make = std::function<void(const Settings&, JobResult&)>;
  using OnResult = std::function<void(const JobResult&)>;
  // `make` makes the images of one job, as Session::run does; `on_result` gets what became of
  // each. `is_shared`: other ranks make the same jobs.
  JobRunner(Make make, OnResult on_result, bool is_shared = false)
      : make_(std::move(make)), on_result_(std::move(on_result)), is_shared_(is_shared) {}

  // Rethrows errors after which the next job would fare no better.
  void run(const Job& job);

  // Reports `error` as the result of a job that was not started.
  void refuse(uint64_t line, const Error& error);

  // The exit code of the first job that failed; 0 when none did.
  int exit_code() const { return exit_code_; }

 private:
  void fail(JobResult& result, const Error& error);

  Make make_;
  OnResult on_result_;
  bool is_shared_;
  int exit_code_ = 0;
};

}  // namespace atelier::generate
