// Copies beside the computing, on LibTorch's CUDA half.
#include <set>
#include <thread>

#include <ATen/ATen.h>

#include "memory/cuda_transfer_device.h"
#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::cuda_device;

std::unique_ptr<TransferDevice> transfer_of(int device) {
  return make_cuda_transfer_device(cuda_device(device));
}

// Streams rest until it goes.
struct Held {
  Held() { null_cuda::hold_streams(); }
  ~Held() { null_cuda::release_streams(); }
};

}  // namespace

TEST_CASE("Host memory is pinned, and small parts share what is", "[null_cuda]") {
  const auto transfer = transfer_of(1);
  const int64_t ranges = null_cuda::pinned_ranges(), bytes = null_cuda::pinned_bytes();
  {
    const Tensor large = transfer->host_memory(5 << 20);
    CHECK(null_cuda::pinned_ranges() == ranges + 1);
    CHECK(null_cuda::pinned_bytes() >= bytes + (5 << 20));
    std::vector<Tensor> small;
    for (int i = 0; i < 100; ++i) small.push_back(transfer->host_memory(1000));
    CHECK(null_cuda::pinned_ranges() == ranges + 2);
    CHECK(transfer->stats().pageable_bytes == 0);
    CHECK(large.is_pinned());
  }
  CHECK(null_cuda::pinned_ranges() == ranges + 1);  // the slab serves the next ones
}

TEST_CASE("Copies run after what they wait for", "[null_cuda]") {
  const auto transfer = transfer_of(1);
  const Tensor from = transfer->host_memory(4000), to = transfer->host_memory(4000);
  const Tensor slot = transfer->device_memory(4000);
  for (int i = 1; i <= 3; ++i) {
    const Held held;
    from.fill_(i);
    const Ticket came = transfer->copy_in(from, slot, transfer->computed());
    transfer->compute_after(came);
    const Ticket left = transfer->copy_out(slot, to, transfer->computed());
    CHECK_FALSE((to == i).any().item<bool>());
    transfer->wait(left);
    CHECK((to == i).all().item<bool>());
  }
}

TEST_CASE("Memory that a copy uses stays until the copy is done", "[null_cuda]") {
  const auto transfer = transfer_of(1);
  // Pieces that nothing else of this program has.
  constexpr int64_t kBytes = 3 << 20;
  const void* place = nullptr;
  {
    const Held held;
    Tensor from = transfer->host_memory(kBytes), slot = transfer->device_memory(kBytes);
    transfer->copy_in(from, slot, transfer->computed());
    place = slot.data_ptr();
    slot.reset();
    from.reset();
    CHECK(transfer->device_memory(kBytes).data_ptr() != place);
  }
  transfer->stats();  // host memory goes
  CHECK(null_cuda::copies_from_nowhere() == 0);
  CHECK(transfer->device_memory(kBytes).data_ptr() != nullptr);
}

TEST_CASE("Threads that never chose a device use no other one", "[null_cuda]") {
  const auto transfer = transfer_of(1);
  Tensor last = transfer->host_memory(2 << 20);
  null_cuda::begin_log();
  std::thread([&] { last.reset(); }).join();
  std::thread([&] {
    const Tensor from = transfer->host_memory(2 << 20);
    Tensor slot = transfer->device_memory(2 << 20);
    const Ticket came = transfer->copy_in(from, slot, transfer->computed());
    transfer->compute_after(came);
    const Ticket left = transfer->copy_out(slot, from, came);
    transfer->stats();
    transfer->wait(left);
    slot.reset();
    transfer->device_memory(1 << 20);
  }).join();
  std::set<std::string> elsewhere;
  for (const null_cuda::Call& call : null_cuda::end_log())
    if (call.device != 1) elsewhere.insert(call.name);
  CHECK(elsewhere == std::set<std::string>{});
}

}  // namespace atelier::memory
