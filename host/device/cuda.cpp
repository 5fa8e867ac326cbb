#include "host/device/cuda.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <limits.h>
#include <regex>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "atelier/error.h"

namespace atelier::device {

namespace {

constexpr int kNeededCuda = 13000;  // cuDriverGetVersion of driver 580
constexpr const char* kNeeded = "CUDA 13 needs driver 580 or newer";
constexpr const char* kReinstall = "build or install it together with the program";

// From the kernel module: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::smatch match;
  if (std::getline(file, line) &&
      std::regex_search(line, match, std::regex(R"((\d+\.\d+(\.\d+)?))")))
    return match[1];
  return {};
}

// The library lies in lib/ beside bin/, where the program is.
std::string backend_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return std::filesystem::path(program.substr(0, program.rfind('/')) + "/../lib/libatelier_cuda.so")
      .lexically_normal()
      .string();
}

// What libatelier_cuda.so does for the program.
struct Backend {
  void* library = nullptr;
  using Open = const char* (*)();
  using LimitMemory = const char* (*)(int device, int64_t bytes);
  Open open = nullptr;
  LimitMemory limit_memory = nullptr;
};

// The library's functions, once it is open.
Backend& backend() {
  static Backend instance;
  return instance;
}

CudaStatus probe() {
  CudaStatus status;
  status.driver = driver_version();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    status.reason = status.driver.empty()
                        ? "no NVIDIA driver is installed"
                        : "driver " + status.driver + " is loaded but libcuda.so.1 is not found";
    return status;
  }
  using Init = int (*)(unsigned);
  using GetInt = int (*)(int*);
  auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  auto get_version = reinterpret_cast<GetInt>(dlsym(driver, "cuDriverGetVersion"));
  auto get_count = reinterpret_cast<GetInt>(dlsym(driver, "cuDeviceGetCount"));
  int version = 0;
  if (init == nullptr || get_version == nullptr || get_count == nullptr ||
      get_version(&version) != 0) {
    status.reason = "libcuda.so.1 does not answer";
    return status;
  }
  if (version < kNeededCuda) {
    const std::string found = status.driver.empty()
                                  ? "a driver for CUDA " + std::to_string(version / 1000) + "." +
                                        std::to_string(version % 1000 / 10)
                                  : "driver " + status.driver;
    status.reason = found + " found, " + kNeeded;
    return status;
  }
  if (const int code = init(0);
      code != 0 || get_count(&status.device_count) != 0 || status.device_count == 0) {
    status.reason = "the driver finds no GPU (cuInit gives " + std::to_string(code) + ")";
    return status;
  }
  // LibTorch reads this when its CUDA library is loaded: segments that grow leave no gaps where
  // components come and go.
  if (getenv("PYTORCH_ALLOC_CONF") == nullptr)
    setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
  // LibTorch reads this at the first attention by cuDNN: lengths up to the same power of two share
  // a plan, which takes half a second to make.
  setenv("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", "1", /*overwrite=*/0);
  const std::string path = backend_path();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    status.reason = path + " cannot be opened: " + dlerror();
    status.remedy = kReinstall;
    return status;
  }
  backend() = {library, reinterpret_cast<Backend::Open>(dlsym(library, "atelier_cuda_open")),
               reinterpret_cast<Backend::LimitMemory>(dlsym(library, "atelier_cuda_limit_memory"))};
  const bool is_whole = backend().open != nullptr && backend().limit_memory != nullptr;
  const char* problem = is_whole ? backend().open() : "is not of this version of the program";
  if (problem != nullptr) {
    status.reason = path + ": " + problem;
    status.remedy = is_whole ? "" : kReinstall;
    return status;
  }
  at::Context& context = at::globalContext();
  context.setAllowTF32CuDNN(false);  // float32 has 24 bits there, too
  // Sums of products are float32 to their end, also where a product is split.
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  status.usable = true;
  return status;
}

[[noreturn]] void refuse(const CudaStatus& status) {
  throw Error(ErrorCode::kEnvironment, "no GPU can be used: " + status.reason,
              (status.remedy.empty() ? "mend that" : status.remedy) + ", or pass --device cpu");
}

}  // namespace

