// What wakes the thread that owns inference, and what it does for others between two steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace atelier::serve {

// Safe to use from several threads.
class Bell {
 public:
  void ring();
  // Waits until it rings, at most for so long. One that has rung since the last wait ends it at
  // once.
  void wait(std::chrono::milliseconds most);

 private:
  std::mutex mutex_;
  std::condition_variable has_rung_;
  bool is_ringing_ = false;
};

// What other threads have done by the one that owns inference, as the model is for that one alone.
class Errands {
 public:
  // `bell`, which outlives it, wakes that thread.
  // The thread that makes it is that one.
  explicit Errands(Bell& bell) : bell_(bell) {}

  // Waits until that thread has called `errand`, and throws what that throws; on that thread itself
  // it is called at once. Throws http::HttpError 503 where the server is being ended.
  void run(std::function<void()> errand);

  // By the thread of inference: calls all that wait.
  void work();
  // Refuses errands that wait, and later ones.
  void close();

 private:
  using Task = std::packaged_task<void()>;

  Bell& bell_;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::deque<Task> waiting_;
  bool is_closed_ = false;
};

}  // namespace atelier::serve
