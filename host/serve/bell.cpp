#include "host/serve/bell.h"

#include <utility>

#include "host/http/server.h"

namespace atelier::serve {

void Bell::ring() {
  {
    const std::lock_guard lock(mutex_);
    is_ringing_ = true;
  }
  has_rung_.notify_one();
}

void Bell::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  has_rung_.wait_for(lock, most, [&] { return is_ringing_; });
  is_ringing_ = false;
}

void Errands::run(std::function<void()> errand) {
  if (std::this_thread::get_id() == owner_) return errand();
  Task task(std::move(errand));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) throw http::HttpError(503, "the server is being ended");
    waiting_.push_back(std::move(task));
  }
  bell_.ring();
  try {
    done.get();
  } catch (const std::future_error&) {  // nobody will call it
    throw http::HttpError(503, "the server is being ended");
  }
}

void Errands::work() {
  for (;;) {
    Task task;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task();
  }
}

void Errands::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  waiting_.clear();  // breaks the promises of those that wait
}

}  // namespace atelier::serve
