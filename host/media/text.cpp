#include "host/media/text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/json.h"
#include "host/media/byte_reader.h"
#include "host/media/codec.h"
#include "host/media/text_codec.h"

namespace atelier::media {

namespace {

using Json = nlohmann::ordered_json;

std::string_view view_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the comments in front of a GIF's first frame say.
std::string gif_comment(std::span<const uint8_t> bytes) {
  constexpr uint8_t kExtension = 0x21, kComment = 0xfe, kHasColors = 0x80;
  const ByteReader reader(bytes);
  const uint8_t screen = reader.u8(10);
  size_t at = 13;
  if ((screen & kHasColors) != 0) at += size_t{6} << (screen & 7);
  std::string comment;
  while (reader.u8(at) == kExtension) {
    const bool is_comment = reader.u8(at + 1) == kComment;
    at += 2;
    for (size_t size = 0; (size = reader.u8(at)) > 0; at += 1 + size) {
      reader.require(at + 1, size);
      if (is_comment) comment += view_of(bytes.subspan(at + 1, size));
    }
    ++at;
  }
  return comment;
}

// What the EXIF data of a WebP file says.
std::string webp_comment(std::span<const uint8_t> bytes) {
  constexpr size_t kFileHead = 12, kHead = 8;
  const ByteReader reader(bytes);
  for (size_t at = kFileHead; at + kHead <= bytes.size();) {
    const size_t size = reader.u32(at + 4);
    const std::span<const uint8_t> rest = bytes.subspan(at + kHead);
    if (view_of(bytes.subspan(at, 4)) == "EXIF")
      return exif_comment(rest.first(std::min(size, rest.size())));
    at += kHead + size + size % 2;
  }
  return "";
}

}  // namespace

std::string to_comment(const Text& text) {
  if (text.empty()) return "";
  Json object = Json::object();
  for (const auto& [keyword, value] : text) object[keyword] = value;
  return object.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Text from_comment(std::string_view comment) {
  if (comment.empty()) return {};
  const Text whole = {{"comment", std::string(comment)}};
  nlohmann::json object;
  try {
    object = formats::parse_json(comment);
  } catch (const formats::ParseError&) {
    return whole;
  }
  if (!object.is_object()) return whole;
  Text text;
  for (const auto& [keyword, value] : object.items()) {
    if (!value.is_string()) return whole;
    text.emplace_back(keyword, value.get<std::string>());
  }
  return text;
}

Text read_text(const std::filesystem::path& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  const std::string format = probe_image(bytes, path.string()).format;
  try {
    if (format == "png") return png_text(bytes);
    if (format == "webp") return from_comment(webp_comment(bytes));
    if (format == "jpeg") return from_comment(jpeg_comment(bytes));
    if (format == "gif") return from_comment(gif_comment(bytes));
  } catch (const DecodeError& error) {
    throw Error(ErrorCode::kDataLoss, path.string() + ": " + error.what(),
                "the image is damaged or cut short; get it again");
  }
  return {};
}

}  // namespace atelier::media
