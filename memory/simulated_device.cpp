#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"

#include "memory/clock.h"
#include "memory/live_bytes.h"
#include "memory/transfer_device.h"

namespace atelier::memory {

namespace {

constexpr int64_t kAllocationAlignment = 256;
constexpr int kPoison = 0xFF;  // NaN in every floating dtype

struct WorkState final : Ticket::State {
  WorkState(double end, std::shared_future<void> done) : end(end), done(std::move(done)) {}

  void wait() { std::shared_future<void>(done).get(); }

  const double end;                     // on the device's clock
  const std::shared_future<void> done;  // may have to be called by who waits
};

WorkState* state_of(const Ticket& ticket) {
  return static_cast<WorkState*>(ticket.state().get());
}

// What the bytes of `tensor` hold until a copy is done.
void poison(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) {
    std::memset(tensor.data_ptr(), kPoison, tensor.nbytes());
  } else if (at::isFloatingType(tensor.scalar_type())) {
    tensor.fill_(NAN);
  }
}

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  if (from.is_contiguous() && to.is_contiguous()) {
    if (from.nbytes() > 0) std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  } else {
    to.copy_(from);
  }
}

// The copies of one direction.
class CopyQueue {
 public:
  explicit CopyQueue(const SimulatedDeviceOptions& options) : options_(options) {}
  ~CopyQueue() {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  Ticket push(const at::Tensor& from, const at::Tensor& to, const Ticket& after) {
    if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type())
      throw Error(ErrorCode::kInternal, "a copy between tensors of different sizes or dtypes");
    const std::lock_guard lock(mutex_);
    if (options_.poison && !after.state()) poison(to);
    double begin = std::max(now(), free_at_);
    if (after.state()) begin = std::max(begin, state_of(after)->end);
    const double seconds = options_.bytes_per_second > 0
                               ? static_cast<double>(from.nbytes()) / options_.bytes_per_second
                               : 0.0;
    free_at_ = begin + seconds;
    copies_.push_back({from.detach(), to.detach(), after, free_at_});
    Ticket ticket(std::make_shared<WorkState>(free_at_, copies_.back().done.get_future()));
    bytes_ += static_cast<int64_t>(from.nbytes());
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    changed_.notify_all();
    return ticket;
  }

  int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  double now() const { return options_.clock ? options_.clock->now() : seconds_now(); }

 private:
  struct Copy {
    at::Tensor from, to;
    Ticket after;
    double end;
    std::promise<void> done = {};
  };

  void work() {
    const HostScope host;
    while (true) {
      std::optional<Copy> copy;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_closing_ || !copies_.empty(); });
        if (copies_.empty()) return;
        copy = std::move(copies_.front());
        copies_.pop_front();
      }
      std::promise<void> done = std::move(copy->done);
      std::exception_ptr failure;
      try {
        run(*copy);
      } catch (...) {
        failure = std::current_exception();
      }
      copy.reset();  // who waits may free the tensors
      failure ? done.set_exception(failure) : done.set_value();
    }
  }

  void run(const Copy& copy) {
    if (copy.after.state()) {
      state_of(copy.after)->wait();
      if (options_.poison) poison(copy.to);
    }
    if (!options_.clock && options_.bytes_per_second > 0) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(copy.end - seconds_now()),
                        [&] { return is_closing_ || seconds_now() >= copy.end; });
    }
    copy_values(copy.from, copy.to);
  }

  const SimulatedDeviceOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  double free_at_ = 0.0;  // when the last of them is done
  int64_t bytes_ = 0;
  bool is_closing_ = false;
  std::thread thread_;
};

class SimulatedDevice final : public TransferDevice {
 public:
  explicit SimulatedDevice(const SimulatedDeviceOptions& options)
      : options_(options),
        limit_(std::make_shared<MemoryLimit>(options.capacity)),
        host_bytes_(std::make_shared<std::atomic<int64_t>>(0)),
        in_(options),
        out_(options) {
    if (is_limited()) MemoryLimit::apply(limit_);
  }
  ~SimulatedDevice() override {
    if (MemoryLimit::applied() == limit_) MemoryLimit::apply(nullptr);
    limit_->lift();
  }

