#include "atelier/host/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/ops/conv.h"

#include "tests/support/files.h"

namespace atelier {
namespace {

constexpr size_t kPages = 8;

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// A file of numbers, mapped privately.
struct Mapping {
  test::Folder folder;
  size_t bytes = kPages * page_bytes();
  float* data = nullptr;

  Mapping() {
    const at::Tensor numbers = at::arange(static_cast<int64_t>(bytes / sizeof(float)), at::kFloat);
    test::write_bytes(folder / "numbers",
                      {static_cast<const char*>(numbers.const_data_ptr()), bytes});
    const int file = open((folder / "numbers").c_str(), O_RDONLY);
    data = static_cast<float*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
    close(file);
    REQUIRE(data != MAP_FAILED);
  }
  ~Mapping() { munmap(data, bytes); }

  at::Tensor all() const {
    return at::from_blob(data, {static_cast<int64_t>(bytes / sizeof(float))}, at::kFloat);
  }
  // Pages that were written to, and so are not the file's.
  bool is_written(size_t page) const { return data[page * page_bytes() / sizeof(float)] < 0; }
  void write() const {
    for (size_t page = 0; page < kPages; ++page) data[page * page_bytes() / sizeof(float)] = -1;
  }
};

}  // namespace

TEST_CASE("Whole pages of a mapped file are given back, and come again as the file has them",
          "[file_pages]") {
  const Mapping mapping;
  mapping.write();  // shows below which pages went
  const auto numbers = static_cast<int64_t>(page_bytes() / sizeof(float));

  give_back_pages(mapping.all());
  for (size_t page = 0; page < kPages; ++page) CHECK(mapping.is_written(page));

  note_file(mapping.data, mapping.bytes);
  // From the middle of page 1 to the middle of page 4.
  give_back_pages(mapping.all().narrow(0, numbers + numbers / 2, 3 * numbers));
  for (size_t page = 0; page < kPages; ++page)
    CHECK(mapping.is_written(page) == !(page == 2 || page == 3));

  give_back_pages(mapping.all().narrow(0, 0, numbers / 2));
  CHECK(mapping.is_written(0));
  give_back_pages(mapping.all());
  CHECK(at::equal(mapping.all(), at::arange(mapping.all().numel(), at::kFloat)));

  mapping.write();
  forget_file(mapping.data);
  give_back_pages(mapping.all());
  for (size_t page = 0; page < kPages; ++page) CHECK(mapping.is_written(page));
}

TEST_CASE("A kernel that is kept channels-last leaves the file, unless it was changed",
          "[file_pages][conv]") {
  const Mapping mapping;
  note_file(mapping.data, mapping.bytes);
  const at::Tensor x = at::ones({1, 64, 2, 2});
  for (const bool is_changed : {false, true}) {
    mapping.write();  // behind LibTorch's back
    const at::Tensor values = mapping.all().view({-1, 64, 2, 2});
    if (is_changed) values.fill_(-2);
    const auto kernel = std::make_shared<Weight>("kernel", values.sizes().vec());
    kernel->set(values);
    const at::Tensor y = ops::conv2d(x, kernel, nullptr, {});
    for (size_t page = 0; page < kPages; ++page) CHECK(mapping.is_written(page) == is_changed);
    CHECK(at::equal(ops::conv2d(x, kernel, nullptr, {}), y));
  }
  forget_file(mapping.data);
}

}  // namespace atelier
