#include "cuda/graph_recorder.h"

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace atelier::ops::cuda {
namespace {

using at::Tensor;
namespace allocator = c10::cuda::CUDACachingAllocator;

// A tensor of the memory, which this tensor does not keep: that of a graph stays as long as the
// graph.
Tensor borrowed(const Tensor& t) {
  if (!t.defined()) return t;
  return at::from_blob(
      t.data_ptr(), t.sizes(), t.strides(), [](void*) {}, t.options());
}

// The memory that graphs share, by the name that LibTorch's allocators know it by. They take a name
// no more once its last graph went, and keep its memory from all others: then it goes back.
class Pool {
 public:
  explicit Pool(at::Device device) : device_(device), id_(at::cuda::graph_pool_handle()) {}
  ~Pool() {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      c10::cuda::device_synchronize();  // a graph may still run
      allocator::emptyCache(id_);
      at::getHostAllocator(at::kCUDA)->empty_cache();  // which forgets no pool otherwise
    } catch (const c10::Error& error) {
      TORCH_WARN("memory of CUDA graphs stays reserved: ", error.what_without_backtrace());
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  at::cuda::MempoolId_t id() const { return id_; }

 private:
  at::Device device_;
  at::cuda::MempoolId_t id_;
};

// Held while a graph is recorded: recorders of a device share its stream.
std::mutex recording;

// One for each device, as LibTorch keeps 2 MiB of memory for each stream that ever recorded.
c10::cuda::CUDAStream recording_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(recording);
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device))
      .first->second;
}

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::shared_ptr<const Pool> pool, std::unique_ptr<at::cuda::CUDAGraph> graph,
            std::vector<Tensor> outputs, at::Device device)
      : pool_(std::move(pool)),
        graph_(std::move(graph)),
        outputs_(std::move(outputs)),
        device_(device) {}

  const std::vector<Tensor>& replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_->replay();
    return outputs_;
  }

 private:
  std::shared_ptr<const Pool> pool_;  // goes behind the graph
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  std::vector<Tensor> outputs_;  // borrowed
  at::Device device_;
};

class CudaGraphRecorder final : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(at::Device device)
      : device_(at::kCUDA, device.has_index() ? device.index() : c10::DeviceIndex{0}),
        stream_(recording_stream(device_.index())) {}

  at::Device device() const override { return device_; }

  std::unique_ptr<DeviceGraph> record(const std::function<std::vector<Tensor>()>& work) override {
    const std::lock_guard lock(recording);
    if (pool_.use_count() < 2) pool_ = std::make_shared<const Pool>(device_);  // no graph lives
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    std::vector<Tensor> outputs;
    {
      // Nothing of the default stream can be recorded. Other threads go on copying and allocating.
      const c10::cuda::CUDAStreamGuard on(stream_);
      std::exception_ptr failure;
      try {
        graph->capture_begin(pool_->id(), cudaStreamCaptureModeThreadLocal);
        for (const Tensor& output : work()) outputs.push_back(output);
      } catch (...) {
        failure = std::current_exception();
      }
      end(*graph, failure);
    }
    std::vector<Tensor> places;
    for (const Tensor& output : outputs) places.push_back(borrowed(output));
    outputs.clear();
    forget_workspaces();
    return std::make_unique<CudaGraph>(pool_, std::move(graph), std::move(places), device_);
  }

 private:
  // Throws what went wrong, with LibTorch as it was.
  void end(at::cuda::CUDAGraph& graph, std::exception_ptr failure) const {
    try {
      graph.capture_end();
    } catch (...) {
      if (!failure) failure = std::current_exception();
      take_back();
    }
    if (!failure) return;
    forget_workspaces();
    std::rethrow_exception(failure);
  }

  // LibTorch's capture_end() leaves both allocators and the generator recording where CUDA gives no
  // graph. Where a capture could not begin or came to its end, some of them do not record.
  void take_back() const {
    const auto take_back_pool = [](const auto& end_allocate, const auto& release) {
      try {
        end_allocate();
      } catch (const c10::Error&) {
        return;  // it does not record
      }
      release();
    };
    const at::cuda::MempoolId_t id = pool_->id();
    take_back_pool([&] { allocator::endAllocateToPool(device_.index(), id); },
                   [&] { allocator::releasePool(device_.index(), id); });
    at::HostAllocator& host = *at::getHostAllocator(at::kCUDA);
    take_back_pool([&] { host.end_allocate_to_pool(id); }, [&] { host.release_pool(id); });
    // A copy of its state is of the same numbers, and records nothing.
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device_.index());
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(generator.clone());
  }

  // Workspaces of products on `stream_`, which LibTorch would keep in the memory of the graphs:
  // there it may be used again, for graphs run one after another. Those of other streams stay, as
  // other threads may be about to use them.
  void forget_workspaces() const {
    void* const stream = stream_.stream();
    for (auto* known : {&at::cuda::cublas_handle_stream_to_workspace(),
                        &at::cuda::cublaslt_handle_stream_to_workspace()}) {
      const std::unique_lock lock(known->mutex);
      std::erase_if(known->map,
                    [&](const auto& entry) { return std::get<1>(entry.first) == stream; });
    }
  }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::shared_ptr<const Pool> pool_;
};

}  // namespace

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(at::Device device) {
  return std::make_unique<CudaGraphRecorder>(device);
}

}  // namespace atelier::ops::cuda
