#include "host/progress/progress.h"

#include <algorithm>
#include <cmath>
#include <sys/ioctl.h>
#include <unistd.h>

#include "formats/utf8.h"
#include "host/report/error_line.h"
#include "host/report/text.h"
#include "memory/clock.h"

namespace atelier::progress {
namespace {

using report::print;

constexpr double kRedrawInterval = 0.1;  // seconds
constexpr double kLineInterval = 5.0;

// "0:31", "1:02:03".
std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::min(std::max(seconds, 0.0), 1e9));
  if (whole >= 3600) {
    return print("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return print("%lld:%02lld", whole / 60, whole % 60);
}

std::string duration_text(double seconds) {
  return seconds < 60 ? print("%.1f s", seconds) : clock_text(seconds);
}

std::string step_rate(double seconds, double count) {
  const double each = seconds / count;
  return each >= 1.0 || each <= 0.0 ? print("%.2f s/it", each) : print("%.2f it/s", 1.0 / each);
}

double gigabytes(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// "4.20", or "4.20/15.45" with a total, and the unit that suits the larger one.
std::string amount_text(int64_t done, int64_t total) {
  const bool is_small = std::max(done, total) < 100'000'000;
  const double unit = is_small ? 1e6 : 1e9;
  std::string text = print("%.2f", static_cast<double>(done) / unit);
  if (total > 0) text += print("/%.2f", static_cast<double>(total) / unit);
  return text + (is_small ? " MB" : " GB");
}

int stderr_columns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// The beginning of `line` in front of "…", where it is wider than `columns`. One column stays free:
// a terminal that is full to the last one clears it with the rest of the line.
std::string fit(const std::string& line, int columns) {
  if (columns < 2) return line;
  size_t cut = 0;  // bytes that fit in front of "…"
  int width = 0;
  for (size_t at = 0; at < line.size();) {
    const formats::Utf8Char next = formats::decode_utf8(line, at);
    width += next.code_point < 0x1100 ? 1 : 2;  // wide letters begin there
    at += next.length;
    if (width < columns - 1) cut = at;
    if (width > columns - 1) return line.substr(0, cut) + "…";
  }
  return line;
}

}  // namespace

Options stderr_options(bool quiet) {
  Options options;
  options.quiet = quiet;
  options.redraws = ::isatty(STDERR_FILENO) == 1;
  options.columns = stderr_columns;
  return options;
}

Progress::Progress(Options options) : options_(std::move(options)) {
  if (!options_.now) options_.now = memory::seconds_now;
}

double Progress::now() const {
  return options_.now();
}

void Progress::note(std::string_view text) {
  if (!options_.quiet) warn(text);
}

void Progress::warn(std::string_view text) {
  const std::lock_guard lock(mutex_);
  clear();
  std::fprintf(options_.out, "%s\n", report::printable(text).c_str());
  std::fflush(options_.out);
}

void Progress::draw(const std::string& text, bool is_last) {
  if (options_.quiet) return;
  const std::lock_guard lock(mutex_);
  const bool is_open = options_.redraws && !is_last;
  const std::string line = report::printable(text);
  if (is_open) {
    const int columns = options_.columns ? options_.columns() : 0;
    std::fprintf(options_.out, "\r%s\033[K", fit(line, columns).c_str());
  } else {
    std::fprintf(options_.out, "%s%s\n", options_.redraws ? "\r\033[K" : "", line.c_str());
  }
  has_open_line_ = is_open;
  std::fflush(options_.out);
}

void Progress::clear() {
  if (has_open_line_) std::fputs("\r\033[K", options_.out);
  has_open_line_ = false;
}

Step::Step(Progress& progress, std::string label, int64_t total, Unit unit)
    : progress_(progress),
      label_(std::move(label)),
      total_(total),
      unit_(unit),
      begin_(progress.now()),
      next_draw_(progress.options_.redraws ? begin_ : begin_ + kLineInterval) {
  set(0);
}

Step::~Step() {
  if (is_finished_) return;
  const std::lock_guard lock(progress_.mutex_);
  progress_.clear();
}

void Step::set(int64_t done, int64_t total) {
  done_ = done;
  if (total > 0) total_ = total;
  const double now = progress_.now();
  if (is_finished_ || now < next_draw_) return;
  next_draw_ = now + (progress_.options_.redraws ? kRedrawInterval : kLineInterval);
  progress_.draw(running_line(), /*is_last=*/false);
}

void Step::begin_at(int64_t done) {
  first_ = done;
  set(done);
}

void Step::finish() {
  if (is_finished_) return;
  is_finished_ = true;
  progress_.draw(last_line(), /*is_last=*/true);
}

std::string Step::running_line() const {
  const double elapsed = seconds(), worked = elapsed - left_out_;
  std::string line = label_ + ": ";
  const bool is_counted = done_ > first_ && worked > 0;
  if (unit_ == Unit::kBytes) {
    line += amount_text(done_, total_);
    if (is_counted) line += print(" %.2f GB/s", gigabytes(done_) / worked);
  } else if (total_ > 0) {
    line += std::to_string(done_) + "/" + std::to_string(total_);
  }
  line += (total_ > 0 || unit_ == Unit::kBytes ? " " : "") + clock_text(elapsed);
  if (is_counted && total_ >= done_) {
    const auto done = static_cast<double>(done_ - first_),
               left = static_cast<double>(total_ - done_);
    line += "<" + clock_text(std::ceil(worked / done * left));
    if (unit_ == Unit::kSteps) line += " " + step_rate(worked, done);
  }
  if (!note_.empty()) line += " " + note_;
  return line;
}

std::string Step::last_line() const {
  const double elapsed = seconds(), worked = elapsed - left_out_;
  std::string line = label_ + ": ";
  if (unit_ == Unit::kBytes) {
    line += amount_text(done_, 0) + " in " + duration_text(elapsed);
    if (worked > 0) line += print(", %.2f GB/s", gigabytes(done_) / worked);
    return line;
  }
  const int64_t done = done_ - first_;
  if (unit_ == Unit::kParts || done < 1) return line + duration_text(elapsed);
  line += std::to_string(done) + (done == 1 ? " step in " : " steps in ") + duration_text(elapsed);
  return worked > 0 ? line + ", " + step_rate(worked, static_cast<double>(done)) : line;
}

}  // namespace atelier::progress
