#include "memory/cuda_transfer_device.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "atelier/error.h"

#include "memory/host_pages.h"

namespace atelier::memory {

namespace {

// The functions that pin memory, of the CUDA runtime that LibTorch's CUDA half has loaded: the
// program does not link it.
struct CudaRuntime {
  int (*host_register)(void* data, size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* data) = nullptr;
  int (*last_error)() = nullptr;

  // Null members where it is not loaded.
  static const CudaRuntime& loaded() {
    static const CudaRuntime runtime = [] {
      CudaRuntime result;
      void* library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
      if (library == nullptr) return result;
      result.host_register =
          reinterpret_cast<int (*)(void*, size_t, unsigned)>(dlsym(library, "cudaHostRegister"));
      result.host_unregister =
          reinterpret_cast<int (*)(void*)>(dlsym(library, "cudaHostUnregister"));
      result.last_error = reinterpret_cast<int (*)()>(dlsym(library, "cudaGetLastError"));
      return result;
    }();
    return runtime;
  }
};

// Runs `work` with the device as the thread's own, from a destructor. A device that failed lets
// nobody choose it any more; then the work is done all the same.
template <typename F>
void on_device(at::Device device, const F& work) {
  std::optional<c10::DeviceGuard> guard;
  try {
    guard.emplace(device);
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
  }
  work();
}

constexpr unsigned kRegisterPortable = 1;  // pinned for every device

// Host memory of whole pages, pinned while it lives where the system lets us.
class Pinned {
 public:
  // `memory`: is kept.
  Pinned(std::shared_ptr<void> memory, int64_t bytes, at::Device device)
      : memory_(std::move(memory)), device_(device) {
    const CudaRuntime& runtime = CudaRuntime::loaded();
    if (runtime.host_register == nullptr || runtime.host_unregister == nullptr || bytes == 0)
      return;
    const c10::DeviceGuard guard(device_);
    is_pinned_ = runtime.host_register(data(), static_cast<size_t>(bytes), kRegisterPortable) == 0;
    // The failure would be met again by the next call that asks for one.
    if (!is_pinned_ && runtime.last_error != nullptr) runtime.last_error();
  }
  ~Pinned() {
    if (!is_pinned_) return;
    on_device(device_, [this] { CudaRuntime::loaded().host_unregister(data()); });
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  void* data() const { return memory_.get(); }
  bool is_pinned() const { return is_pinned_; }

 private:
  std::shared_ptr<void> memory_;
  at::Device device_;
  bool is_pinned_ = false;
};

// Small parts of pinned memory, cut from slabs one after another: to pin a page costs as much as
// many copies of it. A slab goes when its parts did.
class PinnedSlices {
 public:
  static constexpr int64_t kSlabBytes = int64_t{8} << 20, kMostBytes = kSlabBytes / 8;

  // `pinned` gives slabs of so many bytes.
  at::Tensor take(int64_t bytes, const std::function<at::Tensor(int64_t bytes)>& pinned) {
    constexpr int64_t kAlignment = 256;
    const std::lock_guard lock(mutex_);
    if (!slab_.defined() || taken_ + bytes > kSlabBytes) slab_ = pinned(kSlabBytes), taken_ = 0;
    const int64_t begin = taken_;
    taken_ = (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return slab_.narrow(0, begin, bytes);
  }

 private:
  std::mutex mutex_;
  at::Tensor slab_;
  int64_t taken_ = 0;
};

struct EventState final : Ticket::State {
  explicit EventState(at::DeviceType type) : event(type) {}

  c10::Event event;
  // Records the event when somebody first asks for it: what waits for the end of an exchange may
  // have to be called by the host. Not valid: it is recorded.
  std::shared_future<void> recorded;
};

const c10::Event& event_of(const Ticket& ticket) {
  const auto& state = static_cast<const EventState&>(*ticket.state());
  if (auto recorded = state.recorded; recorded.valid()) recorded.get();
  return state.event;
}

// LibTorch sets a thread's device back behind each call of an event, and so opens a context on the
// first GPU where the thread never chose one. A guard does not: every use of an event has one.
std::shared_ptr<EventState> make_event(at::Device device) {
  return {new EventState(device.type()),
          [device](EventState* state) { on_device(device, [state] { delete state; }); }};
}

Ticket record(const c10::Stream& stream) {
  const c10::DeviceGuard guard(stream.device());
  auto state = make_event(stream.device());
  state->event.record(stream);
  return Ticket(std::move(state));
}

// The copies of one direction.
class CopyStream {
 public:
  explicit CopyStream(const c10::Stream& stream) : stream_(stream) {}
  ~CopyStream() {
    try {
      stream_.synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): whoever computes there meets the failure
    }
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  Ticket push(const at::Tensor& from, const at::Tensor& to, const Ticket& after) {
    if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type())
      throw Error(ErrorCode::kInternal, "a copy between tensors of different sizes or dtypes");
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    const c10::DeviceGuard device(stream_.device());
    drop_done();
    if (after.state()) event_of(after).block(stream_);
    {
      const c10::StreamGuard guard(stream_);
      to.detach().copy_(from.detach(), /*non_blocking=*/true);
    }
    const at::Tensor& on_device = from.is_cpu() ? to : from;
    // The allocator of the device gives its memory to nobody else before the copy is done.
    on_device.record_stream(stream_);
    Ticket ticket = record(stream_);
    held_.emplace_back(ticket, from.is_cpu() ? from : to);
    bytes_ += static_cast<int64_t>(from.nbytes());
    return ticket;
  }

