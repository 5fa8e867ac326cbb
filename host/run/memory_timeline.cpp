#include "host/run/memory_timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/safetensors_writer.h"
#include "host/report/chart.h"
#include "host/report/text.h"
#include "memory/clock.h"

namespace atelier::run {
namespace {

namespace fs = std::filesystem;
using Reading = MemoryTimeline::Reading;

constexpr std::array<const char*, 8> kBandColors = {"#e8f1fa", "#fdf0dc", "#e6f4e6", "#f8e4ec",
                                                    "#ece6f6", "#f3f3d6", "#def2f1", "#f1ece6"};

// What comes before the number: "denoise" of "denoise 3".
std::string name_of(const std::string& phase) {
  const size_t space = phase.find_last_of(' ');
  const bool is_numbered = space != std::string::npos &&
                           phase.find_first_not_of("0123456789", space + 1) == std::string::npos;
  return is_numbered ? phase.substr(0, space) : phase;
}

std::vector<report::ChartBand> bands_of(const std::vector<Reading>& readings) {
  std::vector<report::ChartBand> bands;
  std::map<std::string, std::string> colors;
  for (size_t i = 0; i < readings.size(); ++i) {
    const std::string name = name_of(readings[i].phase);
    const auto [color, is_new] = colors.try_emplace(name);
    if (is_new) color->second = kBandColors[(colors.size() - 1) % kBandColors.size()];
    const double end = readings[std::min(i + 1, readings.size() - 1)].seconds;
    if (!bands.empty() && bands.back().name == name) {
      bands.back().to = end;
    } else {
      bands.push_back({name, color->second, readings[i].seconds, end});
    }
  }
  return bands;
}

}  // namespace

MemoryTimeline::MemoryTimeline(std::string path, at::Device device,
                               const memory::TransferDevice* transfer)
    : path_(std::move(path)), meter_(device, transfer), start_(memory::seconds_now()) {
  sample();
}

MemoryTimeline::~MemoryTimeline() {
  if (is_written_) return;
  try {
    write();
  } catch (const Error&) {  // the error that ended the run is the one to tell
  }
}

void MemoryTimeline::begin(std::string_view phase, int64_t number) {
  const std::lock_guard lock(mutex_);
  take(/*is_edge=*/true);
  phase_ = phase;
  if (number > 0) phase_ += " " + std::to_string(number);
  take(/*is_edge=*/true);
}

void MemoryTimeline::sample() {
  const std::lock_guard lock(mutex_);
  take(/*is_edge=*/false);
}

void MemoryTimeline::stop() {
  const std::lock_guard lock(mutex_);
  take(/*is_edge=*/true);
  is_stopped_ = true;
}

void MemoryTimeline::take(bool is_edge) {
  if (is_stopped_) return;
  const memory::DeviceBytes bytes = meter_.bytes();
  peak_ = std::max({peak_, bytes.peak, bytes.live});
  const Reading now = {memory::seconds_now() - start_, phase_, bytes.live, peak_,
                       memory::resident_host_bytes()};
  if (!is_edge && !readings_.empty() && readings_.back().phase == phase_ &&
      ++since_kept_ < stride_) {
    Reading& last = readings_.back();
    last.live = std::max(last.live, now.live);
    last.peak = now.peak;
    last.host = std::max(last.host, now.host);
    return;
  }
  since_kept_ = 0;
  readings_.push_back(now);
  if (readings_.size() >= kMostSamples) thin_out();
}

void MemoryTimeline::thin_out() {
  std::vector<Reading> kept;
  for (size_t i = 0; i + 1 < readings_.size(); i += 2) {
    Reading merged = readings_[i];
    const Reading& next = readings_[i + 1];
    merged.live = std::max(merged.live, next.live);
    merged.peak = next.peak;
    merged.host = std::max(merged.host, next.host);
    kept.push_back(std::move(merged));
  }
  if (readings_.size() % 2 == 1) kept.push_back(readings_.back());
  readings_ = std::move(kept);
  stride_ *= 2;
}

std::vector<Reading> MemoryTimeline::readings() const {
  const std::lock_guard lock(mutex_);
  return readings_;
}

std::vector<std::string> MemoryTimeline::write() {
  const std::vector<Reading> all = readings();
  is_written_ = true;
  std::vector<std::string> files;
  std::error_code failure;  // of the folder; the file's is told
  if (const fs::path folder = fs::path(path_).parent_path(); !folder.empty())
    fs::create_directories(folder, failure);
  const auto add = [&](const std::string& path, const std::string& text) {
    files::write_file(path, text);
    files.push_back(path);
  };
  const bool is_csv = path_.ends_with(".csv"), is_svg = path_.ends_with(".svg");
  if (!is_svg) add(is_csv ? path_ : path_ + ".csv", timeline_csv(all));
  if (!is_csv) add(is_svg ? path_ : path_ + ".svg", timeline_svg(all));
  return files;
}

void check_report_path(const std::string& path, report::Problems& problems,
                       const std::string& made_later) {
  if (path.empty()) return;
  const std::string place = "--report_memory " + formats::quote_and_escape(path) + ": ";
  const std::string end = fs::path(path).extension().string();
  if (!end.empty() && end != ".csv" && end != ".svg")
    problems.add(place + "it is no table or image",
                 "end it in .csv or .svg, or in neither for both");
  const fs::path folder = fs::path(path).parent_path();
  std::error_code failure;
  const std::string below = folder.lexically_relative(made_later).string();
  if (!made_later.empty() && !below.empty() && !below.starts_with("..")) return;
  if (!folder.empty() && !fs::is_directory(folder, failure))
    problems.add(place + "its folder is not there", "make it first", ErrorCode::kNotFound);
}

std::string timeline_csv(const std::vector<Reading>& readings) {
  std::string text = "seconds,phase,live_bytes,peak_bytes,host_bytes\n";
  for (const Reading& reading : readings) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.6f", reading.seconds);
    text += std::string(seconds) + "," + reading.phase + "," + std::to_string(reading.live) + "," +
            std::to_string(reading.peak) + "," + std::to_string(reading.host) + "\n";
  }
  return text;
}

std::string timeline_svg(const std::vector<Reading>& readings) {
  report::Chart chart = {.title = "memory of the device", .width = 900, .height = 440};
  report::ChartLine live = {"live", "#1f77b4", {}}, peak = {"peak", "#d62728", {}};
  double most = 0, end = 0;
  for (const Reading& reading : readings) {
    live.points.emplace_back(reading.seconds, static_cast<double>(reading.live));
    peak.points.emplace_back(reading.seconds, static_cast<double>(reading.peak));
    most = std::max(most, static_cast<double>(std::max(reading.peak, reading.live)));
    end = std::max(end, reading.seconds);
  }
  chart.x = {"seconds", 0.0, std::max(end, 1e-6), [](double seconds) {
               char text[32];
               std::snprintf(text, sizeof text, "%.3g", seconds);
               return std::string(text);
             }};
  chart.y = {"", 0.0, std::max(most, 1.0),
             [](double bytes) { return report::bytes_text(static_cast<int64_t>(bytes)); }};
  chart.bands = bands_of(readings);
  chart.lines = {std::move(peak), std::move(live)};
  return report::chart_svg(chart);
}

}  // namespace atelier::run
