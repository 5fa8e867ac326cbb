#include "host/run/metrics.h"

#include <unistd.h>

#include "faulty_files.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::run;
using test::Folder;
using test::read_bytes;

namespace {

// A disk that is full until `is_full` is taken back, and takes half a write before it says so.
class FullDisk final : public files::FileOperations {
 public:
  bool is_full = false;

  ssize_t write(int file, const void* bytes, size_t count) override {
    if (!is_full) return FileOperations::write(file, bytes, count);
    if (count > 10) return FileOperations::write(file, bytes, count / 2);
    errno = ENOSPC;
    return -1;
  }
};

// Runs `action` with stderr in a file, and returns what it wrote there.
template <class Action>
std::string stderr_of(const std::string& path, Action action) {
  std::fflush(stderr);
  const int saved = dup(2), file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, 2);
  action();
  std::fflush(stderr);
  dup2(saved, 2);
  close(saved);
  close(file);
  return read_bytes(path);
}

}  // namespace

TEST_CASE("A full disk costs rows, is told once, and leaves no broken row", "[metrics]") {
  Folder folder;
  const std::string path = folder / "logs/metrics.csv";
  FullDisk disk;
  const files::ReplacedFileOperations replaced(disk);
  const auto csv = open_csv(path, 0);
  const std::string told = stderr_of(folder / "stderr", [&] {
    csv->write(1, {{"loss", 0.25}});
    disk.is_full = true;
    csv->write(2, {{"loss", 0.125}});
    csv->write(3, {{"loss", 0.125}});
    disk.is_full = false;
    csv->write(4, {{"loss", 0.5}});
  });
  CHECK(read_bytes(path) == "step,key,value\n1,loss,0.25\n4,loss,0.5\n");
  CHECK_THAT(told, Catch::Contains("metrics.csv: cannot be written: No space left on device"));
  CHECK(std::count(told.begin(), told.end(), '\n') == 1);
}

TEST_CASE("Rows are there as soon as they are written", "[metrics]") {
  Folder folder;
  const auto csv = open_csv(folder / "m.csv", 0);
  csv->write(7, {{"b", 1}, {"a", -0.5}});
  CHECK(read_bytes(folder / "m.csv") == "step,key,value\n7,a,-0.5\n7,b,1\n");
}

TEST_CASE("Metrics of a folder that cannot be written say so", "[metrics]") {
  Folder folder;
  test::write_bytes(folder / "file", "");
  test::expect_error(ErrorCode::kEnvironment, {"file"},
                     [&] { open_tensorboard(folder / "file/logs"); });
  test::expect_error(ErrorCode::kEnvironment, {"file"}, [&] { open_csv(folder / "file/m", 0); });
}