  at::Device device() const override { return at::kCPU; }

  at::Tensor device_memory(int64_t bytes) override {
    limit_->take(bytes, "a buffer");
    const auto give = [limit = limit_, bytes] { limit->give(bytes); };
    at::Tensor memory;
    try {
      memory = allocate(bytes, give);
    } catch (...) {
      give();
      throw;
    }
    if (options_.poison) poison(memory);
    return memory;
  }

  at::Tensor host_memory(int64_t bytes) override {
    at::Tensor memory = allocate(bytes, [count = host_bytes_, bytes] { *count -= bytes; });
    *host_bytes_ += bytes;
    return memory;
  }

  at::Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    const c10::InferenceMode normal(false);
    void* const data = memory.get();
    *host_bytes_ += bytes;
    return at::from_blob(
        data, {bytes},
        [memory = std::move(memory), count = host_bytes_, bytes](void*) mutable {
          memory.reset();
          *count -= bytes;
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
    wait(after);
    if (options_.poison) poison(to);
    std::function<void()> finish = begin();
    const bool takes_time = options_.bytes_per_second > 0;
    const std::lock_guard lock(mutex_);
    exchanged_at_ = std::max(in_.now(), exchanged_at_);
    if (takes_time) exchanged_at_ += static_cast<double>(to.nbytes()) / options_.bytes_per_second;
    const auto end_on_wall =
        takes_time && !options_.clock ? std::optional(exchanged_at_) : std::nullopt;
    auto end = [finish = std::move(finish), end_on_wall]() mutable {
      std::exchange(finish, nullptr)();
      if (end_on_wall)
        std::this_thread::sleep_for(std::chrono::duration<double>(*end_on_wall - seconds_now()));
    };
    return Ticket(std::make_shared<WorkState>(exchanged_at_,
                                              std::async(std::launch::deferred, std::move(end))));
  }

  Ticket computed() override { return {}; }

  void compute_after(const Ticket& ticket) override {
    if (!ticket.state()) return;
    const double start = in_.now();
    state_of(ticket)->wait();
    if (options_.clock) options_.clock->advance_to(state_of(ticket)->end);
    const std::lock_guard lock(mutex_);
    waited_seconds_ += in_.now() - start;
  }

  void wait(const Ticket& ticket) override {
    if (ticket.state()) state_of(ticket)->wait();
  }

  Stats stats() const override {
    const std::lock_guard lock(mutex_);
    return {.capacity = limit_->capacity(),
            .live_bytes = limit_->now(),
            .peak_bytes = limit_->peak(),
            .host_bytes = *host_bytes_,
            .bytes_in = in_.bytes(),
            .bytes_out = out_.bytes(),
            .waited_seconds = waited_seconds_};
  }

 private:
  bool is_limited() const { return options_.capacity < INT64_MAX; }

  // Outside of LibTorch's allocator, so that it is counted once.
  static at::Tensor allocate(int64_t bytes, const std::function<void()>& on_free) {
    const c10::InferenceMode normal(false);
    void* data = nullptr;
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    if (posix_memalign(&data, kAllocationAlignment, size) != 0)
      throw Error(ErrorCode::kOutOfMemory,
                  "the host's memory: it has no " + std::to_string(bytes) + " bytes",
                  "free some, or leave weights on disk");
    return at::from_blob(
        data, {bytes},
        [on_free](void* freed) {
          std::free(freed);
          on_free();
        },
        at::TensorOptions(at::kByte));
  }

  const SimulatedDeviceOptions options_;
  std::shared_ptr<MemoryLimit> limit_;
  std::shared_ptr<std::atomic<int64_t>> host_bytes_;
  mutable std::mutex mutex_;
  double waited_seconds_ = 0.0;
  double exchanged_at_ = 0.0;  // when the last exchange is done
  CopyQueue in_, out_;
};

}  // namespace

std::unique_ptr<TransferDevice> make_simulated_device(const SimulatedDeviceOptions& options) {
  return std::make_unique<SimulatedDevice>(options);
}

}  // namespace atelier::memory
