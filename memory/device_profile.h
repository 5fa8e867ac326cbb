// How fast a device computes and copies: what plans are predicted with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace atelier::memory {

// What a CUDA context, the workspaces of its libraries, and what its allocator cannot use take of a
// GPU.
inline constexpr int64_t kCudaReserveBytes = int64_t{768} << 20;

struct DeviceProfile {
  std::string name;
  int64_t memory_bytes = 0;   // of the device; 0: not known
  int64_t reserve_bytes = 0;  // of these, what driver and libraries take beside tensors
  // Sustained rates of large matrix products in 16 and in 32 bits, and of attention.
  double flops_16 = 0.0, flops_32 = 0.0, attention_flops = 0.0;
  double memory_bytes_per_second = 0.0;  // read and written by pointwise operators
  double copy_bytes_per_second = 0.0;    // from pinned memory, in one direction
  double disk_bytes_per_second = 0.0;

  double product_flops(at::ScalarType dtype) const {
    return c10::elementSize(dtype) <= 2 ? flops_16 : flops_32;
  }
};

// What known_profile() knows.
std::vector<std::string> profile_names();

// One of profile_names(), "rtx" may stand before it; nullopt for another name.
std::optional<DeviceProfile> known_profile(std::string_view name);

// JSON with the fields of DeviceProfile: {"name": "a100", "memory_gib": 80, "reserve_gib": 0.6,
// "tflops_16": 220, "tflops_32": 19, "attention_tflops": 160, "memory_gb_per_s": 1900,
// "copy_gb_per_s": 24, "disk_gb_per_s": 3}. All but reserve_gib and disk_gb_per_s are needed.
// Throws Error{kInvalidArgument} with `place` in front.
DeviceProfile parse_profile(std::string_view json, const std::string& place);

// Measures the device that is there, in about a tenth of a second. `copy_bytes_per_second`: what is
// known of it, 0 to measure it too.
DeviceProfile measure_profile(at::Device device, double copy_bytes_per_second = 0.0);

}  // namespace atelier::memory
