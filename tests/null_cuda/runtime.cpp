#include "null_cuda/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <utility>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

constexpr int kDevices = 2;
constexpr size_t kDeviceBytes = size_t{80} << 30;
constexpr size_t kGranularity = size_t{2} << 20;  // of memory that is mapped

using Work = std::function<void()>;

}  // namespace

// What a stream was given and has recorded since its capture began.
struct CUgraph_st {
  std::vector<Work> work;
};

struct CUgraphExec_st {
  std::vector<Work> work;
  int device = 0;
};

namespace {

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  unsigned long long id = 0;
  bool is_valid = true;
  std::set<cudaStream_t> streams;   // that take part
  std::set<cudaStream_t> unjoined;  // whose work the origin did not wait for
  std::unique_ptr<CUgraph_st> graph = std::make_unique<CUgraph_st>();
};

}  // namespace

struct CUstream_st {
  int device = 0;
  bool is_blocking = false;      // waits for the legacy stream, which waits for it
  std::deque<Work> queue;        // to do
  int64_t issued = 0, done = 0;  // `issued` - `done` are in the queue
  std::shared_ptr<Capture> capture;
};

struct CUevent_st {
  int device = 0;
  cudaStream_t stream = nullptr;  // null: was never recorded
  int64_t position = 0;           // in the stream, that must be done
  std::shared_ptr<Capture> capture;
};

namespace {

struct Runtime {
  std::recursive_mutex mutex;
  CUstream_st legacy[kDevices];
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  struct Range {
    size_t bytes = 0;
    int device = 0;
  };
  std::map<char*, Range> device_memory, host_memory, registered, reserved;
  std::map<char*, CUmemGenericAllocationHandle> mapped;
  std::map<CUmemGenericAllocationHandle, Range> handles;
  size_t used[kDevices] = {};
  std::vector<std::shared_ptr<Capture>> captures;
  unsigned long long last_id = 0;
  bool is_held = false;
  std::set<int> open;
  bool is_logging = false;
  std::vector<null_cuda::Call> log;
  std::atomic<int64_t> kernels = 0, copies_from_nowhere = 0;

