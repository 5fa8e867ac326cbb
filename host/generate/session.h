// A model that stays up and makes the images of jobs that come and go.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/generate/engine.h"
#include "host/generate/job_files.h"
#include "host/generate/job_runner.h"
#include "host/generate/lora_set.h"
#include "host/generate/metadata.h"
#include "host/model/memory_holders.h"
#include "host/model/resting_components.h"
#include "host/order/generation.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"

namespace atelier::generate {

// How a run carries out an order: what the plan decided, or what holds where nothing is planned.
struct Layout {
  model::WeightLayout weights = {};
  bool batches_cfg = true;  // both halves of guidance in one call of the denoiser
  bool keeps_all = false;   // components stay beside each other; see EngineModel
  int64_t graph_rows = 0;   // see memory::graph_rows()
  // See Packing: what jobs have together in one call of the denoiser.
  int64_t max_batch = 0, max_tokens = 0;

  // Flags, with their values, that must be equal on all ranks of one picture.
  std::vector<std::pair<std::string, std::string>> shared_flags() const;
};

// The layout of an order without a plan. Throws Error{kInvalidArgument} where the order wants CUDA
// graphs and the device has none.
Layout unplanned_layout(const order::Generation& order, const model::LoadedModel& model);

// Who is told of a session's work, and who shares it.
struct SessionHooks {
  std::function<bool()> is_cancelled = {};                    // ends all jobs
  std::function<void(const std::string& path)> on_file = {};  // behind each that is finished
  run::MemoryTimeline* timeline = nullptr;                    // null: none is made
  PictureRanks ranks = {};                                    // all of them run the same requests
};

// Who is told of one job. Each may be empty, and is called from within Session::advance().
struct JobHooks {
  // Behind each step of the job, of those of all its images and pieces; see steps_of_all().
  std::function<void(int64_t step, int64_t steps)> on_step = {};
  // A small picture of what becomes of the first image or frame of those that are denoised
  // together, behind every so many steps: see Decoder::preview(). 0: none.
  int64_t preview_every = 0;
  std::function<void(int64_t step, const at::Tensor& pixels_CHW)> on_preview = {};
  std::function<void(const std::string& path)> on_file = {};  // behind each that is finished
  std::function<void(const JobResult& result)> on_done = {};  // at its end, or with its error
};

// Not thread-safe.
class Session {
 public:
  // Carries out jobs of `order`, whose plugin is known, as `layout` says. What is given by
  // reference outlives the session.
  Session(model::LoadedModel& model, LoraSet& loras, const order::Generation& order,
          const Layout& layout, SessionHooks hooks, progress::Progress& progress);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes in a job that writes the images of `settings`, which the checks have let through; of
  // several ranks the first does. Reads its input files, which it holds from then on, and makes its
  // folders; throws what that throws, and there is no job then. Returns its number.
  uint64_t add(const order::Settings& settings, JobHooks hooks);
  // Does one piece of work, see Engine::advance(). A job that fails tells it to its on_done, with
  // the flags that would help where memory was short. False: there is nothing to do.
  bool advance();
  // The job leaves before the next piece of work: none of its hooks is called any more, and a clip
  // that is not finished leaves no file. May be called from within a hook; does nothing for one
  // that is not there.
  void cancel(uint64_t job);
  bool is_idle() const { return engine_.is_idle(); }
  // While it is idle: weights leave the device and wait on the host, where it has room. The next
  // job brings them back without reading a file.
  void rest();

  // Adds a job and advances until it is done. `result` gets the seed and the files that were
  // finished, also where it throws what the job failed with.
  void run(const order::Settings& settings, JobResult& result);

  bool keeps_all() const { return layout_.keeps_all; }

  // Encodes the prompts of all jobs, before the text encoder leaves. Those of jobs whose LoRAs
  // change the encoder are encoded when their turn comes.
  void encode_ahead(std::span<const order::Job> jobs);

 private:
  struct Job;
  using OnFailed = std::function<void(std::exception_ptr failure)>;

  uint64_t add(const order::Settings& settings, JobHooks hooks, OnFailed on_failed);
  void open_files(Job& job, const order::Settings& settings);
  Sink sink_of(Job& job);
  void end(Job& job, std::exception_ptr failure);
  void fail(Job& job, std::exception_ptr failure);

  EngineModel engine_model();
  uint64_t seed_of(const order::Settings& settings) const;
  void begin_phase(std::string_view phase, int64_t number = 0);
  void watch_steps(int64_t number);
  void load(std::string_view component);
  void make_graphs(bool wanted);
  void end_graphs();
  Request request_of(const order::Settings& settings, uint64_t seed);
  Error does_not_fit(const Error& failure, const Request& request);

  model::LoadedModel& model_;
  LoraSet& loras_;
  const order::Generation& order_;
  const Layout layout_;
  const SessionHooks hooks_;
  progress::Progress& progress_;
  std::optional<run::SamplingRunner> sampling_;
  std::string phase_ = "load";  // what the engine does
  int64_t steps_ = 0;           // of all images of the last job; 0: nobody waits to be told
  double first_step_began_s_ = 0.0;
  bool has_graphs_ = false;
  model::PinningProblem pinning_;
  model::RestingComponents resting_;
  const ModelRecord record_;
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;  // by number
  std::vector<uint64_t> cancelled_;                // that leave with the next piece of work
  Engine engine_;
};

// What to say of steps that will go on for so long; empty where nobody needs to be told.
std::string long_run_note(double seconds);

}  // namespace atelier::generate
