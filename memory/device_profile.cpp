#include "memory/device_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/attention_rules.h"

#include "memory/activation_budget.h"
#include "memory/clock.h"
#include "memory/transfer_device.h"

namespace atelier::memory {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kDiskBytesPerSecond = 2e9;  // of a usual NVMe drive

// Waits for the device.
void finish(const at::Tensor& result) {
  (void)result.flatten()[0].item();
}

// The shortest of a few runs of `work`, which gives a tensor.
template <typename F>
double shortest(const F& work) {
  finish(work());
  double best = 1e30;
  const double end = seconds_now() + 0.02;
  do {
    const double begin = seconds_now();
    finish(work());
    best = std::min(best, seconds_now() - begin);
  } while (seconds_now() < end);
  return std::max(best, 1e-9);
}

double measured_flops(at::Device device, at::ScalarType dtype) {
  const int64_t n = device.is_cpu() ? 512 : 4096;
  const at::Tensor a = at::ones({n, n}, at::TensorOptions(device).dtype(dtype));
  return 2.0 * static_cast<double>(n * n * n) / shortest([&] { return at::mm(a, a); });
}

// Of heads of 128 in 16 bits, forward and backward together, by the kernel that such a GPU takes by
// default: what was published of cuDNN and of flash on an H100.
double hopper_attention_flops() {
  const ops::AttentionKernel kernel =
      ops::attention_kernel({.capability = 90, .dtype = at::kBFloat16, .head_dim = 128});
  return kernel == ops::AttentionKernel::kCudnn ? 520e12 : 325e12;
}

}  // namespace

std::optional<DeviceProfile> known_profile(std::string_view name) {
  DeviceProfile profile;
  profile.name = name;
  profile.disk_bytes_per_second = kDiskBytesPerSecond;
  profile.reserve_bytes = kCudaReserveBytes;
  if (name == "h200") {
    profile.memory_bytes = static_cast<int64_t>(139 * kGiB);
    profile.flops_16 = 650e12;
    profile.flops_32 = 45e12;
    profile.attention_flops = hopper_attention_flops();
    profile.memory_bytes_per_second = 4.3e12;
    profile.copy_bytes_per_second = 50e9;
    return profile;
  }
  if (name == "4090") {
    profile.memory_bytes = static_cast<int64_t>(23.5 * kGiB);
    profile.flops_16 = 140e12;
    profile.flops_32 = 60e12;
    profile.attention_flops = 130e12;
    profile.memory_bytes_per_second = 0.9e12;
    profile.copy_bytes_per_second = 24e9;
    return profile;
  }
  return std::nullopt;
}

DeviceProfile parse_profile(std::string_view json, const std::string& place) {
  const auto wrong = [&](const std::string& what) {
    return Error(
        ErrorCode::kInvalidArgument, place + ": " + what,
        "a profile is {\"name\": …, \"memory_gib\": …, \"tflops_16\": …, \"tflops_32\": …, "
        "\"attention_tflops\": …, \"memory_gb_per_s\": …, \"copy_gb_per_s\": …}");
  };
  const nlohmann::json values = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object()) throw wrong("no JSON object");
  DeviceProfile profile;
  profile.name = "profile";
  profile.disk_bytes_per_second = kDiskBytesPerSecond;
  std::map<std::string, double> numbers = {{"reserve_gib", 0.0},
                                           {"disk_gb_per_s", kDiskBytesPerSecond / 1e9}};
  for (const auto& [key, value] : values.items()) {
    if (key == "name" && value.is_string()) {
      profile.name = value.get<std::string>();
      continue;
    }
    static const std::set<std::string> kKnown = {
        "memory_gib",       "reserve_gib",     "tflops_16",     "tflops_32",
        "attention_tflops", "memory_gb_per_s", "copy_gb_per_s", "disk_gb_per_s"};
    if (!kKnown.contains(key)) throw wrong("\"" + key + "\" is not known");
    if (!value.is_number() || value.get<double>() < 0) throw wrong("\"" + key + "\" is no number");
    numbers[key] = value.get<double>();
  }
  const auto number = [&](const char* key) {
    const auto found = numbers.find(key);
    if (found == numbers.end()) throw wrong("\"" + std::string(key) + "\" is missing");
    const bool may_be_zero = found->first == "reserve_gib";
    if (found->second == 0 && !may_be_zero) throw wrong("\"" + std::string(key) + "\" is 0");
    return found->second;
  };
  profile.memory_bytes = static_cast<int64_t>(number("memory_gib") * kGiB);
  profile.reserve_bytes = static_cast<int64_t>(number("reserve_gib") * kGiB);
  profile.flops_16 = number("tflops_16") * 1e12;
  profile.flops_32 = number("tflops_32") * 1e12;
  profile.attention_flops = number("attention_tflops") * 1e12;
  profile.memory_bytes_per_second = number("memory_gb_per_s") * 1e9;
  profile.copy_bytes_per_second = number("copy_gb_per_s") * 1e9;
  profile.disk_bytes_per_second = number("disk_gb_per_s") * 1e9;
  return profile;
}

DeviceProfile measure_profile(at::Device device, double copy_bytes_per_second) {
  const at::NoGradGuard no_grad;
  const HostScope uncounted;  // of a simulated device
  DeviceProfile profile;
  profile.name = "this machine";
  profile.disk_bytes_per_second = kDiskBytesPerSecond;
  profile.memory_bytes = available_bytes(device);
  if (!device.is_cpu()) profile.reserve_bytes = static_cast<int64_t>(0.1 * kGiB);
  profile.flops_32 = measured_flops(device, at::kFloat);
  profile.flops_16 = measured_flops(device, at::kBFloat16);
  profile.attention_flops = 0.6 * (device.is_cpu() ? profile.flops_32 : profile.flops_16);

  const int64_t count = device.is_cpu() ? int64_t{1} << 22 : int64_t{1} << 25;
  const at::Tensor here = at::ones({count}, at::TensorOptions(device).dtype(at::kFloat));
  const double pass = shortest([&] { return here + 1; });
  profile.memory_bytes_per_second = 8.0 * static_cast<double>(count) / pass;
  profile.copy_bytes_per_second = copy_bytes_per_second;
  if (copy_bytes_per_second <= 0) {
    const at::TensorOptions host = at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu());
    const at::Tensor from = at::empty({int64_t{1} << 22}, host).fill_(1);
    const at::Tensor to =
        at::empty(from.sizes(), from.options().device(device).pinned_memory(false));
    const double copy = shortest([&] { return at::Tensor(to).copy_(from, /*non_blocking=*/true); });
    profile.copy_bytes_per_second = static_cast<double>(from.nbytes()) / copy;
  }
  if (!device.is_cpu()) {
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(device.index());
  }
  return profile;
}

}  // namespace atelier::memory
