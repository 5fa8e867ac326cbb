// The null CUDA runtime refuses what CUDA refuses.
#include "null_cuda/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "null_cuda/cuda_half.h"

namespace null_cuda {
namespace {

// A stream that waits for nobody, and an event, on the device that is current.
struct Handles {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  Handles() {
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Handles() {
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaGetLastError();
  }
};

cudaError_t launch(cudaStream_t stream) {
  return cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, stream);
}

// What ends a capture that `work` broke, or did not.
cudaError_t capture(cudaStreamCaptureMode mode, const std::function<void(cudaStream_t)>& work) {
  const Handles handles;
  REQUIRE(cudaStreamBeginCapture(handles.stream, mode) == cudaSuccess);
  work(handles.stream);
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(handles.stream, &graph);
  CHECK((graph == nullptr) == (error != cudaSuccess));
  if (graph != nullptr) cudaGraphDestroy(graph);
  return error;
}

constexpr auto kOfThread = cudaStreamCaptureModeThreadLocal, kOfAll = cudaStreamCaptureModeGlobal;

}  // namespace

TEST_CASE("Streams and events of another device are refused", "[null_cuda]") {
  cudaSetDevice(1);
  const Handles there;
  cudaSetDevice(0);
  const Handles here;
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(launch(there.stream) == cudaErrorInvalidResourceHandle);
  CHECK(launch(here.stream) == cudaSuccess);
  CHECK(cudaEventRecord(there.event, here.stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(there.event, there.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(here.stream, there.event, 0) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("Memory that is not there is refused", "[null_cuda]") {
  void* data = nullptr;
  REQUIRE(cudaMalloc(&data, 100) == cudaSuccess);
  char host[200] = {};
  CHECK(cudaMemcpy(data, host, 100, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(data, host, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, data, 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(static_cast<char*>(data) + 50, 0, 51) == cudaErrorInvalidValue);
  CHECK(cudaHostUnregister(host) == cudaErrorHostMemoryNotRegistered);
  CHECK(cudaHostRegister(host, 100, 0) == cudaSuccess);
  CHECK(cudaHostRegister(host + 99, 10, 0) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaHostUnregister(host) == cudaSuccess);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFree(data) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("A capture ends without a graph where something cannot be in one", "[null_cuda]") {
  const Handles other;
  void* data = nullptr;
  CHECK(capture(kOfThread, [](cudaStream_t stream) { launch(stream); }) == cudaSuccess);
  CHECK(cudaStreamBeginCapture(nullptr, kOfThread) == cudaErrorStreamCaptureUnsupported);
  CHECK(capture(kOfThread, [](cudaStream_t stream) {
          CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
          CHECK(launch(stream) == cudaErrorStreamCaptureInvalidated);
        }) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(kOfThread, [&](cudaStream_t) {
          CHECK(cudaMalloc(&data, 100) == cudaErrorStreamCaptureUnsupported);
        }) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(kOfThread, [&](cudaStream_t stream) {
          CHECK(cudaEventRecord(other.event, stream) == cudaSuccess);
          CHECK(cudaEventQuery(other.event) == cudaErrorCapturedEvent);
        }) == cudaErrorStreamCaptureInvalidated);
  cudaEventRecord(other.event, other.stream);
  CHECK(capture(kOfThread, [&](cudaStream_t stream) {
          CHECK(cudaStreamWaitEvent(stream, other.event, 0) == cudaErrorStreamCaptureIsolation);
        }) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(kOfThread, [&](cudaStream_t stream) {
          cudaEventRecord(other.event, stream);
          cudaStreamWaitEvent(other.stream, other.event, 0);
          CHECK(launch(other.stream) == cudaSuccess);
        }) == cudaErrorStreamCaptureUnjoined);
  CHECK(launch(other.stream) == cudaSuccess);
  cudaGetLastError();
}

TEST_CASE("A capture forbids other threads what its mode says", "[null_cuda]") {
  const auto elsewhere = [](cudaStream_t) {
    std::thread([] {
      void* data = nullptr;
      if (cudaMalloc(&data, 100) == cudaSuccess) cudaFree(data);
    }).join();
  };
  CHECK(capture(kOfThread, elsewhere) == cudaSuccess);
  CHECK(capture(kOfAll, elsewhere) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(kOfAll, [](cudaStream_t) {
          cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
          cudaThreadExchangeStreamCaptureMode(&mode);
          void* data = nullptr;
          CHECK(cudaMalloc(&data, 100) == cudaSuccess);
          CHECK(cudaFree(data) == cudaSuccess);
          cudaThreadExchangeStreamCaptureMode(&mode);
        }) == cudaSuccess);
}

TEST_CASE("Memory comes in segments that grow where they are asked for", "[null_cuda]") {
  const char* const wish = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  const bool wants_segments =
      wish != nullptr && std::string_view(wish) == "expandable_segments:True";
  begin_log();
  at::empty({100 << 20}, atelier::test::cuda_device(1));
  const std::vector<Call> calls = end_log();
  CHECK(wants_segments ==
        std::ranges::any_of(calls, [](const Call& call) { return call.name == "cuMemMap"; }));
}

}  // namespace null_cuda
