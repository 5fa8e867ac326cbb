#include "host/run/memory_timeline.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "host/report/chart.h"
#include "support/files.h"

namespace atelier::run {
namespace {

using test::Folder;

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("A timeline has bytes by phase, and its peak never falls", "[report]") {
  const Folder folder;
  MemoryTimeline timeline(folder / "memory", at::kCPU, nullptr);
  timeline.begin("load");
  const at::Tensor weights = at::empty({100000}, at::kByte);
  timeline.begin("denoise", 1);
  {
    const at::Tensor activations = at::empty({50000}, at::kByte);
    timeline.sample();
  }
  timeline.begin("denoise", 2);
  timeline.begin("decode");
  const auto readings = timeline.readings();
  std::set<std::string> phases;
  int64_t before = 0, most = 0;
  for (const auto& sample : readings) {
    phases.insert(sample.phase);
    CHECK(sample.peak >= before);
    CHECK(sample.live <= sample.peak);
    CHECK(sample.host > 0);
    before = sample.peak;
    most = std::max(most, sample.live);
  }
  CHECK(phases == std::set<std::string>{"begin", "load", "denoise 1", "denoise 2", "decode"});
  CHECK(most == 150000);
  CHECK(readings.back().live == 100000);

  CHECK(timeline.write() == std::vector<std::string>{folder / "memory.csv", folder / "memory.svg"});
  const std::string csv = test::read_bytes(folder / "memory.csv");
  CHECK(csv.starts_with("seconds,phase,live_bytes,peak_bytes,host_bytes\n"));
  CHECK(count(csv, "\n") == static_cast<int64_t>(readings.size()) + 1);
  const std::string svg = test::read_bytes(folder / "memory.svg");
  CHECK(count(svg, "<polyline") == 2);
  CHECK(count(svg, ">denoise</text>") == 1);  // both steps are one band
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("A long run is thinned out, and keeps its largest moment", "[report]") {
  const Folder folder;
  MemoryTimeline timeline(folder / "memory.csv", at::kCPU, nullptr);
  for (int64_t step = 1; step <= 3000; ++step) {
    timeline.begin("denoise", step);
    const at::Tensor held = at::empty({step == 1234 ? 77777 : 10}, at::kByte);
    for (int block = 0; block < 3; ++block) timeline.sample();
  }
  const auto readings = timeline.readings();
  CHECK(readings.size() < MemoryTimeline::kMostSamples);
  CHECK(readings.size() >= MemoryTimeline::kMostSamples / 4);
  const auto largest =
      std::max_element(readings.begin(), readings.end(),
                       [](const auto& a, const auto& b) { return a.live < b.live; });
  CHECK(largest->live >= 77777);
  CHECK(timeline.write().size() == 1);
}

TEST_CASE("A run that fails leaves its timeline, and one that stopped takes no more", "[report]") {
  const Folder folder;
  const std::string path = folder / "memory.svg";
  {
    MemoryTimeline timeline(path, at::kCPU, nullptr);
    timeline.stop();
    const size_t taken = timeline.readings().size();
    timeline.begin("decode");
    CHECK(timeline.readings().size() == taken);
  }
  CHECK(test::read_bytes(path).starts_with("<svg"));
}

TEST_CASE("Report files are checked before anything else", "[report]") {
  const Folder folder;
  const auto problems_of = [](const std::string& path) {
    report::Problems problems;
    check_report_path(path, problems);
    return !problems.empty();
  };
  CHECK_FALSE(problems_of(""));
  for (const char* name : {"a.csv", "a.svg", "a"}) CHECK_FALSE(problems_of(folder / name));
  CHECK(problems_of(folder / "a.txt"));
  CHECK(problems_of(folder / "none/a.csv"));
}

TEST_CASE("A chart escapes names and writes each once", "[report]") {
  report::Chart chart = {.title = "a < b & c"};
  chart.x = chart.y = {"", 0.0, 1.0, [](double) { return std::string("1"); }};
  chart.bands = {{"load", "#eee", 0.0, 0.2}, {"load", "#eee", 0.5, 0.7}};
  chart.lines = {{"", "#000", {{0.0, 0.0}, {1.0, 1.0}}}};
  const std::string svg = report::chart_svg(chart);
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(count(svg, ">load</text>") == 1);
  CHECK(count(svg, "<polyline") == 1);
}

}  // namespace
}  // namespace atelier::run