  int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  // Lets go of the host memory of copies that are done.
  void let_go() {
    const std::lock_guard lock(mutex_);
    drop_done();
  }

 private:
  void drop_done() {
    if (held_.empty()) return;
    const c10::DeviceGuard guard(stream_.device());
    while (!held_.empty() && event_of(held_.front().first).query()) held_.pop_front();
  }

  mutable std::mutex mutex_;
  c10::Stream stream_;
  std::deque<std::pair<Ticket, at::Tensor>> held_;  // host memory until its copy is done
  int64_t bytes_ = 0;
};

struct HostBytes {
  std::atomic<int64_t> all = 0, pageable = 0;
};

class CudaTransferDevice final : public TransferDevice {
 public:
  explicit CudaTransferDevice(at::Device device)
      : device_(with_index(device)),
        guard_(device_.type()),
        in_(guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)),
        out_(guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)),
        exchanges_(guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)) {}

  at::Device device() const override { return device_; }

  at::Tensor device_memory(int64_t bytes) override {
    const c10::InferenceMode normal(false);
    try {
      return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
    } catch (const c10::OutOfMemoryError& error) {
      std::string what = error.what_without_backtrace();
      throw Error(ErrorCode::kOutOfMemory, what.substr(0, what.find('\n')),
                  "keep less on the device");
    }
  }

  at::Tensor host_memory(int64_t bytes) override {
    const c10::InferenceMode normal(false);
    const auto pinned = [this](int64_t size) { return pin(take_host_pages(size), size); };
    return bytes > PinnedSlices::kMostBytes ? pinned(bytes) : small_parts_.take(bytes, pinned);
  }

  at::Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    const c10::InferenceMode normal(false);
    auto pages = std::make_shared<Pinned>(std::move(memory), bytes, device_);
    const int64_t pageable = pages->is_pinned() ? 0 : bytes;
    host_bytes_->all += bytes;
    host_bytes_->pageable += pageable;
    void* const data = pages->data();
    return at::from_blob(
        data, {bytes},
        [pages, count = host_bytes_, bytes, pageable](void*) mutable {
          pages.reset();
          count->all -= bytes;
          count->pageable -= pageable;
        },
        at::TensorOptions(at::kByte));
  }

  Ticket copy_in(const at::Tensor& from_host, const at::Tensor& to_device,
                 const Ticket& after) override {
    return in_.push(from_host, to_device, after);
  }
  Ticket copy_out(const at::Tensor& from_device, const at::Tensor& to_host,
                  const Ticket& after) override {
    return out_.push(from_device, to_host, after);
  }

  Ticket exchange(const std::function<std::function<void()>()>& begin, const at::Tensor& to,
                  const Ticket& after) override {
    const std::lock_guard lock(exchange_mutex_);
    const c10::DeviceGuard device(device_);
    if (after.state()) event_of(after).block(exchanges_);
    const c10::StreamGuard guard(exchanges_);
    auto state = make_event(device_);
    state->recorded = std::async(std::launch::deferred, [event = &state->event, stream = exchanges_,
                                                         finish = begin()]() mutable {
      const c10::StreamGuard guard(stream);
      std::exchange(finish, nullptr)();
      event->record(stream);
    });
    to.record_stream(exchanges_);
    return Ticket(std::move(state));
  }

  Ticket computed() override { return record(guard_.getStream(device_)); }
  void compute_after(const Ticket& ticket) override {
    const c10::DeviceGuard guard(device_);
    if (ticket.state()) event_of(ticket).block(guard_.getStream(device_));
  }
  void wait(const Ticket& ticket) override {
    const c10::DeviceGuard guard(device_);
    if (ticket.state()) event_of(ticket).synchronize();
    let_go();
  }

  Stats stats() const override {
    let_go();
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto allocated = at::accelerator::getDeviceStats(device_.index()).allocated_bytes[all];
    return {
        .capacity = static_cast<int64_t>(at::accelerator::getMemoryInfo(device_.index()).second),
        .live_bytes = allocated.current,
        .peak_bytes = allocated.peak,
        .host_bytes = host_bytes_->all,
        .pageable_bytes = host_bytes_->pageable,
        .bytes_in = in_.bytes(),
        .bytes_out = out_.bytes()};
  }

 private:
  void let_go() const {
    in_.let_go();
    out_.let_go();
  }

  static at::Device with_index(at::Device device) {
    return device.has_index() ? device
                              : at::Device(device.type(), at::accelerator::getDeviceIndex());
  }

  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::shared_ptr<HostBytes> host_bytes_ = std::make_shared<HostBytes>();
  PinnedSlices small_parts_;
  mutable CopyStream in_, out_;  // const: they let go of what is done
  std::mutex exchange_mutex_;
  c10::Stream exchanges_;
};

}  // namespace

std::unique_ptr<TransferDevice> make_cuda_transfer_device(at::Device device) {
  return std::make_unique<CudaTransferDevice>(device);
}

}  // namespace atelier::memory
