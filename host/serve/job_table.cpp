#include "host/serve/job_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "formats/escape.h"
#include "host/files/content_hash.h"
#include "host/http/server.h"
#include "host/serve/lora_names.h"
#include "memory/clock.h"

namespace atelier::serve {

namespace fs = std::filesystem;

using http::HttpError;
using nlohmann::json;

struct JobTable::Job {
  JobView view;
  PreparedJob work;
  Asked asked;  // without uploads
  std::string content;
  uint64_t number = 0;  // in the order they came
  double came_s = 0, began_s = 0;
  std::optional<double> deadline_s = {};  // of the steady clock
  int64_t bytes = 0;                      // of its results, once it is over
  std::vector<lora::LoraRef> loras = {};  // as they were when it was asked for
  int64_t waiting = 0;                    // requests that wait for it
  int64_t begun = 0;      // how often it began and the program did not end as it should
  bool is_to_go = false;  // it is forgotten as soon as it is over

  bool is_over() const {
    return view.state != JobState::kQueued && view.state != JobState::kRunning;
  }
};

// Who has an Idempotency-Key.
struct JobTable::Claim {
  std::string id, content;
  bool is_entered = false;  // the job is in the line, or was
};

namespace {

constexpr int64_t kMostBegun = 2;  // times that a job may take the program with it
constexpr std::string_view kStateNames[] = {"queued", "running", "done", "failed", "cancelled"};

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<JobState> find_state(std::string_view name) {
  const auto found = std::ranges::find(kStateNames, name);
  if (found == std::end(kStateNames)) return std::nullopt;
  return static_cast<JobState>(found - std::begin(kStateNames));
}

std::string content_type_of(const std::string& path) {
  static const std::map<std::string, std::string, std::less<>> types = {{".png", "image/png"},
                                                                        {".jpg", "image/jpeg"},
                                                                        {".mp4", "video/mp4"},
                                                                        {".gif", "image/gif"},
                                                                        {".webp", "image/webp"}};
  const auto found = types.find(fs::path(path).extension().string());
  return found != types.end() ? found->second : "application/octet-stream";
}

// A key belongs to the API that it was sent to.
std::string key_of(const Asked& asked) {
  return asked.idempotency_key.empty() ? "" : asked.api + "\n" + asked.idempotency_key;
}

json loras_of(const std::optional<std::vector<std::pair<std::string, double>>>& loras) {
  if (!loras) return nullptr;
  json list = json::array();
  for (const auto& [name, strength] : *loras)
    list.push_back({{"name", name}, {"strength", strength}});
  return list;
}

json record_of(const std::vector<lora::LoraRef>& loras) {
  json list = json::array();
  for (const lora::LoraRef& lora : loras)
    list.push_back({{"name", lora.name},
                    {"path", lora.path},
                    {"strength", lora.strength},
                    {"component", lora.component}});
  return list;
}

std::vector<lora::LoraRef> loras_of_record(const json& list) {
  std::vector<lora::LoraRef> loras;
  for (const json& lora : list)
    loras.push_back({.name = lora.at("name"),
                     .path = lora.at("path"),
                     .strength = lora.at("strength"),
                     .component = lora.at("component")});
  return loras;
}

// Tells what is asked for from anything else.
std::string content_of(const Asked& asked) {
  const json rest = {asked.fields, loras_of(asked.loras), asked.previews, asked.format,
                     asked.priority};
  files::ContentHash hash;
  hash.add(std::string_view(rest.dump(-1, ' ', false, json::error_handler_t::replace)));
  for (const auto& [name, uploads] : asked.uploads) {
    hash.add(std::string_view(name)).add(static_cast<int64_t>(uploads.size()));
    for (const Upload& upload : uploads) hash.add(std::string_view(upload.bytes()));
  }
  return hash.hex();
}

}  // namespace

std::string_view state_name(JobState state) {
  return kStateNames[static_cast<size_t>(state)];
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kOutOfMemory:
      return 507;
    default:
      return 500;
  }
}

