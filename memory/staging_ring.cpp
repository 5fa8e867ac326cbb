#include "memory/staging_ring.h"

#include <algorithm>

#include "atelier/error.h"

namespace atelier::memory {

namespace {

constexpr int64_t kTensorAlignment = 64;

}  // namespace

StagingRing::StagingRing(TransferDevice& transfer, int64_t part_bytes)
    : transfer_(transfer),
      part_bytes_((part_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment) {}

void* StagingRing::take(const at::Tensor& to) {
  const int64_t bytes = to.numel();
  if (bytes > room()) throw Error(ErrorCode::kInternal, "a staging ring is asked for too much");
  Part& part = parts_[now_];
  if (!part.memory.defined()) part.memory = transfer_.host_memory(part_bytes_);
  const at::Tensor from = part.memory.narrow(0, used_, bytes);
  used_ = std::min(part_bytes_,
                   (used_ + bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment);
  pieces_.push_back({from, to});
  return from.data_ptr();
}

void StagingRing::send() {
  if (pieces_.empty()) return;
  // Memory of the device may still be in use by what was queued before it was taken.
  const Ticket free = transfer_.computed();
  for (const Piece& piece : pieces_)
    parts_[now_].sent = transfer_.copy_in(piece.from, piece.to, free);
  transfer_.compute_after(parts_[now_].sent);
  pieces_.clear();
  used_ = 0;
  now_ = 1 - now_;
  transfer_.wait(parts_[now_].sent);
}

void StagingRing::wait() {
  for (const Part& part : parts_) transfer_.wait(part.sent);
}

}  // namespace atelier::memory
