#include "host/run/appended_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "host/files/file_operations.h"
#include "host/files/file_reader.h"

namespace atelier::run {

using files::file_operations;

AppendedFile::AppendedFile(std::string path, bool is_new) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (is_new ? O_EXCL : 0);
  file_ = file_operations().open(path_.c_str(), flags, 0666);
  if (file_ < 0) files::fail_on_file(path_, "cannot be written", errno);
  size_ = lseek(file_, 0, SEEK_END);
}

AppendedFile::~AppendedFile() {
  file_operations().close(file_);
}

void AppendedFile::append(std::string_view bytes) {
  const int why = files::write_all(file_, bytes.data(), bytes.size());
  if (why == 0) {
    size_ += static_cast<int64_t>(bytes.size());
    return;
  }
  // Should this fail as well, the piece stays, and readers see one broken row.
  static_cast<void>(file_operations().truncate(file_, size_));
  if (std::exchange(has_warned_, true)) return;
  std::fprintf(stderr, "warning: %s: cannot be written: %s; the run goes on without these rows\n",
               files::display_path(path_).c_str(), std::strerror(why));
}

}  // namespace atelier::run