int refusal_of(ErrorCode code) {
  const bool is_ours = code == ErrorCode::kEnvironment || code == ErrorCode::kInternal ||
                       code == ErrorCode::kOutOfMemory;
  return is_ours ? status_of(code) : 400;
}

std::string text_of(const Error& error) {
  return error.message() + (error.hint().empty() ? "" : "; " + error.hint());
}

JobTable::JobTable(TableOptions options, const Spool& spool, Prepare prepare, Bell& bell,
                   Metrics& metrics)
    : options_([&] {
        if (!options.clock) options.clock = system_seconds;
        if (!options.steady) options.steady = memory::seconds_now;
        if (!options.told) options.told = std::identity();
        return std::move(options);
      }()),
      spool_(spool),
      prepare_(std::move(prepare)),
      bell_(bell),
      metrics_(metrics) {}

JobTable::~JobTable() = default;

// ---- Threads of connections

std::string JobTable::submit(Asked asked) {
  auto job = std::make_shared<Job>();
  const std::string id = Spool::new_id();
  asked.survives = asked.survives && !spool_.is_temporary();
  job->content = asked.idempotency_key.empty() ? "" : content_of(asked);
  if (const std::optional<std::string> before = claim(asked, id, job->content)) return *before;
  try {
    const SpooledFiles files = spool_.write(id, asked.uploads, asked.survives);
    asked.uploads.clear();
    job->work = prepare_(id, asked, files, /*loras=*/nullptr);
    job->loras = job->work.settings.loras;
    asked.loras.emplace();  // those that are loaded now, where none were named
    for (const lora::LoraRef& lora : job->loras)
      asked.loras->emplace_back(lora.name, lora.strength);
    job->asked = std::move(asked);
    job->waiting = 1;
    job->view.id = id;
    enter(job);
  } catch (...) {
    release(job->view.id.empty() ? asked : job->asked);
    const std::lock_guard lock(mutex_);
    collect([&] { spool_.remove_uploads(id); });
    throw;
  }
  bell_.ring();
  return id;
}

// Takes a place in the line for a job that is to be checked; returns the job that was made of the
// request before, for which one more waits from then on.
std::optional<std::string> JobTable::claim(const Asked& asked, const std::string& id,
                                           const std::string& content) {
  const std::string key = key_of(asked);
  std::unique_lock lock(mutex_);
  for (auto found = keys_.find(key); !key.empty() && found != keys_.end();
       found = keys_.find(key)) {
    if (stage_ == Stage::kClosed) break;
    if (found->second.content != content)
      throw HttpError(422, "Idempotency-Key: it was sent with another request");
    if (found->second.is_entered) {
      ++jobs_.at(found->second.id)->waiting;
      return found->second.id;
    }
    has_changed_.wait(lock);
  }
  if (stage_ == Stage::kOpening)
    throw HttpError(503, "the model is being read", {{"Retry-After", "2"}});
  if (stage_ == Stage::kClosed) throw HttpError(503, "the server is being ended");
  const int64_t places = options_.max_queue + (running_ == 0 ? 1 : 0);
  if (std::ssize(line_) + entering_ >= places)
    throw HttpError(
        429, "the line is full: " + std::to_string(line_.size()) + " jobs wait; try again later",
        {{"Retry-After", std::to_string(retry_after())}});
  if (!key.empty()) keys_.emplace(key, Claim{id, content});
  ++entering_;
  return std::nullopt;
}

// Gives back what claim() took.
void JobTable::release(const Asked& asked) {
  {
    const std::lock_guard lock(mutex_);
    --entering_;
    keys_.erase(key_of(asked));
  }
  has_changed_.notify_all();
}

void JobTable::enter(JobPtr job) {
  const std::lock_guard lock(mutex_);
  if (stage_ == Stage::kClosed) throw HttpError(503, "the server is being ended");
  job->number = ++count_;
  job->came_s = options_.steady();
  job->view.created_s = options_.clock();
  if (job->asked.deadline_s) job->deadline_s = job->came_s + *job->asked.deadline_s;
  if (job->asked.survives) spool_.save(job->view.id, record_of(*job));
  --entering_;
  if (const auto claim = keys_.find(key_of(job->asked)); claim != keys_.end())
    claim->second.is_entered = true;
  stand_in_line(std::move(job));
}

