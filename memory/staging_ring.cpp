#include "memory/staging_ring.h"

#include <algorithm>

#include "atelier/error.h"

namespace atelier::memory {

namespace {

constexpr int64_t kTensorAlignment = 64;

}  // namespace

StagingRing::StagingRing(TransferDevice& transfer, int64_t half_bytes)
    : transfer_(transfer),
      half_bytes_((half_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment) {}

void* StagingRing::take(const at::Tensor& to) {
  const int64_t bytes = to.numel();
  if (bytes > room()) throw Error(ErrorCode::kInternal, "a staging ring is asked for too much");
  Half& half = halves_[now_];
  if (!half.memory.defined()) half.memory = transfer_.host_memory(half_bytes_);
  const at::Tensor from = half.memory.narrow(0, used_, bytes);
  used_ = std::min(half_bytes_,
                   (used_ + bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment);
  copies_.push_back({from, to});
  return from.data_ptr();
}

void StagingRing::send() {
  if (copies_.empty()) return;
  // Memory of the device may still be in use by what was queued before it was taken.
  const Ticket free = transfer_.computed();
  for (const Copy& copy : copies_) halves_[now_].sent = transfer_.copy_in(copy.from, copy.to, free);
  transfer_.compute_after(halves_[now_].sent);
  copies_.clear();
  used_ = 0;
  now_ = 1 - now_;
  transfer_.wait(halves_[now_].sent);
}

void StagingRing::wait() {
  for (const Half& half : halves_) transfer_.wait(half.sent);
}

}  // namespace atelier::memory
