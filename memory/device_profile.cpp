#include "memory/device_profile.h"

#include <algorithm>
#include <iterator>
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

// Rates for heads of 128 in 16 bits, forward and backward together, by the kernel that such a GPU
// takes by default: what was published of cuDNN and of flash on an H100.
double hopper_attention_flops() {
  const ops::AttentionKernel kernel =
      ops::attention_kernel({.capability = 90, .dtype = at::kBFloat16, .head_dim = 128});
  return kernel == ops::AttentionKernel::kCudnn ? 520e12 : 325e12;
}

// What a device sustains.
struct KnownDevice {
  std::string_view name;
  double memory_gib;  // that a program is given
  double tflops_16, tflops_32;
  double attention_tflops;  // 0: hopper_attention_flops()
  double memory_gb_per_s, copy_gb_per_s;
};

// The numbers behind each row are peaks of NVIDIA's data sheets and architecture white papers
// (Ampere GA102, Ada, Blackwell, A100, H100, H200, L40S), all without sparsity: TFLOP/s of tensor
// cores in bfloat16 with sums in float32, which are twice float32 on a GeForce card; TFLOP/s in
// float32 without tensor cores; GB/s of memory. PCIe carries 32 GB/s each way in generation 4, 16
// with eight lanes, and 64 in generation 5. A100, H100 and H200 are SXM modules. A GeForce card is
// taken to sustain 85 and 73 % of products and 79 % in attention; one of a data centre, which its
// power limits, about 70 % of products, and 51 to 55 % in attention where it is not Hopper's; each
// 90 % of memory and 75 to 78 % of PCIe.
constexpr KnownDevice kDevices[] = {
    {"3060", 11.6, 22, 9.3, 20, 324, 24},       // 12 GB: 25.5, 12.7, 360 GB/s
    {"3090", 23.5, 60, 26, 56, 842, 24},        // 24 GB: 71, 35.6, 936 GB/s
    {"4060", 7.6, 26, 11, 24, 245, 12},         // 8 GB: 30.2, 15.1, 272 GB/s, eight lanes
    {"4060ti", 15.6, 37, 16, 35, 259, 12},      // 16 GB: 44.1, 22.1, 288 GB/s, eight lanes
    {"4070", 11.6, 49, 21, 46, 454, 24},        // 12 GB: 58.3, 29.1, 504 GB/s
    {"4080", 15.6, 83, 36, 77, 645, 24},        // 16 GB: 97.5, 48.7, 717 GB/s
    {"4090", 23.5, 140, 60, 130, 900, 24},      // 24 GB: 165.2, 82.6, 1008 GB/s
    {"5090", 31.3, 178, 76, 165, 1610, 50},     // 32 GB: 209.5, 104.8, 1792 GB/s
    {"a100-40", 39.4, 220, 14, 160, 1400, 24},  // 40 GB: 312, 19.5, 1555 GB/s
    {"a100-80", 79.1, 220, 14, 160, 1800, 24},  // 80 GB: 312, 19.5, 2039 GB/s
    {"l40s", 44.4, 250, 64, 200, 780, 24},      // 48 GB: 362, 91.6, 864 GB/s
    {"h100", 79.1, 650, 45, 0, 3000, 50},       // 80 GB: 989, 67, 3350 GB/s
    {"h200", 139, 650, 45, 0, 4300, 50},        // 141 GB: 989, 67, 4800 GB/s
};

}  // namespace

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const KnownDevice& device : kDevices) names.emplace_back(device.name);
  return names;
}

std::optional<DeviceProfile> known_profile(std::string_view name) {
  const std::string_view bare = name.starts_with("rtx") ? name.substr(3) : name;
  const auto* const known = std::ranges::find(kDevices, bare, &KnownDevice::name);
  if (known == std::end(kDevices)) return std::nullopt;
  DeviceProfile profile;
  profile.name = known->name;
  profile.memory_bytes = static_cast<int64_t>(known->memory_gib * kGiB);
  profile.reserve_bytes = kCudaReserveBytes;
  profile.flops_16 = known->tflops_16 * 1e12;
  profile.flops_32 = known->tflops_32 * 1e12;
  profile.attention_flops =
      known->attention_tflops > 0 ? known->attention_tflops * 1e12 : hopper_attention_flops();
  profile.memory_bytes_per_second = known->memory_gb_per_s * 1e9;
  profile.copy_bytes_per_second = known->copy_gb_per_s * 1e9;
  profile.disk_bytes_per_second = kDiskBytesPerSecond;
  return profile;
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
