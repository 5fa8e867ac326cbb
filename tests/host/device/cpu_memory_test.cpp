#include "host/device/cpu_memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "tests/support/files.h"

namespace atelier::device {
namespace {

// The program's allocator while it lives, then that of the tests around it.
struct ReusedMemory {
  at::Allocator* before = at::GetCPUAllocator();
  ReusedMemory() { keep_freed_memory(); }
  ~ReusedMemory() { at::SetCPUAllocator(before); }
};

constexpr size_t kBlockBytes = size_t{1} << 20;

int64_t own_bytes() {
  int64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

// Leaves so many blocks behind, none of which the next larger one fits into.
void leave_holes(int count, std::vector<std::unique_ptr<char[]>>& kept) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < count; ++i) {
    for (auto* const list : {&blocks, &kept}) {
      list->push_back(std::make_unique<char[]>(list == &kept ? 64 : kBlockBytes));
      std::memset(list->back().get(), 1, list == &kept ? 64 : kBlockBytes);
    }
  }
}

uintptr_t address(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data_ptr());
}

}  // namespace

TEST_CASE("A tensor takes the place of a freed one of its size", "[cpu_memory]") {
  const ReusedMemory reused;
  // Blocks of all sizes around the alignment, and of a size that no allocation of the test has.
  for (const int64_t bytes : {8'388'608, 8'388'608 + 16, 8'388'608 + 48, 12'582'912 + 7}) {
    const at::Tensor below = at::empty({bytes}, at::kByte);
    at::Tensor freed = at::empty({bytes}, at::kByte);
    const at::Tensor above = at::empty({bytes}, at::kByte);
    const uintptr_t place = address(freed);
    freed.reset();
    CHECK(address(at::empty({bytes}, at::kByte)) == place);
    CHECK(address(below) != address(above));
  }
}

TEST_CASE("Tensors are aligned as LibTorch's are", "[cpu_memory]") {
  const ReusedMemory reused;
  std::vector<at::Tensor> tensors;
  for (int64_t bytes = 1; bytes < 300; ++bytes) {
    tensors.push_back(at::full({bytes}, bytes % 251, at::kByte));
    CHECK(address(tensors.back()) % 64 == 0);
  }
  for (int64_t bytes = 1; bytes < 300; ++bytes) {
    const at::Tensor& tensor = tensors[static_cast<size_t>(bytes - 1)];
    CHECK(tensor.eq(bytes % 251).all().item<bool>());
  }
}

TEST_CASE("Empty tensors take no memory, and grow", "[cpu_memory]") {
  const ReusedMemory reused;
  at::Tensor tensor = at::empty({0}, at::kFloat);
  CHECK(tensor.data_ptr() == nullptr);
  tensor.resize_({1000}).fill_(2.0);
  CHECK(tensor.sum().item<float>() == 2000.0f);
}

TEST_CASE("A tensor that does not fit is told as such", "[cpu_memory]") {
  const ReusedMemory reused;
  CHECK_THROWS_AS(at::empty({int64_t{1} << 60}, at::kByte), c10::OutOfMemoryError);
}

TEST_CASE("Tensors may outlive the allocator's use", "[cpu_memory]") {
  at::Tensor tensor;
  {
    const ReusedMemory reused;
    tensor = at::ones({1 << 20});
  }
  CHECK(tensor.sum().item<float>() == static_cast<float>(1 << 20));
  tensor.reset();
}

TEST_CASE("What is freed stays for the next work, but for more than is allowed", "[cpu_memory]") {
  const ReusedMemory reused;
  std::vector<std::unique_ptr<char[]>> kept;
  const int64_t before = own_bytes();
  leave_holes(96, kept);
  const int64_t most = int64_t{64} << 20;
  CHECK(own_bytes() - before > most);
  bound_freed_memory(2 * most);
  CHECK(own_bytes() - before > most);
  bound_freed_memory(most);
  CHECK(own_bytes() - before < most / 2);
}

TEST_CASE("The user's number of kernels is kept", "[cpu_memory]") {
  for (const char* name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    unsetenv(name);
    keep_kernels(3);
    CHECK(std::string(std::getenv(name)) == "3");
    keep_kernels(4);
    CHECK(std::string(std::getenv(name)) == "3");
  }
}

}  // namespace atelier::device
