#include "memory/activation_offload.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "memory/clock.h"

namespace atelier::memory {
namespace {

constexpr size_t kMostLoads = 2;                 // on their way to the host
constexpr int64_t kLoadAlignment = 256;          // of tensors in a load
constexpr int64_t kMeasured = int64_t{1} << 25;  // bytes that are copied to know the rate

int64_t aligned(int64_t bytes) {
  return (bytes + kLoadAlignment - 1) / kLoadAlignment * kLoadAlignment;
}

// The elements of a tensor without gaps, as they lie.
at::Tensor as_row(const at::Tensor& t) {
  return t.as_strided({t.numel()}, {1});
}

}  // namespace

Offloader::Offloader(TransferDevice& transfer, int64_t host_bytes)
    : transfer_(transfer), limit_(host_bytes) {}

double Offloader::bytes_per_second() {
  const std::lock_guard lock(mutex_);
  if (bytes_per_second_) return *bytes_per_second_;
  const at::Tensor from =
      at::empty({kMeasured}, at::TensorOptions(at::kByte).device(transfer_.device()));
  const at::Tensor to = transfer_.host_memory(kMeasured);
  double best = 0;
  for (int i = 0; i < 2; ++i) {  // the first touches the memory
    transfer_.wait(transfer_.computed());
    const double start = seconds_now();
    transfer_.wait(transfer_.copy_out(from, to, transfer_.computed()));
    const double seconds = seconds_now() - start;
    best = std::max(best, static_cast<double>(kMeasured) / std::max(seconds, 1e-9));
  }
  bytes_per_second_ = best;
  return best;
}

Offloader::Stats Offloader::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

at::Tensor Offloader::take(int64_t size, int64_t used) {
  const std::lock_guard lock(mutex_);
  if (used_ + used > limit_) return {};
  at::Tensor memory;
  if (auto found = idle_.extract(size)) {
    memory = std::move(found.mapped());
  } else {
    while (stats_.host_bytes + size > limit_ && !idle_.empty()) {
      stats_.host_bytes -= idle_.begin()->first;
      idle_.erase(idle_.begin());
    }
    memory = transfer_.host_memory(size);
    stats_.host_bytes += size;
  }
  used_ += used;
  return memory;
}

void Offloader::give_back(at::Tensor memory, int64_t used, bool is_idle) {
  const std::lock_guard lock(mutex_);
  used_ -= used;
  const int64_t size = memory.numel();
  if (is_idle) {
    idle_.emplace(size, std::move(memory));
  } else {
    stats_.host_bytes -= size;
  }
}

void Offloader::sent(const Ticket& ticket, int64_t bytes) {
  Ticket last;
  {
    const std::lock_guard lock(mutex_);
    stats_.sent_bytes += bytes;
    on_their_way_.push_back(ticket);
    if (on_their_way_.size() <= kMostLoads) return;
    last = std::move(on_their_way_.front());
    on_their_way_.pop_front();
  }
  transfer_.wait(last);
}

void Offloader::brought(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.brought_bytes += bytes;
}

OffloadBatch::OffloadBatch(std::shared_ptr<Offloader> offloader)
    : offloader_(std::move(offloader)) {}

OffloadBatch::~OffloadBatch() {
  // Whoever writes there next does so after what is queued for computing now, and so after a copy
  // that was taken. One that was not may still be reading.
  if (memory_.defined())
    offloader_->give_back(std::move(memory_), bytes_, /*is_idle=*/!is_fetched_);
}

bool OffloadBatch::accepts(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.device().type() == offloader_->transfer().device().type() &&
         tensor.numel() > 0 && tensor.is_non_overlapping_and_dense();
}

size_t OffloadBatch::add(at::Tensor tensor) {
  Item item{std::move(tensor), {}, {}, {}, {}};
  item.sizes = item.value.sizes().vec();
  item.strides = item.value.strides().vec();
  item.options = item.value.options();
  items_.push_back(std::move(item));
  return items_.size() - 1;
}

void OffloadBatch::send() {
  if (memory_.defined() || items_.empty()) return;
  const at::NoGradGuard no_grad;
  int64_t size = 0;
  bytes_ = 0;
  for (const Item& item : items_) {
    bytes_ += static_cast<int64_t>(item.value.nbytes());
    size += aligned(static_cast<int64_t>(item.value.nbytes()));
  }
  memory_ = offloader_->take(size, bytes_);
  if (!memory_.defined()) return;

  TransferDevice& transfer = offloader_->transfer();
  const Ticket computed = transfer.computed();
  int64_t place = 0;
  for (Item& item : items_) {
    const auto bytes = static_cast<int64_t>(item.value.nbytes());
    item.on_host = memory_.narrow(0, place, bytes).view(item.value.scalar_type());
    out_ = transfer.copy_out(as_row(item.value), item.on_host, computed);
    item.value = at::Tensor();
    place += aligned(bytes);
  }
  offloader_->sent(out_, bytes_);
}

void OffloadBatch::fetch() {
  if (!memory_.defined() || is_fetched_) return;
  const at::NoGradGuard no_grad;
  TransferDevice& transfer = offloader_->transfer();
  // As good as always done by now. What follows needs both this copy and room on the device.
  transfer.wait(out_);
  for (Item& item : items_) item.value = at::empty_strided(item.sizes, item.strides, item.options);
  // After what was queued until now, which may still use the memory that was taken.
  const Ticket computed = transfer.computed();
  for (Item& item : items_) in_ = transfer.copy_in(item.on_host, as_row(item.value), computed);
  offloader_->brought(bytes_);
  is_fetched_ = true;
}

std::vector<at::Tensor> OffloadBatch::take() {
  fetch();
  std::vector<at::Tensor> result;
  if (is_fetched_) offloader_->transfer().compute_after(in_);
  for (Item& item : items_) {
    result.push_back(item.value);
    if (memory_.defined()) item.value = at::Tensor();
  }
  is_fetched_ = false;
  return result;
}

}  // namespace atelier::memory
