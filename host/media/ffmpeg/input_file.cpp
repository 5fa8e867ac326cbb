#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include "host/media/ffmpeg/demuxer.h"
#include "host/report/open_failure.h"

namespace atelier::media::ffmpeg {
namespace {

uint64_t big_endian(const uint8_t* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | bytes[i];
  return value;
}

// The end of the first box of an MP4 file that holds media and goes beyond the file.
int64_t declared_by_boxes(InputFile& file) {
  int64_t at = 0;
  std::array<uint8_t, 16> head;
  while (at < file.size() && file.read_at(at, head.data(), 16) >= 8) {
    uint64_t size = big_endian(head.data(), 4);
    if (size == 1) size = big_endian(head.data() + 8, 8);
    if (size < 8 || size > INT64_MAX / 2) return 0;  // 0: to the end of the file
    const std::string_view type(reinterpret_cast<const char*>(head.data()) + 4, 4);
    const int64_t end = at + static_cast<int64_t>(size);
    if (end > file.size()) return type == "mdat" || type == "moov" || type == "moof" ? end : 0;
    at = end;
  }
  return 0;
}

// The length of a RIFF file: "RIFF", its length behind here, and what it holds, 12 bytes.
int64_t declared_by_riff(const std::array<uint8_t, 12>& head) {
  const int64_t length =
      int64_t{head[4]} | int64_t{head[5]} << 8 | int64_t{head[6]} << 16 | int64_t{head[7]} << 24;
  // Recorders that write a sound into a pipe do not know it, and put the largest number there.
  constexpr int64_t kUnknown = 0x7fff'0000;
  const bool is_sound =
      std::string_view(reinterpret_cast<const char*>(head.data()) + 8, 4) == "WAVE";
  if (is_sound && length >= kUnknown) return 0;
  return 8 + (is_sound ? length & ~int64_t{1} : length);  // an odd one may lack its last zero
}

// An element of Matroska: where its contents begin and end; `end` is 0 where the file does not say.
struct Element {
  int64_t begin = 0, end = 0;
};
Element read_element(InputFile& file, int64_t at) {
  std::array<uint8_t, 16> head{};
  if (file.read_at(at, head.data(), 16) < 16) return {};
  const int id_bytes = 1 + std::countl_zero(head[0]);
  if (id_bytes > 4) return {};
  const uint8_t first = head[id_bytes];
  const int size_bytes = 1 + std::countl_zero(first);
  if (size_bytes > 8) return {};
  const uint64_t mask = (uint64_t{1} << (7 * size_bytes)) - 1;
  const uint64_t size = big_endian(head.data() + id_bytes, size_bytes) & mask;
  const int64_t begin = at + id_bytes + size_bytes;
  if (size == mask) return {begin, 0};
  return {begin, begin + static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX / 2))};
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) {
  const auto fail = [&](int why) {
    if (descriptor_ >= 0) close(descriptor_);
    return Error(report::open_failure(why), path.string() + ": " + std::strerror(why));
  };
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw fail(errno);
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) throw fail(errno);
  if (!S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": not a regular file");
  }
  size_ = status.st_size;
}

InputFile::~InputFile() {
  close(descriptor_);
}

int InputFile::read_at(int64_t begin, uint8_t* to, int bytes) {
  int done = 0;
  while (done < bytes) {
    const ssize_t count =
        pread(descriptor_, to + done, static_cast<size_t>(bytes - done), begin + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return AVERROR(errno);
    if (count == 0) break;
    done += static_cast<int>(count);
  }
  return done;
}

int InputFile::read(void* file, uint8_t* to, int bytes) {
  auto& self = *static_cast<InputFile*>(file);
  const int count = self.read_at(self.position_, to, bytes);
  if (count > 0) self.position_ += count;
  return count == 0 ? AVERROR_EOF : count;
}

int64_t InputFile::seek(void* file, int64_t offset, int whence) {
  auto& self = *static_cast<InputFile*>(file);
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return self.size_;
  const int64_t base = whence == SEEK_SET   ? 0
                       : whence == SEEK_CUR ? self.position_
                       : whence == SEEK_END ? self.size_
                                            : -1;
  int64_t target = 0;
  if (base < 0 || __builtin_add_overflow(base, offset, &target) || target < 0)
    return AVERROR(EINVAL);
  return self.position_ = target;
}

int64_t declared_length(InputFile& file) {
  std::array<uint8_t, 12> head{};
  if (file.read_at(0, head.data(), 12) < 12) return 0;
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("\x1a\x45\xdf\xa3")) {
    const Element header = read_element(file, 0);
    return header.end == 0 ? 0 : read_element(file, header.end).end;
  }
  if (text.starts_with("RIFF")) return declared_by_riff(head);
  return declared_by_boxes(file);
}

}  // namespace atelier::media::ffmpeg
