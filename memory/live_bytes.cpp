#include "memory/live_bytes.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace atelier::memory {

struct LiveBytes::Counter {
  int64_t now = 0, peak = 0;
};

namespace {

thread_local std::shared_ptr<LiveBytes::Counter> current_counter;

// Allocations that were counted and are still there. Guards the counters too: memory may be freed
// on another thread.
struct Ledger {
  struct Entry {
    int64_t bytes;
    std::shared_ptr<LiveBytes::Counter> counter;
  };
  std::mutex mutex;
  std::unordered_map<void*, Entry> entries;
};

Ledger& ledger() {
  static auto* const ledger = new Ledger;  // tensors may outlive every static object
  return *ledger;
}

c10::Allocator* base_allocator = nullptr;

void free_counted(void* data) {
  {
    const std::lock_guard lock(ledger().mutex);
    const auto found = ledger().entries.find(data);
    if (found != ledger().entries.end()) {
      found->second.counter->now -= found->second.bytes;
      ledger().entries.erase(found);
    }
  }
  base_allocator->raw_deleter()(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr given = base_allocator->allocate(bytes);
    if (!current_counter || given.get() == nullptr) return given;
    void* const data = given.get();
    const c10::Device device = given.device();
    given.release_context();
    const std::lock_guard lock(ledger().mutex);
    LiveBytes::Counter& counter = *current_counter;
    counter.now += static_cast<int64_t>(bytes);
    counter.peak = std::max(counter.peak, counter.now);
    ledger().entries[data] = {static_cast<int64_t>(bytes), current_counter};
    return {data, data, &free_counted, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_allocator->copy_data(to, from, bytes);
  }
};

c10::CachingAllocator::Stat allocated(at::Device device) {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[all];
}

}  // namespace

void LiveBytes::install() {
  static const bool installed = [] {
    base_allocator = c10::GetCPUAllocator();
    if (base_allocator->raw_deleter() == nullptr) return false;
    c10::SetCPUAllocator(new CountingAllocator);  // as long as any tensor
    return true;
  }();
  (void)installed;
}

LiveBytes::LiveBytes(at::Device device) : device_(device) {
  if (device_.is_cpu()) {
    install();
    counter_ = std::make_shared<Counter>();
    current_counter = counter_;
    return;
  }
  if (!device_.has_index()) device_.set_index(at::accelerator::getDeviceIndex());
  at::accelerator::resetPeakStats(device_.index());
  before_ = allocated(device_).current;
}

LiveBytes::~LiveBytes() {
  if (device_.is_cpu()) current_counter.reset();
}

int64_t LiveBytes::now() const {
  if (!device_.is_cpu()) return allocated(device_).current - before_;
  const std::lock_guard lock(ledger().mutex);
  return counter_->now;
}

int64_t LiveBytes::peak() const {
  if (!device_.is_cpu()) return allocated(device_).peak - before_;
  const std::lock_guard lock(ledger().mutex);
  return counter_->peak;
}

}  // namespace atelier::memory