// Behind those of its priority.
void JobTable::stand_in_line(JobPtr job) {
  job->view.settings = job->work.shown;
  job->view.note = job->asked.note;
  job->view.api = job->asked.api;
  const auto place =
      std::ranges::upper_bound(line_, job->asked.priority, std::greater(),
                               [](const JobPtr& other) { return other->asked.priority; });
  jobs_.emplace(job->view.id, job);
  line_.insert(place, std::move(job));
  renumber();
}

std::optional<JobView> JobTable::find(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_job(id);
  return job ? std::optional(job->view) : std::nullopt;
}

std::optional<JobView> JobTable::wait(std::string_view id, uint64_t seen,
                                      std::chrono::milliseconds most) const {
  std::unique_lock lock(mutex_);
  has_changed_.wait_for(lock, most, [&] {
    const JobPtr job = find_job(id);
    return !job || job->view.version != seen;
  });
  const JobPtr job = find_job(id);
  return job ? std::optional(job->view) : std::nullopt;
}

std::vector<JobView> JobTable::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Job*> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(job.get());
  std::ranges::sort(jobs, std::greater(), &Job::number);
  std::vector<JobView> views;
  views.reserve(jobs.size());
  for (const Job* job : jobs) views.push_back(job->view);
  return views;
}

bool JobTable::join(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_job(id);
  if (!job || job->view.state == JobState::kCancelled || cancelled_.contains(job->view.id))
    return false;
  ++job->waiting;
  return true;
}

void JobTable::leave(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const JobPtr job = find_job(id);
    if (!job || --job->waiting > 0 || job->is_over()) return;
    end_soon(job);
  }
  bell_.ring();
}

bool JobTable::cancel(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const JobPtr job = find_job(id);
    if (!job || job->is_over()) return false;
    end_soon(job);
  }
  bell_.ring();
  return true;
}

bool JobTable::remove(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const JobPtr job = find_job(id);
    if (!job) return false;
    job->is_to_go = true;
    if (job->is_over()) {
      std::erase(over_, job);
      forget(job, /*with_results=*/true);
    } else {
      end_soon(job);
    }
  }
  bell_.ring();
  return true;
}

// ---- The thread of inference

void JobTable::open() {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kOpen;
}

std::optional<PreparedJob> JobTable::take() {
  const std::lock_guard lock(mutex_);
  if (line_.empty()) return std::nullopt;
  const JobPtr job = line_.front();
  line_.erase(line_.begin());
  ++running_;
  job->view.state = JobState::kRunning;
  job->view.place = 0;
  job->view.started_s = options_.clock();
  job->began_s = options_.steady();
  metrics_.began(job->began_s - job->came_s);
  ++job->begun;
  if (job->asked.survives) save(*job);
  change(*job);
  renumber();
  return job->work;
}

void JobTable::expire() {
  const std::lock_guard lock(mutex_);
  const double now = options_.steady();
  std::vector<JobPtr> late;
  for (const JobPtr& job : line_)
    if (job->deadline_s && *job->deadline_s < now) late.push_back(job);
  for (const JobPtr& job : late)
    end(job, JobState::kFailed, "deadline: it was over before the job's turn came", 504);
}

std::vector<std::string> JobTable::take_cancelled() {
  const std::lock_guard lock(mutex_);
  const std::set<std::string> cancelled = std::exchange(cancelled_, {});
  std::vector<std::string> ids;
  for (const std::string& id : cancelled) {
    const JobPtr job = find_job(id);
    if (!job || job->is_over()) continue;
    ids.push_back(id);
    end(job, JobState::kCancelled);
  }
  return ids;
}

std::pair<int64_t, int64_t> JobTable::waiting_and_running() const {
  const std::lock_guard lock(mutex_);
  return {std::ssize(line_), running_};
}

