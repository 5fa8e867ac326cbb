// CUDA graphs on LibTorch's own allocators.
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "atelier/host/device_graph.h"

#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::cuda_device;
using Work = std::function<std::vector<Tensor>()>;

// What LibTorch has taken of the device.
int64_t reserved_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(1).reserved_bytes[kAll].current;
}

// Three kernels, and memory for a megabyte and more.
struct Scene {
  Tensor x = at::ones({600, 600}, cuda_device(1));
  std::unique_ptr<GraphRecorder> recorder = make_graph_recorder(cuda_device(1));
  Work work = [this] { return std::vector<Tensor>{at::mm(x, x).add_(1).mul(2)}; };

  Scene() {
    work();
    make_graph_recorder(cuda_device(1))->record(work);  // what stays for good is there
  }
};

// Streams that keep a workspace for products of theirs.
std::set<void*> workspace_streams() {
  std::set<void*> streams;
  for (const auto& [key, memory] : at::cuda::cublas_handle_stream_to_workspace().map)
    streams.insert(std::get<1>(key));
  return streams;
}

}  // namespace

TEST_CASE("A graph is recorded without being run, replayed whole, and gives its memory back",
          "[null_cuda]") {
  Scene scene;
  const int64_t before = reserved_bytes();
  auto graph = scene.recorder->record([&] {
    const int64_t ran = null_cuda::kernel_count();
    std::vector<Tensor> outputs = scene.work();
    CHECK(null_cuda::kernel_count() == ran);
    return outputs;
  });
  CHECK(reserved_bytes() > before);
  for (int i = 0; i < 2; ++i) {
    const int64_t ran = null_cuda::kernel_count();
    const std::vector<Tensor>& outputs = graph->replay();
    CHECK(null_cuda::kernel_count() == ran + 3);
    CHECK(outputs.at(0).sizes() == scene.x.sizes());
  }
  scene.recorder.reset();
  CHECK(reserved_bytes() > before);
  graph.reset();
  CHECK(reserved_bytes() == before);
}

TEST_CASE("Where a recording fails LibTorch is as it was", "[null_cuda]") {
  Scene scene;
  c10::cuda::CUDACachingAllocator::emptyCache();
  const int64_t before = reserved_bytes();
  const Work works[] = {[&]() -> std::vector<Tensor> { throw std::runtime_error("of its own"); },
                        [&] { return std::vector<Tensor>{scene.work()[0].cpu()}; },
                        [&]() -> std::vector<Tensor> {  // CUDA gives no graph
                          const Tensor y = scene.work()[0];
                          c10::cuda::getCurrentCUDAStream(1).synchronize();
                          return {y};
                        },
                        [&]() -> std::vector<Tensor> {
                          try {
                            c10::cuda::device_synchronize();
                          } catch (const c10::Error&) {  // the end of the recording tells, too
                          }
                          return scene.work();
                        }};
  for (const Work& work : works) {
    scene.recorder = make_graph_recorder(cuda_device(1));
    CAPTURE(&work - works);
    CHECK_THROWS(scene.recorder->record(work));
    // Neither allocator nor generator records: both serve whoever asks.
    CHECK_NOTHROW(at::randn({600, 600}, cuda_device(1)));
    CHECK_NOTHROW(at::empty({600}, at::TensorOptions().pinned_memory(true)));
    {
      const auto graph = scene.recorder->record(scene.work);
      const int64_t ran = null_cuda::kernel_count();
      graph->replay();
      CHECK(null_cuda::kernel_count() == ran + 3);
    }
    scene.recorder.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();  // of what came behind the failure
    CHECK(reserved_bytes() == before);
  }
}

TEST_CASE("A recording forgets the workspaces of its own stream alone", "[null_cuda]") {
  Scene scene;
  const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool(false, 1);
  {
    const c10::cuda::CUDAStreamGuard on(other);
    scene.work();
  }
  const std::set<void*> before = workspace_streams();
  REQUIRE(before.contains(other.stream()));
  void* recording = nullptr;
  scene.recorder->record([&] {
    recording = c10::cuda::getCurrentCUDAStream(1).stream();
    return scene.work();
  });
  CHECK_FALSE(before.contains(recording));
  CHECK(workspace_streams() == before);
}

TEST_CASE("While a graph is recorded other threads allocate, copy and wait", "[null_cuda]") {
  Scene scene;
  const auto graph = scene.recorder->record([&] {
    std::string failure;
    std::thread([&] {
      try {
        const Tensor there = at::ones({1 << 20}).to(cuda_device(1));
        CHECK(at::equal(there.cpu(), at::ones({1 << 20})));
      } catch (const std::exception& e) {
        failure = e.what();
      }
    }).join();
    CHECK(failure.empty());
    return scene.work();
  });
  const int64_t ran = null_cuda::kernel_count();
  graph->replay();
  CHECK(null_cuda::kernel_count() == ran + 3);
}

}  // namespace atelier::ops
