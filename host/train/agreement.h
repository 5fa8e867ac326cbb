// What a run does next: every decision that the processes of a run have to share.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "atelier/error.h"

#include "host/distributed/group.h"
#include "host/run/stop.h"
#include "memory/clock.h"

namespace atelier::train {

// Where a run stands, apart from tensors.
struct RunCounters {
  int64_t step = 0;                         // finished
  int64_t epoch = 0;                        // of the last finished one
  int64_t skipped = 0, skipped_in_row = 0;  // steps that were not finite
};

// What a process has used since the first step began; peaks since it was started.
struct Usage {
  double waited_for_samples = 0.0, waited_for_others = 0.0;  // seconds
  double sent_bytes = 0.0;                                   // to others
  double peak_host_bytes = 0.0, peak_device_bytes = 0.0;
};

// How a process came out of a step.
struct Attempt {
  enum class End { kWhole, kStopped, kOutOfMemory };  // from good to bad
  End end = End::kWhole;
  bool has_moved = false;      // parameters, before it failed
  bool can_keep_less = false;  // for the backward pass
  double seconds = 0.0;        // of its own work
  Usage usage = {};
};

enum class Decision {
  kKeep,    // the step counts
  kRepeat,  // it is made again from its start, with less kept for the backward pass
  kLeave,   // the run ends with the last step that counted
  kFail,    // the same, and with an error: the device's memory is too small
};

// Ends work that a decision ends. Throws Error{kCancelled}.
[[noreturn]] void throw_stopped();
// Asks of the exception that is being handled whether throw_stopped() threw it.
bool is_stop();

// What the others throw where one rank has too little memory.
Error too_little_memory_elsewhere();

// Only says what is to be done: nothing is undone, saved or repeated here, so that
// processes can come to one decision before any of them acts. Not thread-safe but for
// should_give_up_step().
class Agreement {
 public:
  // `max_skipped_steps` in a row end the run. `now`: seconds, for tests. `group`: the processes
  // that have to agree; null: this one is alone.
  explicit Agreement(int64_t max_skipped_steps, std::function<double()> now = memory::seconds_now,
                     distributed::Group* group = nullptr);

  // Whether a signal asks to leave, or, once for each, to save: between steps. Of several processes
  // it may have come to any, before the last attempt that they gather().
  bool should_leave() const { return signal() != 0; }
  bool should_save();
  // The signal that asks to leave; 0: none does.
  int signal() const;
  // Whether this process was asked to leave: in work that changes nothing and may end anywhere.
  bool is_stop_requested() const { return run::StopSignals::is_requested(); }

  // What every process tells the others, by rank: [processes, numbers].
  using GatherStatus = std::function<at::Tensor(const std::vector<double>& numbers)>;
  // How all processes came out of their parts of an attempt, of which this one tells its own. All
  // come here once in each attempt. Of one process `gather_status` is not called.
  Attempt gather(const Attempt& mine, const GatherStatus& gather_status);
  // Which process had the most work in the last ten steps or so.
  int slowest_rank() const;
  // The usage of all processes, by what they told when they gathered last, and `mine` since: the
  // mean of what they waited and sent, and the largest peaks.
  Usage usage_of_all(const Usage& mine) const;
  // Whether it is so for all processes, which all come here, some of them minutes before others.
  bool all(bool mine) const;
  // How work between steps ended for the process that it went worst for. All come here, as to
  // all().
  Attempt::End worst(Attempt::End mine) const;

  // Around each attempt at a step; end_step() when it came to its end.
  void begin_step();
  void end_step();
  // Asked at the edges of a step's work, on any thread: whether a signal came and the rest of the
  // step would take longer than ten seconds, going by the step before. The first yes is the
  // decision about the attempt; everybody who asks later gets it.
  bool should_give_up_step();
  // The decision about the attempt that began last.
  bool has_given_up_step() const;

  Decision decide(const Attempt& attempt) const;

  // Counts a finished step. Throws Error{kNumerics} when it is one skipped step too many.
  void count(bool is_skipped, int64_t step, RunCounters& counters) const;

 private:
  int64_t max_skipped_steps_;
  std::function<double()> now_;
  distributed::Group* group_;  // null: there are no others
  int gathered_signal_ = 0;
  bool gathered_save_ = false;
  std::vector<double> seconds_by_rank_;  // older steps count less
  std::vector<Usage> usage_by_rank_;     // empty: they have not gathered yet
  mutable std::mutex mutex_;             // of what follows
  // Seconds: when the step began, how long the one before took (0: there is none), and when a
  // signal was seen in a step (0: there was none).
  double step_begin_ = 0.0, step_seconds_ = 0.0, signal_seen_ = 0.0;
  bool gives_up_step_ = false;
};

}  // namespace atelier::train
