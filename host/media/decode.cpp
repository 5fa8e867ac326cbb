#include "host/media/decode.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "atelier/error.h"

#include "formats/git_lfs.h"
#include "host/media/codec.h"
#include "host/media/text_codec.h"
#include "host/report/open_failure.h"

namespace atelier::media {
namespace {

using ReadFunction = Raster (*)(std::span<const uint8_t>, bool, const CheckSize&);

bool has_bytes(std::span<const uint8_t> bytes, size_t at, std::string_view text) {
  return bytes.size() >= at + text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin() + static_cast<ptrdiff_t>(at),
                    [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

// "BM" alone begins many a text.
bool is_bmp(std::span<const uint8_t> bytes) {
  if (!has_bytes(bytes, 0, "BM") || !has_bytes(bytes, 15, {"\0\0\0", 3})) return false;
  constexpr std::array<uint8_t, 7> kHeaderSizes = {12, 40, 52, 56, 64, 108, 124};
  return std::find(kHeaderSizes.begin(), kHeaderSizes.end(), bytes[14]) != kHeaderSizes.end();
}

bool is_ppm(std::span<const uint8_t> bytes) {
  constexpr std::string_view kSpace = " \t\n\r#";
  return bytes.size() > 3 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
         kSpace.find(static_cast<char>(bytes[2])) != std::string_view::npos;
}

ReadFunction reader_of(std::span<const uint8_t> bytes) {
  if (has_bytes(bytes, 0, "\x89PNG\r\n\x1a\n")) return read_png;
  if (has_bytes(bytes, 0, "\xff\xd8\xff")) return read_jpeg;
  if (has_bytes(bytes, 0, "RIFF") && has_bytes(bytes, 8, "WEBP")) return read_webp;
  if (has_bytes(bytes, 0, "GIF87a") || has_bytes(bytes, 0, "GIF89a")) return read_gif;
  for (const std::string_view tiff : {std::string_view("II*\0", 4), std::string_view("MM\0*", 4),
                                      std::string_view("II+\0", 4), std::string_view("MM\0+", 4)}) {
    if (has_bytes(bytes, 0, tiff)) return read_tiff;
  }
  if (is_bmp(bytes)) return read_bmp;
  return is_ppm(bytes) ? read_ppm : nullptr;
}

// The name of a kind of image that is known and not read; empty for others.
std::string_view name_of_unread(std::span<const uint8_t> bytes) {
  struct Kind {
    size_t at;
    std::string_view text, name;
  };
  static constexpr Kind kKinds[] = {{4, "ftypavif", "AVIF"},  {4, "ftypavis", "AVIF"},
                                    {4, "ftyphei", "HEIC"},   {4, "ftyphev", "HEIC"},
                                    {4, "ftypmif1", "HEIF"},  {4, "ftypmsf1", "HEIF"},
                                    {4, "JXL ", "JPEG XL"},   {0, "\xff\x0a", "JPEG XL"},
                                    {4, "jP  ", "JPEG 2000"}, {0, "8BPS", "Photoshop"}};
  for (const Kind& kind : kKinds) {
    if (has_bytes(bytes, kind.at, kind.text)) return kind.name;
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  // Web pages hold drawings, too.
  constexpr std::string_view kBegins[] = {"<svg", "<?xml", "<!--", "<!DOCTYPE svg"};
  const bool is_drawing =
      std::any_of(std::begin(kBegins), std::end(kBegins),
                  [&](std::string_view begin) { return text.substr(first).starts_with(begin); });
  constexpr size_t kHead = 4096;
  return is_drawing && text.substr(0, kHead).find("<svg") != std::string_view::npos ? "SVG" : "";
}

// Says what bytes without a reader are, as well as can be told.
Error refusal(std::span<const uint8_t> bytes, const std::string& place) {
  if (bytes.empty())
    return {ErrorCode::kUnsupported, place + ": the file is empty", "get it again"};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto pointer = formats::find_git_lfs_pointer(text, ""))
    return {ErrorCode::kUnsupported, place + ": " + pointer->what(), pointer->hint};
  if (const std::string_view name = name_of_unread(bytes); !name.empty())
    return {ErrorCode::kUnsupported,
            place + ": an image of the kind " + std::string(name) + ", which is not read",
            "convert it to PNG or JPEG"};
  return {ErrorCode::kUnsupported, place + ": not a PNG, JPEG, WebP, GIF, TIFF, BMP or PPM image",
          "convert it to one of these"};
}

Raster read_raster(std::span<const uint8_t> bytes, std::string_view name, bool pixels,
                   const DecodeOptions& options) {
  const std::string place(name);
  const ReadFunction read = reader_of(bytes);
  if (!read) throw refusal(bytes, place);
  try {
    return read(bytes, pixels, [&](int64_t width, int64_t height) {
      if (width * height <= options.max_pixels) return;
      throw Error(ErrorCode::kInvalidArgument,
                  place + ": " + std::to_string(width) + "x" + std::to_string(height) +
                      " pixels are more than the limit of " + std::to_string(options.max_pixels),
                  "make the image smaller");
    });
  } catch (const DecodeError& error) {
    throw Error(ErrorCode::kDataLoss, place + ": " + error.what(),
                "the image is damaged or cut short; get it again");
  }
}

// The transparency of an RGBA raster as a gray image.
Image to_alpha(const Raster& raster) {
  Image image(raster.info.width, raster.info.height);
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = raster.data[i / 3 * 4 + 3];
  return image;
}

}  // namespace

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": a folder, not an image");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int why = errno;
    throw Error(report::open_failure(why), path.string() + ": " + std::strerror(why));
  }
  // A gigabyte holds the largest image that the pixel limit allows, uncompressed at 16 bits.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  const uint64_t size = std::filesystem::file_size(path, code);
  if (!code && size > kMaxBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + ": " + std::to_string(size) + " bytes are too many for an image");
  }
  std::vector<uint8_t> bytes(code ? 0 : size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

bool looks_like_image(std::span<const uint8_t> bytes) {
  return reader_of(bytes) != nullptr || !name_of_unread(bytes).empty();
}

ImageInfo probe_image(std::span<const uint8_t> bytes, std::string_view name,
                      const DecodeOptions& options) {
  ImageInfo info = read_raster(bytes, name, /*pixels=*/false, options).info;
  if (info.orientation >= 5) std::swap(info.width, info.height);
  return info;
}

ImageInfo probe_image(const std::filesystem::path& path, const DecodeOptions& options) {
  return probe_image(read_file(path), path.string(), options);
}

Image decode_image(std::span<const uint8_t> bytes, std::string_view name,
                   const DecodeOptions& options) {
  const Raster raster = read_raster(bytes, name, /*pixels=*/true, options);
  return upright(to_rgb(raster, options.over_white), raster.info.orientation);
}

Image decode_image(const std::filesystem::path& path, const DecodeOptions& options) {
  return decode_image(read_file(path), path.string(), options);
}

ImageWithAlpha decode_with_alpha(std::span<const uint8_t> bytes, std::string_view name,
                                 const DecodeOptions& options) {
  const Raster raster = read_raster(bytes, name, /*pixels=*/true, options);
  ImageWithAlpha result = {upright(to_rgb(raster, options.over_white), raster.info.orientation),
                           {}};
  if (raster.layout == Layout::kRgba)
    result.alpha = upright(to_alpha(raster), raster.info.orientation);
  return result;
}

}  // namespace atelier::media
