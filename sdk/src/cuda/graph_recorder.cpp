#include "cuda/graph_recorder.h"

#include <exception>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace atelier::ops::cuda {
namespace {

using at::Tensor;
namespace allocator = c10::cuda::CUDACachingAllocator;

// The same memory, which this tensor does not keep: that of a graph stays as long as the graph.
Tensor borrowed(const Tensor& t) {
  if (!t.defined()) return t;
  return at::from_blob(
      t.data_ptr(), t.sizes(), t.strides(), [](void*) {}, t.options());
}

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph, std::vector<Tensor> outputs,
            at::Device device)
      : graph_(std::move(graph)), outputs_(std::move(outputs)), device_(device) {}

  const std::vector<Tensor>& replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_->replay();
    return outputs_;
  }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  std::vector<Tensor> outputs_;  // borrowed
  at::Device device_;
};

class CudaGraphRecorder final : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(at::Device device)
      : device_(at::kCUDA, device.has_index() ? device.index() : c10::DeviceIndex{0}),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  at::Device device() const override { return device_; }

  std::unique_ptr<DeviceGraph> record(const std::function<std::vector<Tensor>()>& work) override {
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    std::vector<Tensor> outputs;
    {
      // Nothing of the default stream can be recorded. Other threads go on copying and allocating.
      const c10::cuda::CUDAStreamGuard on(stream_);
      graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      std::exception_ptr failure;
      try {
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
    return std::make_unique<CudaGraph>(std::move(graph), std::move(places), device_);
  }

 private:
  // Throws what went wrong, with the allocator as it was.
  void end(at::cuda::CUDAGraph& graph, std::exception_ptr failure) const {
    try {
      graph.capture_end();
    } catch (...) {
      if (!failure) failure = std::current_exception();
      take_back_pool();
    }
    if (!failure) return;
    forget_workspaces();
    std::rethrow_exception(failure);
  }

  // LibTorch's capture_end() leaves the allocator recording where CUDA gives no graph.
  void take_back_pool() const {
    try {
      allocator::endAllocateToPool(device_.index(), pool_);
    } catch (const c10::Error&) {
      return;  // it had come that far
    }
    allocator::releasePool(device_.index(), pool_);
  }

  // Those of products, which LibTorch would keep for `stream_` in the memory of the graphs: there
  // it may be used again, for graphs run one after another.
  static void forget_workspaces() { at::cuda::clearCublasWorkspaces(); }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(at::Device device) {
  return std::make_unique<CudaGraphRecorder>(device);
}

}  // namespace atelier::ops::cuda