std::vector<std::string> JobTable::take_warnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

void JobTable::stepped(std::string_view id, int64_t step, int64_t steps) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_running(id);
  if (!job) return;
  job->view.step = step;
  job->view.steps = steps;
  change(*job);
}

void JobTable::previewed(std::string_view id, std::string jpeg) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_running(id);
  if (!job || job->view.previews >= job->asked.previews) return;
  ++job->view.previews;
  job->view.preview = std::make_shared<const std::string>(std::move(jpeg));
  change(*job);
}

void JobTable::wrote(std::string_view id, const std::string& path) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_running(id);
  if (!job) return;
  job->view.files.push_back({path, content_type_of(path), /*seed=*/0});
  change(*job);
}

void JobTable::finished(std::string_view id, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_running(id);
  if (!job) return;
  job->view.settings["seed"] = seed;
  std::vector<JobFile>& files = job->view.files;
  const size_t images = static_cast<size_t>(std::max<int64_t>(job->work.settings.num_images, 1));
  const size_t of_each = std::max<size_t>(files.size() / images, 1);
  for (size_t i = 0; i < files.size(); ++i) files[i].seed = seed + i / of_each;
  end(job, JobState::kDone);
}

void JobTable::failed(std::string_view id, const Error& error) {
  const std::lock_guard lock(mutex_);
  const JobPtr job = find_running(id);
  if (!job) return;
  end(job, error.code() == ErrorCode::kCancelled ? JobState::kCancelled : JobState::kFailed,
      told_of(*job, error), status_of(error.code()));
}

// What clients are told of a failure.
std::string JobTable::told_of(const Job& job, const Error& error) const {
  std::string message = spool_.without_folder(text_of(error));
  for (const lora::LoraRef& lora : job.loras) message = without_folder_of(lora, std::move(message));
  return options_.told(std::move(message));
}

void JobTable::close() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(stage_, Stage::kClosed) == Stage::kClosed) return;
  std::vector<JobPtr> open;
  for (const auto& [id, job] : jobs_)
    if (!job->is_over()) open.push_back(job);
  for (const JobPtr& job : open) {
    if (cancelled_.contains(job->view.id)) {  // before the thread of inference saw it
      end(job, JobState::kCancelled);
    } else if (job->asked.survives) {
      // One that survives is as it was when the server is there again.
      if (job->view.state == JobState::kRunning) {
        --job->begun;
        save(*job);
      }
      job->view.error = "the server was ended; it goes on when that is there again";
      change(*job);
    } else {
      end(job, JobState::kCancelled, "the server was ended", 503);
    }
  }
  has_changed_.notify_all();  // also those that wait for a key
}

// ---- Under the lock

JobTable::JobPtr JobTable::find_job(std::string_view id) const {
  const auto found = jobs_.find(id);
  return found != jobs_.end() ? found->second : nullptr;
}

JobTable::JobPtr JobTable::find_running(std::string_view id) const {
  const JobPtr job = find_job(id);
  return job && job->view.state == JobState::kRunning ? job : nullptr;
}

void JobTable::change(Job& job) {
  ++job.view.version;
  has_changed_.notify_all();
}

void JobTable::renumber() {
  for (size_t i = 0; i < line_.size(); ++i) {
    Job& job = *line_[i];
    const auto place = static_cast<int64_t>(i) + 1;
    if (std::exchange(job.view.place, place) != place) change(job);
  }
}

// Seconds after which a place in the line is likely free.
int64_t JobTable::retry_after() const {
  return std::max<int64_t>(1, std::llround(std::ceil(job_seconds_)));
}

// Ends a job that is not over: at once where it waits, with the next turn where it runs. A server
// that is killed before that does not make it again.
void JobTable::end_soon(const JobPtr& job) {
  free_key(*job);
  job->asked.idempotency_key.clear();  // another job may have it now
  if (job->view.state == JobState::kQueued) return end(job, JobState::kCancelled);
  cancelled_.insert(job->view.id);
  if (!job->asked.survives) return;
  if (job->is_to_go)
    collect([&] { spool_.remove_record(job->view.id); });
  else
    save(*job);
}

