#include "atelier/host/upload.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"

#include "ops/shared_codes.h"

namespace atelier::ops {
namespace {

using at::Tensor;

// The rows of texts, of images and of both, for a few sizes. What a block used when it ran first is
// still here when it is recorded.
constexpr size_t kKept = 128;

struct Offsets {
  Tensor on_host, on_device;

  bool are(const Tensor& wanted, at::Device device, at::ScalarType dtype) const {
    return on_device.device() == device && on_device.scalar_type() == dtype &&
           at::equal(on_host, wanted);
  }
};

thread_local RecordedUploads* recorded = nullptr;

struct RecentOffsets {
  std::mutex mutex;
  std::vector<Offsets> offsets;  // most recently used last
};

RecentOffsets& recent() {
  static auto& instance = *new RecentOffsets;  // never destroyed: the device may go first
  return instance;
}

}  // namespace

Tensor pinned_for(const Tensor& t, at::Device device) {
  return t.is_cpu() && at::isAccelerator(device.type()) ? t.pin_memory() : t;
}

Tensor upload(const Tensor& t, at::Device device) {
  if (!t.is_cpu() || device.is_cpu()) return t.to(device);
  if (recorded != nullptr)
    throw Error(ErrorCode::kUnsupported, "work that copies from the host cannot be recorded");
  return pinned_for(t, device).to(device, /*non_blocking=*/true);
}

Tensor offsets_on(const Segments& rows, at::Device device, at::ScalarType dtype) {
  const Tensor wanted = rows.own_offsets();
  if (device.is_cpu()) return wanted.to(dtype);
  RecentOffsets& kept = recent();
  const std::lock_guard lock(kept.mutex);
  const auto found =
      std::find_if(kept.offsets.rbegin(), kept.offsets.rend(),
                   [&](const Offsets& entry) { return entry.are(wanted, device, dtype); });
  if (found != kept.offsets.rend()) {
    std::rotate(kept.offsets.rbegin(), found, found + 1);
    if (recorded != nullptr) recorded->kept_.push_back(kept.offsets.back().on_device);
    return kept.offsets.back().on_device;
  }
  // Made where autograd may save them, whatever mode the caller is in.
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  if (kept.offsets.size() == kKept) kept.offsets.erase(kept.offsets.begin());
  return kept.offsets.emplace_back(wanted, upload(wanted.to(dtype), device)).on_device;
}

RecordedUploads::RecordedUploads() {
  recorded = this;
}

RecordedUploads::~RecordedUploads() {
  recorded = nullptr;
  SharedCodes::of_thread().forget();
}

}  // namespace atelier::ops
