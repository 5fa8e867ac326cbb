#include "host/files/file_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "formats/escape.h"
#include "formats/pth.h"
#include "host/report/open_failure.h"
#include "host/report/text.h"

namespace atelier::files {

namespace {

constexpr uint64_t kMaxRead = uint64_t{1} << 30;  // pread gives at most 2 GiB at once
constexpr uint64_t kSniffBytes = 512;

}  // namespace

std::string display_path(const std::string& path) {
  std::string quoted = formats::quote_and_escape(path, 4096);
  const bool plain =
      quoted.size() == path.size() + 2 && path.find_first_of(" ;") == std::string::npos;
  return plain && !path.empty() ? path : quoted;
}

Error at_file(const std::string& path, const formats::ParseError& error, ErrorCode code) {
  std::string place = display_path(path);
  if (error.line) {
    place += ":" + std::to_string(*error.line);
  } else if (error.byte) {
    place += ":byte " + std::to_string(*error.byte);
  }
  return Error(code, place + ": " + error.what(), error.hint, error.tag);
}

FileReader::FileReader(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a named pipe must not hang.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    const int why = errno;
    const ErrorCode code = report::open_failure(why);
    throw Error(code, display_path(path_) + ": " + std::strerror(why),
                code == ErrorCode::kEnvironment ? "check the file's permissions" : "check the path",
                "FILE_OPEN");
  }
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw Error(ErrorCode::kInvalidArgument, display_path(path_) + ": it is no regular file",
                "pass a file", "FILE_KIND");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

FileReader::~FileReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileReader::read(void* to, uint64_t begin, uint64_t bytes) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got =
        pread(descriptor_, out, std::min(bytes, kMaxRead), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(
          ErrorCode::kEnvironment,
          display_path(path_) + ":byte " + std::to_string(begin) + ": " + std::strerror(errno),
          "check the disk", "FILE_READ");
    if (got == 0)
      throw Error(ErrorCode::kDataLoss,
                  display_path(path_) + ":byte " + std::to_string(begin) +
                      ": the file ends here, " + std::to_string(bytes) + " bytes before it should",
                  "it was cut while it was being read; download or copy it again", "FILE_CHANGED");
    out += got;
    begin += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

formats::SafetensorsHeader read_header(const FileReader& file) {
  const std::string extension = std::filesystem::path(file.path()).extension().string();
  std::string first(std::min(kSniffBytes, file.size()), '\0');
  file.read(first.data(), 0, first.size());
  if (const auto other_kind = formats::sniff(first, extension))
    throw at_file(file.path(), *other_kind, ErrorCode::kUnsupported);
  try {
    const uint64_t length =
        formats::read_header_length(std::string_view(first).substr(0, 8), file.size());
    std::string text(length, '\0');
    file.read(text.data(), 8, length);
    formats::SafetensorsHeader header = formats::parse_safetensors_header(text, file.size());
    if (const auto packing = formats::find_unsupported_packing(header))
      throw at_file(file.path(), *packing, ErrorCode::kUnsupported);
    return header;
  } catch (const formats::ParseError& error) {
    throw at_file(file.path(), error, ErrorCode::kDataLoss);
  }
}

namespace {

FileTensors read_archive(const FileReader& file) {
  const auto read = [&](uint64_t begin, uint64_t bytes) {
    std::string text(bytes, '\0');
    file.read(text.data(), begin, bytes);
    return text;
  };
  try {
    formats::PthIndex index = formats::read_pth(file.size(), read);
    FileTensors result;
    result.header_end = index.pickle_end;
    result.is_big_endian = index.is_big_endian;
    for (formats::PthTensor& tensor : index.tensors) {
      result.tensors.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                                std::move(tensor.strides), tensor.begin, tensor.end});
    }
    return result;
  } catch (const formats::ParseError& error) {
    const bool is_refused = error.tag == "PTH_GLOBAL" || error.tag == "PTH_OPCODE" ||
                            error.tag == "PTH_ARCHIVE" || error.tag == "PTH_SCRIPT" ||
                            error.tag == "PTH_DICT" || error.tag == "ZIP_COMPRESSED";
    throw at_file(file.path(), error, is_refused ? ErrorCode::kUnsupported : ErrorCode::kDataLoss);
  }
}

FileTensors read_gguf(const FileReader& file) {
  const auto read = [&](uint64_t begin, uint64_t bytes) {
    std::string text(bytes, '\0');
    file.read(text.data(), begin, bytes);
    return text;
  };
  try {
    formats::GgufIndex index = formats::read_gguf(file.size(), read);
    FileTensors result;
    result.metadata = std::move(index.metadata);
    result.header_end = index.header_end;
    for (formats::GgufTensor& tensor : index.tensors) {
      const std::optional<formats::DType> plain = formats::plain_dtype(tensor.type);
      result.tensors.push_back({std::move(tensor.name),
                                plain.value_or(formats::DType::kBF16),
                                std::move(tensor.shape),
                                {},
                                tensor.begin,
                                tensor.end,
                                plain ? std::nullopt : std::optional(tensor.type)});
    }
    return result;
  } catch (const formats::ParseError& error) {
    const bool is_refused = error.tag == "GGUF_VERSION" || error.tag == "GGUF_TYPE";
    throw at_file(file.path(), error, is_refused ? ErrorCode::kUnsupported : ErrorCode::kDataLoss);
  }
}

}  // namespace

FileTensors read_tensors(const FileReader& file) {
  std::string first(std::min(kSniffBytes, file.size()), '\0');
  file.read(first.data(), 0, first.size());
  const auto other_kind = formats::sniff(first, {});
  if (other_kind && other_kind->tag == "ST_ZIP") return read_archive(file);
  if (other_kind && other_kind->tag == "ST_GGUF") return read_gguf(file);
  formats::SafetensorsHeader header = read_header(file);
  FileTensors result;
  result.metadata = std::move(header.metadata);
  result.header_end = header.data_begin;
  for (formats::TensorEntry& entry : header.tensors) {
    result.tensors.push_back({std::move(entry.name),
                              entry.dtype,
                              std::move(entry.shape),
                              {},
                              header.data_begin + entry.begin,
                              header.data_begin + entry.end});
  }
  return result;
}

std::string read_text_file(const std::string& path, uint64_t max_bytes) {
  const FileReader file(path);
  if (file.size() > max_bytes)
    throw Error(ErrorCode::kInvalidArgument,
                display_path(path) + ": " + report::bytes_text(file.size()) + ", at most " +
                    report::bytes_text(max_bytes) + " are read",
                "is it the right file?", "FILE_TOO_LARGE");
  std::string text(file.size(), '\0');
  file.read(text.data(), 0, text.size());
  return text;
}

}  // namespace atelier::files
