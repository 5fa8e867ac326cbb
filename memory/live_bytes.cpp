#include "memory/live_bytes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "atelier/error.h"

namespace atelier::memory {

struct LiveBytes::Counter {
  int64_t now = 0, peak = 0;
};

namespace {

thread_local std::shared_ptr<LiveBytes::Counter> current_counter;
thread_local int suspended = 0;

// The limit of the process, and the allocations that were counted and are still there. Guards the
// counters too: memory may be freed on another thread.
struct Ledger {
  struct Entry {
    int64_t bytes;
    std::shared_ptr<LiveBytes::Counter> counter;  // each may be null
    std::shared_ptr<MemoryLimit> limit;
  };
  std::mutex mutex;
  std::shared_ptr<MemoryLimit> limit;
  std::atomic<bool> has_limit = false;  // so that allocations without one take no lock
  std::unordered_map<void*, Entry> entries;
};

Ledger& ledger() {
  static auto* const ledger = new Ledger;  // tensors may outlive every static object
  return *ledger;
}

c10::Allocator* base_allocator = nullptr;

void free_counted(void* data) {
  Ledger::Entry entry = {};
  {
    const std::lock_guard lock(ledger().mutex);
    const auto found = ledger().entries.find(data);
    if (found != ledger().entries.end()) {
      entry = std::move(found->second);
      ledger().entries.erase(found);
      if (entry.counter) entry.counter->now -= entry.bytes;
    }
  }
  base_allocator->raw_deleter()(data);
  if (entry.limit) entry.limit->give(entry.bytes);
}

// "12.5 MiB".
std::string memory_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const bool is_limited = suspended == 0 && ledger().has_limit;
    const std::shared_ptr<MemoryLimit> limit = is_limited ? MemoryLimit::applied() : nullptr;
    if (size == 0 || (!current_counter && !limit)) return base_allocator->allocate(size);
    const auto bytes = static_cast<int64_t>(size);
    if (limit) limit->take(bytes, "a tensor");
    c10::DataPtr given;
    try {
      given = base_allocator->allocate(size);
    } catch (...) {
      if (limit) limit->give(bytes);
      throw;
    }
    void* const data = given.get();
    const c10::Device device = given.device();
    given.release_context();
    const std::lock_guard lock(ledger().mutex);
    if (current_counter) {
      LiveBytes::Counter& counter = *current_counter;
      counter.now += bytes;
      counter.peak = std::max(counter.peak, counter.now);
    }
    ledger().entries[data] = {bytes, current_counter, limit};
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

void MemoryLimit::apply(std::shared_ptr<MemoryLimit> limit) {
  if (limit) LiveBytes::install();
  const std::lock_guard lock(ledger().mutex);
  ledger().has_limit = limit != nullptr;
  ledger().limit = std::move(limit);
}

std::shared_ptr<MemoryLimit> MemoryLimit::applied() {
  const std::lock_guard lock(ledger().mutex);
  return ledger().limit;
}

void MemoryLimit::suspend(int change) {
  suspended += change;
}

void MemoryLimit::take(int64_t bytes, std::string_view what) {
  const std::lock_guard lock(ledger().mutex);
  if (bytes > capacity_ - now_) {
    when_refused_ = now_;
    throw Error(ErrorCode::kOutOfMemory,
                "the device's memory: " + memory_text(bytes) + " more for " + std::string(what) +
                    ", and " + memory_text(now_) + " of " + memory_text(capacity_) + " are taken",
                "keep less on the device, or give it more memory");
  }
  now_ += bytes;
  peak_ = std::max(peak_, now_);
}

void MemoryLimit::give(int64_t bytes) {
  const std::lock_guard lock(ledger().mutex);
  now_ -= bytes;
}

void MemoryLimit::lift() {
  const std::lock_guard lock(ledger().mutex);
  capacity_ = INT64_MAX;
}

int64_t MemoryLimit::capacity() const {
  const std::lock_guard lock(ledger().mutex);
  return capacity_;
}

int64_t MemoryLimit::now() const {
  const std::lock_guard lock(ledger().mutex);
  return now_;
}

int64_t MemoryLimit::peak() const {
  const std::lock_guard lock(ledger().mutex);
  return peak_;
}

int64_t MemoryLimit::when_refused() const {
  const std::lock_guard lock(ledger().mutex);
  return when_refused_;
}

}  // namespace atelier::memory
