// The work of a server: what clients ask for, in line for the one thread that owns the model.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atelier::serve {

// A file that a client sent along: the bytes of a picture, a clip or a sound. Copies share them.
struct Upload {
  explicit Upload(std::string all) : shared(std::make_shared<const std::string>(std::move(all))) {}
  const std::string& bytes() const { return *shared; }

  std::shared_ptr<const std::string> shared;
};

// What a client asks for, whichever API it speaks.
struct Asked {
  // Names of the settings and of the family's inputs, as a line of a prompts file has them. Inputs
  // that are files are not among them but in `uploads`: no client names a path of this machine.
  nlohmann::json fields = nlohmann::json::object();
  std::map<std::string, std::vector<Upload>, std::less<>> uploads = {};  // by input
  // Registered LoRAs and their strengths; nullopt: those that are loaded for all requests.
  std::optional<std::vector<std::pair<std::string, double>>> loras = {};
  int64_t previews = 0;                   // pictures of it while it is made, spread over its steps
  std::string format = {};                // png or jpeg, of clips mp4, webp or gif; empty: png, mp4
  int priority = 0;                       // higher ones go first; equal ones in the order they came
  std::optional<double> deadline_s = {};  // from now on; a job that waits longer is given up
  std::string api = "jobs";               // for metrics: "openai", "sdapi", "videos", "jobs"
  bool survives = false;     // is kept on disk, so that a server that is started again makes it
  nlohmann::json note = {};  // the API's own, given back in JobView: "size" as it was written, …
  // What the client sent as Idempotency-Key: a job of the same key and content is made once, until
  // it is cancelled or fails. Empty: none.
  std::string idempotency_key = {};
};

enum class JobState { kQueued, kRunning, kDone, kFailed, kCancelled };
std::string_view state_name(JobState state);  // "queued", "running", "done", "failed", "cancelled"

struct JobFile {
  std::string path;          // of this machine; replies name its number
  std::string content_type;  // "image/png"
  uint64_t seed = 0;
};

// A job as it stands.
struct JobView {
  std::string id;
  JobState state = JobState::kQueued;
  uint64_t version = 0;         // counts every change
  int64_t place = 0;            // of a queued job, from 1
  int64_t step = 0, steps = 0;  // of all of its images together; 0 steps: not known yet
  int64_t previews = 0;         // how many there have been
  std::shared_ptr<const std::string> preview = {};      // the last one, JPEG; null: none yet
  std::vector<JobFile> files = {};                      // those that are finished
  std::string error = {};                               // empty: none
  int error_status = 0;                                 // the HTTP status that says what it was
  double created_s = 0, started_s = 0, finished_s = 0;  // seconds of the system's clock
  nlohmann::json settings = {};                         // as they were carried out, with the seed
  nlohmann::json note = {};                             // Asked::note
  std::string api = {};
};

// Safe to use from several threads.
class Jobs {
 public:
  virtual ~Jobs() = default;

  // Checks what is asked for and puts it into the line. Throws http::HttpError: 400 names what is
  // wrong and the nearest name, 413 what is too large, 429 with Retry-After where the line is full.
  // Who asks waits for the job: see leave().
  virtual std::string submit(Asked asked) = 0;
  // One more request waits for a job. False: there is none, or it was cancelled.
  virtual bool join(std::string_view id) = 0;
  // A request waits for a job no more; it ends as by cancel() when none is left that does.
  virtual void leave(std::string_view id) = 0;
  // nullopt: there is none of that id (any more).
  virtual std::optional<JobView> find(std::string_view id) const = 0;
  // Waits until the job has another version than `seen`, or for so long; the job as it stands then.
  virtual std::optional<JobView> wait(std::string_view id, uint64_t seen,
                                      std::chrono::milliseconds most) const = 0;
  // All that are known, the newest first.
  virtual std::vector<JobView> list() const = 0;
  // Ends a job within one step; false: there is none, or it was over already.
  virtual bool cancel(std::string_view id) = 0;
  // Forgets a job that is over, and removes its files; cancels it before where it is not.
  virtual bool remove(std::string_view id) = 0;
};

// A LoRA that clients may name.
struct RegisteredLora {
  std::string name;
  std::string file;              // as the user wrote it; replies name `name` alone
  bool is_loaded = false;        // for requests that name none
  double strength = 1.0;         // then
  nlohmann::json metadata = {};  // of the file: rank, base, trigger words where it says them
};

// Safe to use from several threads.
class Loras {
 public:
  virtual ~Loras() = default;
  virtual std::vector<RegisteredLora> list() const = 0;
  // Takes a file of the server's --lora_dir by its name without a folder, in place of one of that
  // name. `component`: of several denoisers the one that it is for; empty: what the file says.
  // Throws http::HttpError 404 where there is none, and 400 where it does not fit the model.
  virtual void add(const std::string& name, const std::string& file,
                   const std::string& component = {}) = 0;
  virtual void remove(const std::string& name) = 0;  // HttpError 404
  // Makes it one of those that requests have which name none; 0 takes it out. HttpError 404.
  virtual void set_loaded(const std::string& name, bool is_loaded, double strength) = 0;
};

// What there is to say of the model that is served.
struct ModelFacts {
  std::string name;  // --served_name, or that of the model's folder
  std::string family, variant;
  bool makes_clips = false;
  bool has_transparency = false;              // of its pictures
  int64_t height = 0, width = 0, frames = 1;  // what it makes where nothing else is said
  int64_t frame_step = 1;  // frames of a clip are one more than a multiple of this
  double fps = 0;
  // {"settings": [row…], "inputs": [row…]}, each row with name, kind, help, default, choices,
  // minimum, maximum, list, required; "starts" is true of the input that sampling begins from.
  nlohmann::json inputs;
  nlohmann::json schedules;  // name, steps, cfg_scale, solver, levels
  std::vector<std::string> solvers;
  std::vector<std::string> denoisers = {};  // components; that of the noisiest levels first
  double started_s = 0;
  int64_t max_images = 16;  // of one request
};

// All that the APIs are written over.
struct Service {
  Jobs& jobs;
  Loras& loras;
  ModelFacts model;
};

}  // namespace atelier::serve
