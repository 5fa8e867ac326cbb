#include "host/plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <c10/util/StringUtil.h>

#include "host/report/chart.h"
#include "host/report/text.h"

namespace atelier::plan {
namespace {

using memory::ComponentChoice;
using memory::CurvePoint;
using memory::MemoryPlan;
using memory::PhaseChoice;
using memory::Place;
using report::bytes_text;
using report::print;
using report::time_text;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

bool streams(const ComponentChoice& choice) {
  return choice.resident < choice.num_blocks;
}

std::string place_text(const ComponentChoice& choice) {
  if (!streams(choice)) return "device";
  if (choice.shards > 1)
    return c10::str("1/", choice.shards, " of each block on the ",
                    choice.others == Place::kDevice ? "device" : "host");
  const int64_t away = choice.num_blocks - choice.resident;
  return c10::str("device: ", choice.resident, " of ", choice.num_blocks, " blocks; ", away,
                  " come from ", choice.others == Place::kHost ? "the host" : "disk");
}

std::string_view others_text(const ComponentChoice& choice) {
  if (choice.others == Place::kDevice) return "device";
  return choice.others == Place::kHost ? "host" : "disk";
}

// The phase in which the component runs its blocks.
const PhaseChoice* phase_of(const Planned& planned, const std::string& component) {
  for (size_t i = 0; i < planned.plan.phases.size(); ++i) {
    const memory::PlannedPhase& phase = planned.sized.run.phases[i];
    if (phase.strategies[planned.plan.phases[i].strategy].forward.contains(component))
      return &planned.plan.phases[i];
  }
  return nullptr;
}

std::string why_placed(const Planned& planned, const ComponentChoice& choice) {
  if (!streams(choice)) return choice.num_blocks == 0 ? "needed whole" : "fits whole";
  const PhaseChoice* phase = phase_of(planned, choice.name);
  const std::string slots =
      c10::str(std::min(choice.prefetch + 1, choice.num_blocks - choice.resident), " slots; ");
  const bool is_divided = choice.shards > 1;
  double waited = 0.0;
  if (phase != nullptr) waited = is_divided ? phase->exchanged_seconds : phase->waited_seconds;
  if (phase == nullptr || waited <= 1e-3 * phase->seconds)
    return slots + (is_divided ? "parts come beside computing" : "copies hide behind computing");
  return slots + "computing waits " + time_text(waited) + " a pass for " +
         (is_divided ? "parts of other processes" : "copies");
}

std::string name_with_storage(const ComponentChoice& choice) {
  return choice.storage == "plain" ? choice.name : choice.name + " (" + choice.storage + ")";
}

// What rests where, how many bytes of the device it takes and why.
struct PlanRow {
  std::string what, where;
  int64_t bytes = 0;
  std::string why;
};

std::vector<PlanRow> plan_rows(const Planned& planned) {
  std::vector<PlanRow> rows;
  for (const ComponentChoice& choice : planned.plan.components)
    rows.push_back({name_with_storage(choice), place_text(choice), choice.device_bytes,
                    why_placed(planned, choice)});
  for (size_t i = 0; i < planned.plan.phases.size(); ++i) {
    const PhaseChoice& phase = planned.plan.phases[i];
    const memory::Strategy& strategy = planned.sized.run.phases[i].strategies[phase.strategy];
    std::string what = "to " + phase.name;
    if (!strategy.name.empty()) what += ": " + strategy.name;
    rows.push_back({what, "device", strategy.device_bytes,
                    strategy.why.empty() ? "what is computed with, at most" : strategy.why});
  }
  if (planned.target.basis.profile.reserve_bytes > 0)
    rows.push_back({"driver and libraries", "device", planned.target.basis.profile.reserve_bytes,
                    "beside all tensors"});
  return rows;
}

// "batch 1 fits with 9.10 GiB to spare; 3 would fit"
std::string batch_line(const Planned& planned) {
  const PhaseChoice* phase = planned.plan.phase(planned.sized.main_phase);
  if (phase == nullptr || phase->strategy >= planned.sized.more_bytes.size()) return {};
  const int64_t spare = planned.target.limits.device_bytes - planned.plan.device_bytes;
  const int64_t more = planned.sized.more_bytes[phase->strategy];
  std::string line =
      c10::str("batch ", planned.sized.batch_size, " fits with ", bytes_text(spare), " to spare");
  if (more <= 0) return line;  // a clip in pieces is alone
  const auto& slack = planned.sized.slack_bytes;
  const int64_t room = planned.limits.device_bytes - phase->device_bytes +
                       (slack.empty() ? 0 : slack[phase->strategy]);
  const int64_t most = planned.sized.batch_size + room / more;
  if (most > planned.sized.batch_size) line += c10::str("; ", most, " would fit");
  return line;
}

std::string total_line(const Planned& planned) {
  return c10::str("predicted: ", bytes_text(planned.plan.device_bytes), " of the device's ",
                  bytes_text(planned.target.limits.device_bytes), ", ",
                  bytes_text(planned.plan.host_bytes), " of the host, ",
                  time_text(planned.plan.seconds));
}

}  // namespace

std::string plan_table(const Planned& planned) {
  const memory::DeviceProfile& profile = planned.target.basis.profile;
  std::string text =
      "plan for " + profile.name + ": " + bytes_text(planned.target.limits.device_bytes) + ", " +
      print("%.4g and %.4g TFLOP/s in 16 and 32 bits, copies %.3g GB/s", profile.flops_16 / 1e12,
            profile.flops_32 / 1e12, profile.copy_bytes_per_second / 1e9) +
      "\n\n";
  std::vector<std::vector<std::string>> cells = {{"what", "where", ">bytes", "why"}};
  for (const PlanRow& row : plan_rows(planned))
    cells.push_back({row.what, row.where, bytes_text(row.bytes), row.why});
  text += report::columns(cells) + "\n";
  cells = {{"phase", ">device", ">host", ">a pass", ">of that waiting", ">passes"}};
  for (const PhaseChoice& phase : planned.plan.phases)
    cells.push_back({phase.name, bytes_text(phase.device_bytes), bytes_text(phase.host_bytes),
                     time_text(phase.seconds),
                     time_text(phase.waited_seconds + phase.exchanged_seconds),
                     print("%.0f", phase.passes)});
  text += report::columns(cells) + "\n" + total_line(planned) + "\n";
  const std::string batch = batch_line(planned);
  return batch.empty() ? text : text + batch + "\n";
}

nlohmann::json plan_json(const Planned& planned) {
  nlohmann::json components = nlohmann::json::array(), phases = nlohmann::json::array();
  for (const ComponentChoice& choice : planned.plan.components)
    components.push_back({{"name", choice.name},
                          {"storage", choice.storage},
                          {"blocks", choice.num_blocks},
                          {"resident_blocks", choice.resident},
                          {"others", others_text(choice)},
                          {"parts", choice.shards},
                          {"prefetch", choice.prefetch},
                          {"device_bytes", choice.device_bytes},
                          {"host_bytes", choice.host_bytes},
                          {"why", why_placed(planned, choice)}});
  for (size_t i = 0; i < planned.plan.phases.size(); ++i) {
    const PhaseChoice& phase = planned.plan.phases[i];
    const memory::Strategy& strategy = planned.sized.run.phases[i].strategies[phase.strategy];
    phases.push_back({{"name", phase.name},
                      {"strategy", strategy.name},
                      {"device_bytes", phase.device_bytes},
                      {"working_bytes", strategy.device_bytes},
                      {"host_bytes", phase.host_bytes},
                      {"passes", phase.passes},
                      {"seconds", phase.seconds},
                      {"waited_seconds", phase.waited_seconds},
                      {"exchanged_seconds", phase.exchanged_seconds}});
  }
  return {{"profile", planned.target.basis.profile.name},
          {"limit_bytes", planned.target.limits.device_bytes},
          {"device_bytes", planned.plan.device_bytes},
          {"host_bytes", planned.plan.host_bytes},
          {"seconds", planned.plan.seconds},
          {"components", components},
          {"phases", phases},
          {"batch", batch_line(planned)}};
}

std::vector<std::string> plan_notes(const Planned& planned) {
  std::vector<std::string> notes = {"plan: " + total_line(planned)};
  for (const PlanRow& row : plan_rows(planned)) {
    if (row.where != "device" || row.what.find(':') != std::string::npos)
      notes.push_back("plan: " + row.what + ": " + row.where + ", " + bytes_text(row.bytes) + "; " +
                      row.why);
  }
  const std::string batch = batch_line(planned);
  if (!batch.empty()) notes.push_back("plan: " + batch);
  return notes;
}

std::string curve_csv(const std::vector<CurvePoint>& curve) {
  std::string text = "limit_bytes,device_bytes,host_bytes,seconds\n";
  for (const CurvePoint& point : curve)
    text += c10::str(point.limit_bytes, ",", point.plan.device_bytes, ",", point.plan.host_bytes,
                     ",", print("%.6g", point.plan.seconds), "\n");
  return text;
}

std::string curve_svg(const std::vector<CurvePoint>& curve, const std::string& title) {
  report::ChartLine line = {"", "#1f77b4", {}};
  double low = 1e300, high = 0, slowest = 0;
  for (const CurvePoint& point : curve) {
    const auto bytes = static_cast<double>(point.limit_bytes);
    low = std::min(low, bytes);
    high = std::max(high, bytes);
    slowest = std::max(slowest, point.plan.seconds);
    line.points.emplace_back(bytes, point.plan.seconds);
  }
  if (curve.empty()) low = 0;
  report::Chart chart;
  chart.title = title;
  chart.x = {"GiB of the device", low, std::max(high, low + 1),
             [](double bytes) { return print("%.3g", bytes / kGiB); }};
  chart.y = {"", 0.0, std::max(slowest, 1e-12), time_text};
  chart.lines = {std::move(line)};
  return report::chart_svg(chart);
}

}  // namespace atelier::plan