void JobTable::save(const Job& job) {
  collect([&] { spool_.save(job.view.id, record_of(job)); });
}

// From now on the key makes a job of its own.
void JobTable::free_key(const Job& job) {
  const auto claim = keys_.find(key_of(job.asked));
  if (claim != keys_.end() && claim->second.id == job.view.id) keys_.erase(claim);
}

void JobTable::end(const JobPtr& job, JobState state, const std::string& error, int status) {
  const double now = options_.steady();
  if (job->view.state == JobState::kRunning) {
    constexpr double kWeight = 0.25;  // of the last job in what is known of all
    --running_;
    if (state == JobState::kDone) job_seconds_ += kWeight * (now - job->began_s - job_seconds_);
  } else {
    std::erase(line_, job);
  }
  job->view.state = state;
  job->view.place = 0;
  job->view.error = error;
  job->view.error_status = status;
  job->view.finished_s = options_.clock();
  job->work = {};
  if (state != JobState::kDone) free_key(*job);
  metrics_.ended(job->asked.api, state_name(state), now - job->came_s);
  collect([&] { spool_.remove_uploads(job->view.id); });
  if (job->is_to_go) {
    forget(job, /*with_results=*/true);
  } else {
    if (job->asked.survives) save(*job);
    keep(job);
  }
  change(*job);
  renumber();
}

// Keeps a job that is over, and lets go of those that are too old.
void JobTable::keep(const JobPtr& job) {
  for (const JobFile& file : job->view.files) {
    std::error_code failure;
    const auto bytes = fs::file_size(file.path, failure);
    if (!failure) job->bytes += static_cast<int64_t>(bytes);
  }
  kept_bytes_ += job->bytes;
  over_.push_back(job);
  const bool goes = spool_.is_temporary();
  while (std::ssize(over_) > options_.keep_jobs ||
         (goes && kept_bytes_ > options_.keep_bytes && over_.size() > 1)) {
    const JobPtr oldest = over_.front();
    over_.pop_front();
    forget(oldest, goes);
  }
}

// Forgets a job that is over.
void JobTable::forget(const JobPtr& job, bool with_results) {
  kept_bytes_ -= job->bytes;
  jobs_.erase(job->view.id);
  free_key(*job);
  if (job->asked.survives) collect([&] { spool_.remove_record(job->view.id); });
  if (with_results) {
    for (const JobFile& file : job->view.files) {
      std::error_code ignored;  // its user may have taken it away
      fs::remove(file.path, ignored);
    }
  }
  has_changed_.notify_all();
}

// What goes wrong with files of a job that is over is told by the thread of inference.
template <typename F>
void JobTable::collect(F&& change_files) {
  try {
    change_files();
  } catch (const Error& error) {
    warnings_.emplace_back(error.what());
  }
}

// ---- Jobs that survive

json JobTable::record_of(const Job& job) const {
  const bool is_cancelled = cancelled_.contains(job.view.id);
  json files = json::array();  // one that is made again writes its own
  for (const JobFile& file :
       job.is_over() || is_cancelled ? job.view.files : std::vector<JobFile>())
    files.push_back({{"name", fs::path(file.path).filename().string()},
                     {"content_type", file.content_type},
                     {"seed", file.seed}});
  const Asked& asked = job.asked;
  const JobState state = job.is_over()  ? job.view.state
                         : is_cancelled ? JobState::kCancelled
                                        : JobState::kQueued;
  return {{"number", job.number},
          {"state", state_name(state)},
          {"api", asked.api},
          {"fields", asked.fields},
          {"loras", serve::record_of(job.loras)},
          {"previews", asked.previews},
          {"format", asked.format},
          {"priority", asked.priority},
          {"deadline", asked.deadline_s ? json(*asked.deadline_s) : json()},
          {"begun", job.begun},
          {"note", asked.note},
          {"idempotency_key", asked.idempotency_key},
          {"content", job.content},
          {"created", job.view.created_s},
          {"started", job.view.started_s},
          {"finished", job.view.finished_s},
          {"error", job.view.error},
          {"error_status", job.view.error_status},
          {"settings", job.view.settings},
          {"files", files}};
}

