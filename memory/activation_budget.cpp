#include "memory/activation_budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"

namespace atelier::memory {
namespace {

constexpr std::pair<std::string_view, double> kUnits[] = {
    {"GiB", 1024.0 * 1024.0 * 1024.0}, {"GB", 1e9}, {"MiB", 1024.0 * 1024.0}, {"MB", 1e6}};
constexpr double kPartOfGpu = 0.9, kPartOfHost = 0.8;

// The number at the beginning of `text`, which is cut off. std::nullopt: there is none.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// A line of /proc/meminfo or of a control group: "NAME VALUE", or the value alone.
std::optional<int64_t> read_value(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  if (!name.empty()) {
    while (file >> word && word != name) {
    }
  }
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Bytes until the control group's limit. Pages of files that were read once can go at any time.
std::optional<int64_t> left_in_group() {
  struct Files {
    const char *limit, *used, *details, *reclaimable;
  };
  constexpr Files kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
       "inactive_file"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};
  for (const Files& files : kVersions) {
    const auto limit = read_value(files.limit, ""), used = read_value(files.used, "");
    if (limit && used)
      return *limit - *used + read_value(files.details, files.reclaimable).value_or(0);
  }
  return std::nullopt;
}

}  // namespace

ActivationBudget parse_activation_budget(std::string_view text) {
  using Kind = ActivationBudget::Kind;
  if (text == "auto") return {.kind = Kind::kAuto};
  if (text == "none") return {.kind = Kind::kNone};
  if (text == "full") return {.kind = Kind::kFraction};
  std::string_view rest = text;
  const std::optional<double> number = take_number(rest);
  if (number && rest.empty() && *number >= 0 && *number <= 1)
    return {.kind = Kind::kFraction, .fraction = *number};
  for (const auto& [unit, factor] : kUnits) {
    const double bytes = number.value_or(0) * factor;
    if (rest == unit && bytes > 0 && bytes < 1e18)
      return {.kind = Kind::kBytes, .bytes = static_cast<int64_t>(bytes)};
  }
  throw Error(ErrorCode::kInvalidArgument, "it is no budget of memory",
              "write auto, full, none, a number from 0 to 1, or a size as in 12GiB or 800MB");
}

namespace {

// What a GPU has free, with what LibTorch holds and does not use.
int64_t free_on_gpu(at::Device device) {
  const auto index = device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
  const auto stats = at::accelerator::getDeviceStats(index);
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t idle = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  return static_cast<int64_t>(at::accelerator::getMemoryInfo(index).first) + idle;
}

int64_t free_on_host() {
  const int64_t system = read_value("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  const int64_t group = left_in_group().value_or(std::numeric_limits<int64_t>::max());
  return std::max<int64_t>(0, std::min(system, group));
}

}  // namespace

int64_t available_bytes(at::Device device) {
  const auto free = static_cast<double>(device.is_cpu() ? free_on_host() : free_on_gpu(device));
  return static_cast<int64_t>((device.is_cpu() ? kPartOfHost : kPartOfGpu) * free);
}

int64_t free_bytes(at::Device device) {
  if (!device.is_cpu()) return free_on_gpu(device);
  return free_on_host() + read_value("/proc/meminfo", "SwapFree:").value_or(0) * 1024;
}

}  // namespace atelier::memory
