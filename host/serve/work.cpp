#include "host/serve/work.h"

#include <chrono>
#include <optional>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/http/server.h"

namespace atelier::serve {

using http::HttpError;

namespace {

// After which it is looked whether the client is still there.
constexpr std::chrono::milliseconds kLookEvery{100};
constexpr uint64_t kMostFileBytes = uint64_t{1} << 32;

bool is_over(JobState state) {
  return state != JobState::kQueued && state != JobState::kRunning;
}

// What fails here fails again; clients of OpenAI would send it three times.
HttpError failure_of(const JobView& view) {
  if (view.error_status < 500 || view.error_status == 503) return {view.error_status, view.error};
  return {view.error_status, view.error, {{"x-should-retry", "false"}}};
}

}  // namespace

Work::Work(Jobs& jobs, std::vector<Asked> asked) : jobs_(jobs) {
  try {
    for (Asked& one : asked) ids_.push_back(jobs_.submit(std::move(one)));
  } catch (...) {
    leave();
    throw;
  }
}

Work::Work(Jobs& jobs, const std::vector<std::string>& ids) : jobs_(jobs) {
  for (const std::string& id : ids) {
    if (!jobs_.join(id)) {
      leave();
      throw HttpError(410, "the job was removed");
    }
    ids_.push_back(id);
  }
}

Work::~Work() {
  leave();
}

void Work::leave() {
  for (const std::string& id : ids_) jobs_.leave(id);
}

std::vector<JobView> Work::wait(http::Client& client, const OnChange& on_change) {
  std::vector<JobView> views;
  for (size_t i = 0; i < ids_.size(); ++i) views.push_back(wait_for(i, client, on_change));
  return views;
}

JobView Work::wait_for(size_t index, http::Client& client, const OnChange& on_change) {
  std::optional<uint64_t> seen;
  while (true) {
    const auto view = seen ? jobs_.wait(ids_[index], *seen, kLookEvery) : jobs_.find(ids_[index]);
    if (!view) throw HttpError(410, "the job was removed");
    if (view->version != seen) {
      seen = view->version;
      if (on_change) on_change(index, *view);
    }
    const bool is_ended_by_us = view->state == JobState::kCancelled && view->error_status >= 500;
    if (view->state == JobState::kFailed || is_ended_by_us) throw failure_of(*view);
    if (is_over(view->state)) return *view;
    if (client.is_gone()) throw HttpError(499, "the client has hung up");
  }
}

std::string bytes_of(const JobFile& file) {
  try {
    return files::read_text_file(file.path, kMostFileBytes);
  } catch (const Error&) {
    throw HttpError(410, "the file is gone; results are kept for a while only");
  }
}

}  // namespace atelier::serve