JobTable::JobPtr JobTable::restored(const std::string& id, const json& record) const {
  auto job = std::make_shared<Job>();
  const std::optional<JobState> state = find_state(record.at("state").get<std::string>());
  if (!state) throw Error(ErrorCode::kDataLoss, "\"state\" is none");
  job->number = record.at("number");
  job->content = record.at("content");
  Asked& asked = job->asked;
  asked.api = record.at("api");
  asked.fields = record.at("fields");
  job->begun = record.at("begun");
  job->loras = loras_of_record(record.at("loras"));
  asked.loras.emplace();
  for (const lora::LoraRef& lora : job->loras) asked.loras->emplace_back(lora.name, lora.strength);
  if (const json& deadline = record.at("deadline"); !deadline.is_null())
    asked.deadline_s = deadline.get<double>();
  asked.previews = record.at("previews");
  asked.format = record.at("format");
  asked.priority = record.at("priority");
  asked.note = record.at("note");
  asked.idempotency_key = record.at("idempotency_key");
  asked.survives = true;
  JobView& view = job->view;
  view.id = id;
  view.state = *state;
  view.created_s = record.at("created");
  view.started_s = record.at("started");
  view.finished_s = record.at("finished");
  view.error = record.at("error");
  view.error_status = record.at("error_status");
  view.settings = record.at("settings");
  view.note = asked.note;
  view.api = asked.api;
  for (const json& file : record.at("files")) {
    const fs::path name = file.at("name").get<std::string>();
    view.files.push_back({(fs::path(spool_.folder()) / name.filename()).string(),
                          file.at("content_type"), file.at("seed")});
  }
  return job;
}

void JobTable::restore(const std::function<void(const std::string&)>& warn) {
  std::vector<JobPtr> found;
  for (const auto& [id, record] : spool_.records(warn)) {
    try {
      found.push_back(restored(id, record));
    } catch (const json::exception& error) {
      warn(spool_.folder() + ": the job " + id + " cannot be read: " + error.what());
    } catch (const Error& error) {
      warn(error.at(spool_.folder() + ": the job " + id).what());
    }
  }
  std::ranges::sort(found, {}, &Job::number);
  for (const JobPtr& job : found) take_back(job);
}

// Takes in a job of a server that was here before.
void JobTable::take_back(const JobPtr& job) {
  std::string error;
  int status = 400;
  if (!job->is_over() && job->begun >= kMostBegun) {
    status = 500;
    error =
        "the server died twice while this job ran, so it is not made a third time; send it "
        "again where that had another cause";
  } else if (!job->is_over()) {
    try {
      job->work = prepare_(job->view.id, job->asked, spool_.find(job->view.id), &job->loras);
    } catch (const HttpError& failure) {
      error = failure.what();
    } catch (const Error& failure) {
      error = told_of(*job, failure);
    }
  }
  const std::lock_guard lock(mutex_);
  count_ = std::max(count_, job->number);
  job->came_s = options_.steady();
  if (job->asked.deadline_s)
    job->deadline_s = job->came_s + job->view.created_s + *job->asked.deadline_s - options_.clock();
  const bool has_key = !job->is_over() || job->view.state == JobState::kDone;
  if (const std::string key = key_of(job->asked); has_key && !key.empty())
    keys_.emplace(key, Claim{job->view.id, job->content, /*is_entered=*/true});
  if (job->is_over()) {
    collect([&] { spool_.remove_uploads(job->view.id); });  // of one that was being cancelled
    jobs_.emplace(job->view.id, job);
    keep(job);
  } else {
    stand_in_line(job);
    if (!error.empty()) end(job, JobState::kFailed, error, status);
  }
}

}  // namespace atelier::serve
