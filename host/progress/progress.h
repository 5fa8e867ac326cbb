// What the user sees on stderr while something slow happens.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace atelier::progress {

struct Options {
  bool quiet = false;  // nothing but warnings is written
  std::FILE* out = stderr;
  // One line is drawn again and again, about ten times a second. Otherwise a line is written every
  // few seconds and one at the end of each step.
  bool redraws = false;
  // Columns of the terminal, asked for each line that is drawn again; empty or 0: not known.
  std::function<int()> columns = {};
  // Seconds from any fixed moment; empty: the steady clock. For tests.
  std::function<double()> now = {};
};

// Redraws when stderr is a terminal.
Options stderr_options(bool quiet);

enum class Unit {
  kParts,  // "12/50 0:31<1:38"
  kSteps,  // "12/50 0:31<1:38 2.58 s/it"
  kBytes,  // "4.20/15.45 GB 2.31 GB/s 0:02<0:05"
};

// Writes the lines, printable whatever names stand in them. One that is drawn again is cut to the
// width of the terminal. Notes and warnings may come from any thread, steps are of one.
class Progress {
 public:
  explicit Progress(Options options);

  // A line of its own. Notes are not written when quiet, warnings are.
  void note(std::string_view text);
  void warn(std::string_view text);

 private:
  friend class Step;
  double now() const;
  void draw(const std::string& text, bool is_last);
  void clear();  // mutex_ is held

  Options options_;
  std::mutex mutex_;  // of what is written
  bool has_open_line_ = false;
};

// One slow step. It is drawn until it is finished or destroyed; destroyed unfinished, it says
// nothing more.
class Step {
 public:
  // total: 0 when it is not known.
  Step(Progress& progress, std::string label, int64_t total, Unit unit);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void advance(int64_t count = 1) { set(done_ + count); }
  void set(int64_t done, int64_t total = 0);
  // What was done before this step began: it counts in "done" and not in the rate.
  void begin_at(int64_t done);
  // Leaves `seconds` that went to something else, such as sample images, out of rate and time
  // left. They stay in the elapsed time.
  void leave_out(double seconds) { left_out_ += seconds; }
  // Stands behind the numbers: "loss 0.1234". Drawn with the next advance() or set().
  void set_note(std::string note) { note_ = std::move(note); }
  // Draws the last line: "load vae: 0.25 GB in 0.1 s, 2.31 GB/s".
  void finish();

  double seconds() const { return progress_.now() - begin_; }

 private:
  std::string running_line() const;
  std::string last_line() const;

  Progress& progress_;
  std::string label_;
  int64_t total_;
  Unit unit_;
  int64_t first_ = 0, done_ = 0;
  std::string note_;
  double begin_;
  double left_out_ = 0.0;  // seconds
  double next_draw_;
  bool is_finished_ = false;
};

}  // namespace atelier::progress
