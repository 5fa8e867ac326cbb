// A model that stays up and makes images, one request after another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/generate/clip_file.h"
#include "host/generate/generator.h"
#include "host/generate/job_runner.h"
#include "host/generate/lora_set.h"
#include "host/generate/metadata.h"
#include "host/media/sound.h"
#include "host/model/memory_holders.h"
#include "host/order/generation.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"

namespace atelier::generate {

// How a run carries out an order: what the plan decided, or what holds where nothing is planned.
struct Layout {
  model::WeightLayout weights = {};
  bool batches_cfg = true;  // both halves of guidance in one call of the denoiser
  bool keeps_all = false;   // components stay beside each other; see Engine
  int64_t graph_rows = 0;   // see memory::graph_rows()

  // Flags, with their values, that must be equal on all ranks of one picture.
  std::vector<std::pair<std::string, std::string>> shared_flags() const;
};

// The layout of an order without a plan. Throws Error{kInvalidArgument} where the order wants CUDA
// graphs and the device has none.
Layout unplanned_layout(const order::Generation& order, const model::LoadedModel& model);

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
  Session(model::LoadedModel& model, LoraSet& loras, const order::Generation& order,
          const Layout& layout, SessionHooks hooks, progress::Progress& progress);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Writes the images of `settings`, which the checks have let through; of several ranks the first
  // does. `result` gets the seed, and each file as it is finished. Throws Error{kOutOfMemory} with
  // the flags that would help.
  void run(const order::Settings& settings, JobResult& result);

  bool keeps_all() const { return layout_.keeps_all; }

  // Encodes the prompts of all jobs, before the text encoder leaves. Those of jobs whose LoRAs
  // change the encoder are encoded when their turn comes.
  void encode_ahead(std::span<const order::Job> jobs);

 private:
  Engine make_engine();
  uint64_t seed_of(const order::Settings& settings) const;
  void make_images(const Request& request, const Generator::OnFrames& on_frames,
                   Generator::OnSound on_sound);
  void keep_pieces(ClipFile& clip, const std::string& path, int64_t frames);
  bool holds_sound(const order::Settings& settings);
  void begin_phase(std::string_view phase, int64_t number = 0);
  void watch_steps(int64_t number);
  void load(std::string_view component);
  void make_graphs(bool wanted);
  void end_graphs();
  Request request_of(const order::Settings& settings, uint64_t seed);
  std::shared_ptr<const media::Sound> soundtrack_of(const order::Settings& settings);
  media::Text text_of(const order::Settings& settings, const Request& request, size_t index) const;
  Error does_not_fit(const Error& failure, const Request& request);

  model::LoadedModel& model_;
  LoraSet& loras_;
  const order::Generation& order_;
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

}  // namespace atelier::generate