const CudaStatus& open_cuda() {
  static const CudaStatus status = probe();
  return status;
}

void* cuda_function(const char* name) {
  void* const function = backend().library == nullptr ? nullptr : dlsym(backend().library, name);
  if (function == nullptr)
    throw Error(ErrorCode::kEnvironment, backend_path() + " lacks " + name, kReinstall);
  return function;
}

GpuFacts gpu_facts(int index) {
  GpuFacts facts;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return facts;
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto memory = reinterpret_cast<int (*)(size_t*, int)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  if (name == nullptr || memory == nullptr || attribute == nullptr || version == nullptr)
    return facts;
  char text[128] = "";
  size_t bytes = 0;
  int major = 0, minor = 0;
  constexpr int kMajor = 75,
                kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
  name(text, sizeof(text), index);
  memory(&bytes, index);
  attribute(&major, kMajor, index);
  attribute(&minor, kMinor, index);
  version(&facts.driver_cuda);
  facts.name = text, facts.memory_bytes = bytes, facts.capability = 10 * major + minor;
  return facts;
}

std::string backend_identity() {
  struct stat status {};
  if (stat(backend_path().c_str(), &status) != 0) return {};
  return std::to_string(status.st_size) + " bytes of " + std::to_string(status.st_mtim.tv_sec) +
         "." + std::to_string(status.st_mtim.tv_nsec);
}

std::string gpu_identity(int index) {
  using GetDevice = int (*)(int*, int);
  using GetUuid = int (*)(unsigned char*, int);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto find = [&](const char* name) {
    return driver == nullptr ? nullptr : dlsym(driver, name);
  };
  const auto get_device = reinterpret_cast<GetDevice>(find("cuDeviceGet"));
  const auto get_uuid = reinterpret_cast<GetUuid>(find("cuDeviceGetUuid_v2"));
  int device = 0;
  std::array<unsigned char, 16> uuid = {};
  if (get_device == nullptr || get_uuid == nullptr || get_device(&device, index) != 0 ||
      get_uuid(uuid.data(), device) != 0)
    throw Error(ErrorCode::kEnvironment,
                "GPU " + std::to_string(index) + " does not say which one it is");
  std::string text = "GPU-";
  for (const unsigned char byte : uuid) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void limit_memory(at::Device device, int64_t bytes) {
  if (!device.is_cuda()) return;
  const char* problem = backend().limit_memory(device.has_index() ? device.index() : 0, bytes);
  if (problem != nullptr)
    throw Error(ErrorCode::kEnvironment,
                std::string("the GPU's memory cannot be limited: ") + problem, "leave --vram out");
}

at::Device choose(std::string_view name) {
  if (name == "cpu") return at::kCPU;
  if (at::isPrivateUse1HooksRegistered() &&
      name.substr(0, name.find(':')) == c10::get_privateuse1_backend())
    return at::Device(std::string(name));
  const CudaStatus& status = open_cuda();
  if (name == "auto") {
    if (status.usable) return at::Device(at::kCUDA, 0);
    // A GPU that is there is used or the reason is given: never silently the CPU.
    if (!status.driver.empty()) refuse(status);
    return at::kCPU;
  }
  int index = 0;
  const bool numbered = name.starts_with("cuda:");
  if (numbered) {
    const auto [end, failure] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (failure != std::errc() || end != name.data() + name.size() || index < 0) name = {};
  }
  if (name != "cuda" && !numbered)
    throw Error(ErrorCode::kInvalidArgument, "--device '" + std::string(name) + "' is not known",
                "use auto, cpu, cuda or cuda:N");
  if (name.empty())
    throw Error(ErrorCode::kInvalidArgument, "--device has a wrong GPU number",
                "use cuda:N with N from 0");
  if (!status.usable) refuse(status);
  if (index >= status.device_count)
    throw Error(ErrorCode::kEnvironment,
                "--device cuda:" + std::to_string(index) + ": only " +
                    std::to_string(status.device_count) + " GPU(s) are present",
                "use a smaller number");
  const at::Device chosen(at::kCUDA, static_cast<at::DeviceIndex>(index));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(chosen);
  return chosen;
}

}  // namespace atelier::device
