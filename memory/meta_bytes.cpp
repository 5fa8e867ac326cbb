#include "memory/meta_bytes.h"

#include <algorithm>

#include <c10/core/Allocator.h>

namespace atelier::memory {

struct MetaBytes::Counter {
  int64_t now = 0, peak = 0, written = 0;
};

namespace {

thread_local std::shared_ptr<MetaBytes::Counter> meta_counter;

// Stands behind a meta tensor that has no bytes.
struct Entry {
  int64_t bytes;
  std::shared_ptr<MetaBytes::Counter> counter;
};

void free_meta(void* context) {
  const std::unique_ptr<Entry> entry(static_cast<Entry*>(context));
  entry->counter->now -= entry->bytes;
}

// In place of LibTorch's own, which gives nothing and counts nothing.
class MetaAllocator final : public c10::Allocator {
 public:
  explicit MetaAllocator(c10::Allocator* base) : base_(base) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (!meta_counter) return base_->allocate(bytes);
    const auto count = static_cast<int64_t>(bytes);
    MetaBytes::Counter& counter = *meta_counter;
    counter.now += count;
    counter.written += count;
    counter.peak = std::max(counter.peak, counter.now);
    return {nullptr, new Entry{count, meta_counter}, &free_meta, at::kMeta};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  c10::Allocator* base_;
};

void install() {
  static const bool installed = [] {
    c10::SetAllocator(at::kMeta, new MetaAllocator(c10::GetAllocator(at::kMeta)));
    return true;
  }();
  (void)installed;
}

}  // namespace

MetaBytes::MetaBytes() : counter_(std::make_shared<Counter>()) {
  install();
  meta_counter = counter_;
}

MetaBytes::~MetaBytes() {
  meta_counter.reset();
}

int64_t MetaBytes::now() const {
  return counter_->now;
}
int64_t MetaBytes::peak() const {
  return counter_->peak;
}
int64_t MetaBytes::written() const {
  return counter_->written;
}
void MetaBytes::forget_peak() {
  counter_->peak = counter_->now;
}

}  // namespace atelier::memory
