#include "host/media/file_head.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "atelier/error.h"

#include "host/report/open_failure.h"

namespace atelier::media {
namespace {

// What tells any kind: a transport stream by two packets of up to 192 bytes.
constexpr size_t kHeadBytes = 400;

}  // namespace

std::string read_head(const std::filesystem::path& path) {
  std::string head(kHeadBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int why = errno;
    throw Error(report::open_failure(why), path.string() + ": " + std::strerror(why));
  }
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool has_text(std::string_view head, size_t at, std::string_view text) {
  return head.size() >= at && head.substr(at).starts_with(text);
}

std::string_view name_of_text(std::string_view head) {
  struct Kind {
    std::string_view begin, name;
  };
  constexpr Kind kKinds[] = {{"#EXTM3U", "an HLS playlist"},    {"[playlist]", "a playlist"},
                             {"v=0\r\n", "an SDP description"}, {"v=0\n", "an SDP description"},
                             {"<!DOCTYPE html", "a web page"},  {"<html", "a web page"}};
  for (const Kind& kind : kKinds)
    if (has_text(head, 0, kind.begin)) return kind.name;
  const bool is_text = std::ranges::none_of(head, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7F;
  });
  return is_text ? "text" : "";
}

bool is_lfs_pointer(std::string_view head) {
  return has_text(head, 0, "version https://git-lfs");
}

}  // namespace atelier::media