  Runtime() {
    for (int device = 0; device < kDevices; ++device)
      legacy[device].device = device, legacy[device].is_blocking = true;
  }
};

// Outlives what LibTorch gives back when the process ends.
Runtime& runtime() {
  static Runtime& instance = *new Runtime;
  return instance;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

#define RETURN_IF_FAILED(call)                                                \
  do {                                                                        \
    if (const cudaError_t error = (call); error != cudaSuccess) return error; \
  } while (false)

enum class Kind { kPlain, kWaits };

// One call of the runtime: holds its lock, and is in the log.
class Entry {
 public:
  explicit Entry(const char* name, Kind kind = Kind::kPlain) : lock_(runtime().mutex) {
    runtime().open.insert(current_device);
    if (runtime().is_logging)
      runtime().log.push_back(
          {name, std::this_thread::get_id(), current_device, kind == Kind::kWaits});
  }
  void set_waiting() const {
    if (runtime().is_logging) runtime().log.back().is_waiting = true;
  }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

bool is_legacy(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy;
}

// Null where no such stream lives.
CUstream_st* find(cudaStream_t stream) {
  if (is_legacy(stream)) return &runtime().legacy[current_device];
  for (CUstream_st& legacy : runtime().legacy)
    if (stream == &legacy) return stream;
  return runtime().streams.count(stream) != 0 ? stream : nullptr;
}

void do_until(CUstream_st& stream, int64_t position) {
  while (stream.done < position) {
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.done;
    work();
  }
}

void do_all(int device) {
  do_until(runtime().legacy[device], runtime().legacy[device].issued);
  for (cudaStream_t stream : runtime().streams)
    if (stream->device == device) do_until(*stream, stream->issued);
}

// Gives the stream work, which a capture keeps.
cudaError_t give(CUstream_st& stream, Work work) {
  if (stream.capture) {
    if (!stream.capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    stream.capture->graph->work.push_back(std::move(work));
    if (&stream != stream.capture->origin) stream.capture->unjoined.insert(&stream);
    return cudaSuccess;
  }
  if (stream.is_blocking && &stream == &runtime().legacy[stream.device]) {
    for (const auto& capture : runtime().captures)
      if (capture->origin->is_blocking && capture->origin->device == stream.device) {
        capture->is_valid = false;
        return failed(cudaErrorStreamCaptureImplicit);
      }
  }
  stream.queue.push_back(std::move(work));
  ++stream.issued;
  if (!runtime().is_held) do_until(stream, stream.issued);
  return cudaSuccess;
}

// What CUDA calls potentially unsafe, and refuses where a capture forbids it.
cudaError_t check_unsafe() {
  bool is_refused = false;
  for (const auto& capture : runtime().captures) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool forbids = (thread_mode == cudaStreamCaptureModeGlobal &&
                          (capture->mode == cudaStreamCaptureModeGlobal ||
                           (is_own && capture->mode == cudaStreamCaptureModeThreadLocal))) ||
                         (thread_mode == cudaStreamCaptureModeThreadLocal && is_own &&
                          capture->mode != cudaStreamCaptureModeRelaxed);
    if (!forbids) continue;
    capture->is_valid = false;
    is_refused = true;
  }
  return is_refused ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

using Ranges = std::map<char*, Runtime::Range>;

// Whether [data, data + bytes) lies in one of them.
const Runtime::Range* range_of(const Ranges& ranges, const void* data, size_t bytes) {
  char* const begin = static_cast<char*>(const_cast<void*>(data));
  auto found = ranges.upper_bound(begin);
  if (found == ranges.begin()) return nullptr;
  --found;
  return begin + bytes <= found->first + found->second.bytes ? &found->second : nullptr;
}

// Whether all of it is memory of a device; expandable segments are several ranges in a row.
bool is_device_memory(const void* data, size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  const char* const end = begin + bytes;
  do {
    auto found = runtime().device_memory.upper_bound(const_cast<char*>(begin));
    if (found == runtime().device_memory.begin()) return false;
    --found;
    if (begin >= found->first + found->second.bytes) return false;
    begin = found->first + found->second.bytes;
  } while (begin < end);
  return true;
}

char* map_memory(size_t bytes, int protection) {
  void* const memory = mmap(nullptr, std::max<size_t>(bytes, 1), protection,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

bool is_pinned(const void* data, size_t bytes) {
  return range_of(runtime().host_memory, data, bytes) != nullptr ||
         range_of(runtime().registered, data, bytes) != nullptr;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, CUstream_st& stream,
                 const Entry& entry) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = is_device_memory(to, bytes), from_device = is_device_memory(from, bytes);
  const bool fits =
      kind == cudaMemcpyDefault ||
      (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!fits) return failed(cudaErrorInvalidValue);
  const bool is_pageable =
      (!to_device && !is_pinned(to, bytes)) || (!from_device && !is_pinned(from, bytes));
  if (is_pageable) {
    entry.set_waiting();
    if (stream.capture) {
      stream.capture->is_valid = false;
      return failed(cudaErrorStreamCaptureUnsupported);
    }
  }
  RETURN_IF_FAILED(give(stream, [=] {
    const auto is_there = [&](const void* data, bool on_device) {
      return on_device ? is_device_memory(data, bytes) : is_pageable || is_pinned(data, bytes);
    };
    if (is_there(to, to_device) && is_there(from, from_device)) {
      std::memmove(to, from, bytes);
    } else {
      ++runtime().copies_from_nowhere;
    }
  }));
  if (is_pageable) do_until(stream, stream.issued);
  return cudaSuccess;
}

cudaError_t launch(cudaStream_t handle) {
  CUstream_st* const stream = find(handle);
  if (stream == nullptr || stream->device != current_device)
    return failed(cudaErrorInvalidResourceHandle);
  return give(*stream, [] { ++runtime().kernels; });
}

cudaError_t take_bytes(size_t bytes) {
  if (runtime().used[current_device] + bytes > kDeviceBytes)
    return failed(cudaErrorMemoryAllocation);
  runtime().used[current_device] += bytes;
  return cudaSuccess;
}

void invalidate(CUstream_st& stream) {
  if (stream.capture) stream.capture->is_valid = false;
}

}  // namespace

namespace null_cuda {

void begin_log() {
  const std::lock_guard lock(runtime().mutex);
  runtime().log.clear();
  runtime().open.clear();
  runtime().is_logging = true;
}

std::vector<Call> end_log() {
  const std::lock_guard lock(runtime().mutex);
  runtime().is_logging = false;
  return std::move(runtime().log);
}

void hold_streams() {
  const std::lock_guard lock(runtime().mutex);
  runtime().is_held = true;
}

void release_streams() {
  const std::lock_guard lock(runtime().mutex);
  runtime().is_held = false;
  for (int device = 0; device < kDevices; ++device) do_all(device);
}

int64_t kernel_count() {
  return runtime().kernels;
}

int64_t pinned_ranges() {
  const std::lock_guard lock(runtime().mutex);
  return static_cast<int64_t>(runtime().registered.size());
}

int64_t pinned_bytes() {
  const std::lock_guard lock(runtime().mutex);
  size_t bytes = 0;
  for (const auto& [data, range] : runtime().registered) bytes += range.bytes;
  return static_cast<int64_t>(bytes);
}

int64_t copies_from_nowhere() {
  return runtime().copies_from_nowhere;
}

}  // namespace null_cuda

extern "C" {

// ---- For the stubs ----

int null_cuda_is_open(int device) {
  const std::lock_guard lock(runtime().mutex);
  return runtime().open.count(device) != 0 ? 1 : 0;
}
int null_cuda_launch(cudaStream_t stream) {
  const Entry entry("product");
  constexpr int kFailed = 13;  // CUBLAS_STATUS_EXECUTION_FAILED
  return launch(stream) == cudaSuccess ? 0 : kFailed;
}

// ---- What is registered before main() ----

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

// ---- Kernels ----

namespace {
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;
}  // namespace

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (configurations.empty()) return failed(cudaErrorMissingConfiguration);
  const Configuration& last = configurations.back();
  *grid = last.grid, *block = last.block, *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t stream) {
  const Entry entry("cudaLaunchKernel");
  return launch(stream);
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  const Entry entry("cudaLaunchKernel");
  return launch(stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t,
                                        cudaStream_t stream) {
  const Entry entry("cudaLaunchCooperativeKernel");
  return launch(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  const Entry entry("cudaLaunchKernelExC");
  return launch(config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char* const symbol = map_memory(size_t{1} << 20, PROT_READ | PROT_WRITE);
  *address = symbol;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  const Entry entry("cudaMemcpyToSymbol", Kind::kWaits);
  return check_unsafe();
}

// ---- Devices ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  current_device = device;
  const Entry entry("cudaSetDevice");
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  *prop = {};
  std::strcpy(prop->name, "Null GPU");
  prop->uuid.bytes[0] = static_cast<char>(device + 1);
  prop->totalGlobalMem = kDeviceBytes;
  prop->sharedMemPerBlock = 48 << 10;
  prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024, prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 2147483647, prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->totalConstMem = 65536;
  prop->major = 9, prop->minor = 0;
  prop->textureAlignment = 512;
  prop->multiProcessorCount = 132;
  prop->canMapHostMemory = prop->unifiedAddressing = prop->managedMemory = 1;
  prop->concurrentKernels = prop->cooperativeLaunch = prop->streamPrioritiesSupported = 1;
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = 3;
  prop->memoryBusWidth = 5120;
  prop->l2CacheSize = 50 << 20;
  prop->maxThreadsPerMultiProcessor = 2048;
  prop->sharedMemPerMultiprocessor = 228 << 10;
  prop->sharedMemPerBlockOptin = 227 << 10;
  prop->maxBlocksPerMultiProcessor = 32;
  prop->hostRegisterSupported = prop->memoryPoolsSupported = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  *value = which == cudaDevAttrComputeCapabilityMajor         ? 9
           : which == cudaDevAttrMultiProcessorCount          ? 132
           : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
                                                              : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Entry entry("cudaDeviceSynchronize", Kind::kWaits);
  RETURN_IF_FAILED(check_unsafe());
  do_all(current_device);
  return cudaSuccess;
}

// ---- Errors ----

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all is already registered";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer is not registered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "capture was invalidated by a previous error";
    case cudaErrorStreamCaptureUnmatched:
      return "capture was not begun in this stream";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit:
      return "disallowed implicit dependency of the legacy stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capture";
    case cudaErrorStreamCaptureWrongThread:
      return "capture was begun in another thread";
    default:
      return "another error of the null runtime";
  }
}

// ---- Memory ----

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Entry entry("cudaMalloc");
  RETURN_IF_FAILED(check_unsafe());
  RETURN_IF_FAILED(take_bytes(bytes));
  char* const memory = map_memory(bytes, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return failed(cudaErrorMemoryAllocation);
  runtime().device_memory[memory] = {bytes, current_device};
  *data = memory;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const Entry entry("cudaFree", Kind::kWaits);
  RETURN_IF_FAILED(check_unsafe());
  if (data == nullptr) return cudaSuccess;
  const auto found = runtime().device_memory.find(static_cast<char*>(data));
  if (found == runtime().device_memory.end()) return failed(cudaErrorInvalidValue);
  do_all(found->second.device);
  runtime().used[found->second.device] -= found->second.bytes;
  munmap(data, found->second.bytes);
  runtime().device_memory.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* all) {
  const Entry entry("cudaMemGetInfo");
  *all = kDeviceBytes, *available = kDeviceBytes - runtime().used[current_device];
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  const Entry entry("cudaHostAlloc");
  RETURN_IF_FAILED(check_unsafe());
  char* const memory = map_memory(bytes, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return failed(cudaErrorMemoryAllocation);
  runtime().host_memory[memory] = {bytes, current_device};
  *data = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const Entry entry("cudaFreeHost", Kind::kWaits);
  RETURN_IF_FAILED(check_unsafe());
  const auto found = runtime().host_memory.find(static_cast<char*>(data));
  if (found == runtime().host_memory.end()) return failed(cudaErrorInvalidValue);
  for (int device = 0; device < kDevices; ++device) do_all(device);
  munmap(data, found->second.bytes);
  runtime().host_memory.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  const Entry entry("cudaHostRegister");
  RETURN_IF_FAILED(check_unsafe());
  if (data == nullptr || bytes == 0) return failed(cudaErrorInvalidValue);
  char* const begin = static_cast<char*>(data);
  auto next = runtime().registered.lower_bound(begin);
  const bool meets_next = next != runtime().registered.end() && next->first < begin + bytes;
  const bool meets_last = next != runtime().registered.begin() &&
                          std::prev(next)->first + std::prev(next)->second.bytes > begin;
  if (meets_next || meets_last) return failed(cudaErrorHostMemoryAlreadyRegistered);
  runtime().registered[begin] = {bytes, current_device};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  const Entry entry("cudaHostUnregister");
  RETURN_IF_FAILED(check_unsafe());
  return runtime().registered.erase(static_cast<char*>(data)) == 1
             ? cudaSuccess
             : failed(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const Entry entry("cudaPointerGetAttributes");
  *attributes = {};
  attributes->device = -2;
  void* const pointer = const_cast<void*>(data);
  if (const auto* range = range_of(runtime().device_memory, data, 1)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = range->device;
    attributes->devicePointer = pointer;
    return cudaSuccess;
  }
  const Runtime::Range* pinned = range_of(runtime().host_memory, data, 1);
  if (pinned == nullptr) pinned = range_of(runtime().registered, data, 1);
  attributes->type = pinned == nullptr ? cudaMemoryTypeUnregistered : cudaMemoryTypeHost;
  attributes->hostPointer = pointer;
  if (pinned != nullptr) attributes->device = pinned->device, attributes->devicePointer = pointer;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  const Entry entry("cudaMemcpyAsync");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return copy(to, from, bytes, kind, *stream, entry);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t handle) {
  const Entry entry("cudaMemcpyPeerAsync");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return copy(to, from, bytes, cudaMemcpyDeviceToDevice, *stream, entry);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const Entry entry("cudaMemcpy", Kind::kWaits);
  RETURN_IF_FAILED(check_unsafe());
  CUstream_st& stream = runtime().legacy[current_device];
  RETURN_IF_FAILED(copy(to, from, bytes, kind, stream, entry));
  do_until(stream, stream.issued);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t handle) {
  const Entry entry("cudaMemsetAsync");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!is_device_memory(data, bytes)) return failed(cudaErrorInvalidValue);
  return give(*stream, [=] {
    if (is_device_memory(data, bytes)) std::memset(data, value, bytes);
  });
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  const Entry entry("cudaMemset");
  RETURN_IF_FAILED(check_unsafe());
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

// ---- Streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  const Entry entry("cudaStreamCreateWithPriority");
  *stream = new CUstream_st;
  (*stream)->device = current_device;
  (*stream)->is_blocking = (flags & cudaStreamNonBlocking) == 0;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Entry entry("cudaStreamDestroy");
  if (runtime().streams.erase(stream) == 0) return failed(cudaErrorInvalidResourceHandle);
  do_until(*stream, stream->issued);
  return cudaSuccess;  // events that were recorded there still look at it
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const Entry entry("cudaStreamQuery");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  RETURN_IF_FAILED(check_unsafe());
  if (stream->capture) {
    invalidate(*stream);
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  return stream->done == stream->issued ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Entry entry("cudaStreamSynchronize", Kind::kWaits);
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  RETURN_IF_FAILED(check_unsafe());
  if (stream->capture) {
    invalidate(*stream);
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  do_until(*stream, stream->issued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Entry entry("cudaStreamWaitEvent");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr || runtime().events.count(event) == 0)
    return failed(cudaErrorInvalidResourceHandle);
  if (event->stream == nullptr) return cudaSuccess;
  if (event->capture) {
    if (!event->capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    if (is_legacy(handle)) {
      event->capture->is_valid = false;
      return failed(cudaErrorStreamCaptureUnsupported);
    }
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      event->capture->streams.insert(stream);
    }
    if (stream == event->capture->origin) event->capture->unjoined.erase(event->stream);
    return cudaSuccess;
  }
  if (stream->capture) {
    invalidate(*stream);
    return failed(cudaErrorStreamCaptureIsolation);
  }
  return give(*stream,
              [other = event->stream, position = event->position] { do_until(*other, position); });
}
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  const Entry entry("cudaStreamAddCallback");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  return give(*stream, [=] { callback(handle, cudaSuccess, data); });
}

// ---- Events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Entry entry("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->device = current_device;
  runtime().events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Entry entry("cudaEventDestroy");
  if (runtime().events.erase(event) == 0) return failed(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
  const Entry entry("cudaEventRecord");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr || runtime().events.count(event) == 0 || event->device != stream->device)
    return failed(cudaErrorInvalidResourceHandle);
  if (stream->capture && !stream->capture->is_valid)
    return failed(cudaErrorStreamCaptureInvalidated);
  event->stream = stream;
  event->capture = stream->capture;
  event->position = stream->issued;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Entry entry("cudaEventQuery");
  if (runtime().events.count(event) == 0) return failed(cudaErrorInvalidResourceHandle);
  if (event->capture) {
    event->capture->is_valid = false;
    return failed(cudaErrorCapturedEvent);
  }
  RETURN_IF_FAILED(check_unsafe());
  return event->stream == nullptr || event->stream->done >= event->position ? cudaSuccess
                                                                            : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Entry entry("cudaEventSynchronize", Kind::kWaits);
  if (runtime().events.count(event) == 0) return failed(cudaErrorInvalidResourceHandle);
  if (event->capture) {
    event->capture->is_valid = false;
    return failed(cudaErrorCapturedEvent);
  }
  RETURN_IF_FAILED(check_unsafe());
  if (event->stream != nullptr) do_until(*event->stream, event->position);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->device != end->device) return failed(cudaErrorInvalidResourceHandle);
  *ms = 1;
  return cudaSuccess;
}

// ---- Graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Entry entry("cudaStreamBeginCapture");
  if (is_legacy(stream)) return failed(cudaErrorStreamCaptureUnsupported);
  if (runtime().streams.count(stream) == 0) return failed(cudaErrorInvalidResourceHandle);
  if (stream->capture) return failed(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->id = ++runtime().last_id;
  capture->streams.insert(stream);
  stream->capture = capture;
  runtime().captures.push_back(std::move(capture));
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Entry entry("cudaStreamEndCapture");
  *graph = nullptr;
  if (is_legacy(stream) || runtime().streams.count(stream) == 0 || !stream->capture)
    return failed(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return failed(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    capture->is_valid = false;
    return failed(cudaErrorStreamCaptureWrongThread);
  }
  for (cudaStream_t member : capture->streams) member->capture = nullptr;
  std::erase(runtime().captures, capture);
  if (!capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
  if (!capture->unjoined.empty()) return failed(cudaErrorStreamCaptureUnjoined);
  *graph = capture->graph.release();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const CUstream_st* const stream = (Entry("cudaStreamIsCapturing"), find(handle));
  if (stream == nullptr) return failed(cudaErrorInvalidResourceHandle);
  *status = !stream->capture            ? cudaStreamCaptureStatusNone
            : stream->capture->is_valid ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  RETURN_IF_FAILED(cudaStreamIsCapturing(handle, status));
  const Entry entry("cudaStreamGetCaptureInfo");
  const std::shared_ptr<Capture> capture = find(handle)->capture;
  if (!capture) return cudaSuccess;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = capture->graph.get();
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long) {
  const Entry entry("cudaGraphInstantiateWithFlags");
  *exec = new CUgraphExec_st{graph->work, current_device};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  const Entry entry("cudaGraphLaunch");
  CUstream_st* const stream = find(handle);
  if (stream == nullptr || stream->device != exec->device)
    return failed(cudaErrorInvalidResourceHandle);
  return give(*stream, [work = exec->work] {
    for (const Work& each : work) each();
  });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->work.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return cudaSuccess;
}

// ---- What no test needs ----

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return failed(cudaErrorNotSupported);
}

}  // extern "C"

// ---- The driver's functions for expandable segments ----

namespace {

CUresult mem_address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  const Entry entry("cuMemAddressReserve");
  char* const memory = map_memory(bytes, PROT_NONE);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  runtime().reserved[memory] = {bytes, current_device};
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
CUresult mem_address_free(CUdeviceptr address, size_t bytes) {
  const Entry entry("cuMemAddressFree");
  if (runtime().reserved.erase(reinterpret_cast<char*>(address)) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes,
                    const CUmemAllocationProp* properties, unsigned long long) {
  const Entry entry("cuMemCreate");
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = properties->location.id;
  if (runtime().used[device] + bytes > kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  runtime().used[device] += bytes;
  *handle = ++runtime().last_id;
  runtime().handles[*handle] = {bytes, device};
  return CUDA_SUCCESS;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const Entry entry("cuMemRelease");
  const auto found = runtime().handles.find(handle);
  if (found == runtime().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  runtime().used[found->second.device] -= found->second.bytes;
  runtime().handles.erase(found);
  return CUDA_SUCCESS;
}
CUresult mem_map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                 unsigned long long) {
  const Entry entry("cuMemMap");
  const auto found = runtime().handles.find(handle);
  if (found == runtime().handles.end() || found->second.bytes != bytes ||
      address % kGranularity % 4096 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
  runtime().device_memory[reinterpret_cast<char*>(address)] = found->second;
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  const Entry entry("cuMemUnmap");
  const auto found = runtime().device_memory.find(reinterpret_cast<char*>(address));
  if (found == runtime().device_memory.end() || found->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  runtime().device_memory.erase(found);
  madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTNEED);
  mprotect(reinterpret_cast<void*>(address), bytes, PROT_NONE);
  return CUDA_SUCCESS;
}
CUresult mem_set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
CUresult mem_granularity(size_t* bytes, const CUmemAllocationProp*,
                         CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "an error of the null driver";
  return CUDA_SUCCESS;
}
CUresult not_supported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> functions = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(mem_address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(mem_address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(mem_create)},
      {"cuMemRelease", reinterpret_cast<void*>(mem_release)},
      {"cuMemMap", reinterpret_cast<void*>(mem_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(mem_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(mem_set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(mem_granularity)},
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)}};
  const auto found = functions.find(symbol);
  *function = found == functions.end() ? reinterpret_cast<void*>(not_supported) : found->second;
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
