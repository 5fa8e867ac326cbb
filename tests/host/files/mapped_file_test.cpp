#include "host/files/mapped_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.h"

namespace {

using atelier::Error;
using atelier::ErrorCode;
using atelier::files::MappedFile;
using atelier::test::Folder;

constexpr uint64_t kBytes = 64 << 10;

// Four bytes 01 00 00 00 after another: int32 ones.
std::string make_file(const Folder& folder) {
  std::string bytes;
  for (uint64_t i = 0; i < kBytes; i += 4) bytes += std::string("\1\0\0\0", 4);
  atelier::test::write_bytes(folder / "a.bin", bytes);
  return folder / "a.bin";
}

}  // namespace

TEST_CASE("A mapped tensor has the file's values and keeps it mapped", "[checkpoint]") {
  const Folder folder;
  const std::string path = make_file(folder);
  auto file = MappedFile::open(path, kBytes);
  file->populate(0, kBytes);
  const at::Tensor tensor = file->tensor(8, {4, 5}, at::kInt);
  file.reset();
  CHECK(tensor.sum().item<int64_t>() == 20);
}

TEST_CASE("Writing to a mapped tensor leaves the file alone", "[checkpoint]") {
  const Folder folder;
  const std::string path = make_file(folder);
  const std::string before = atelier::test::read_bytes(path);
  const at::Tensor tensor = MappedFile::open(path, kBytes)->tensor(0, {kBytes / 4}, at::kInt);
  tensor.fill_(7);
  CHECK(tensor.sum().item<int64_t>() == 7 * int64_t{kBytes} / 4);
  CHECK(atelier::test::read_bytes(path) == before);
}

TEST_CASE("A file of another length than before is not mapped", "[checkpoint]") {
  const Folder folder;
  const std::string path = make_file(folder);
  const Error error = atelier::test::error_of([&] { MappedFile::open(path, kBytes + 1); });
  CHECK(error.code() == ErrorCode::kDataLoss);
  CHECK_THAT(error.message(), Catch::Contains("a.bin"));
}

TEST_CASE("A file that shrinks while it is mapped ends the process with its name", "[checkpoint]") {
  const Folder folder;
  const std::string path = make_file(folder);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    atelier::files::report_lost_pages();
    const auto file = MappedFile::open(path, kBytes);
    const at::Tensor tensor = file->tensor(kBytes / 2, {1}, at::kInt);
    if (truncate(path.c_str(), 4096) != 0) _exit(1);
    _exit(*tensor.data_ptr<int>() == 1 ? 0 : 2);
  }
  close(pipe_ends[1]);
  std::string text;
  char part[256];
  for (ssize_t count; (count = read(pipe_ends[0], part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(count));
  }
  close(pipe_ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  CHECK_THAT(text, Catch::Contains("a.bin") && Catch::Contains("[FILE_CHANGED]"));
}

TEST_CASE("Bringing a shrunken file into memory is an error", "[checkpoint]") {
  const Folder folder;
  const std::string path = make_file(folder);
  const auto file = MappedFile::open(path, kBytes);
  REQUIRE(truncate(path.c_str(), 4096) == 0);
  try {
    file->populate(0, kBytes);
    WARN("this kernel cannot populate a mapping");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDataLoss);
  }
}
