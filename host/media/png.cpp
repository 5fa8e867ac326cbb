#include "host/media/png.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <png.h>
#include <utility>

#include "atelier/error.h"

#include "host/media/codec.h"
#include "host/media/text_codec.h"

namespace atelier::media {
namespace {

constexpr size_t kMessageBytes = 200;

struct PngInput {
  const uint8_t* bytes;
  size_t left;
};

void on_error(png_structp png, png_const_charp message) {
  std::snprintf(static_cast<char*>(png_get_error_ptr(png)), kMessageBytes, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t size) {
  auto* input = static_cast<PngInput*>(png_get_io_ptr(png));
  if (size > input->left) png_error(png, "the file ends before the image does");
  std::memcpy(out, input->bytes, size);
  input->bytes += size;
  input->left -= size;
}

void write_bytes(png_structp png, png_bytep bytes, size_t size) {
  bool has_room = true;
  try {
    static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), size);
  } catch (const std::bad_alloc&) {
    has_room = false;  // no jump out of a handler
  }
  if (!has_room) png_error(png, "not enough memory");
}

void flush_bytes(png_structp) {}

// Members return false when libpng jumped out; the message then stands in error(). They hold no
// local variables with destructors, because a jump runs none.
class PngReader {
 public:
  PngReader(const uint8_t* bytes, size_t size) : input_{bytes, size} {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, message_, on_error, on_warning);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) throw DecodeError("not enough memory");
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool read_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_read_fn(png_, &input_, read_bytes);
    png_read_info(png_, info_);
    return true;
  }

  // To 8-bit RGB or RGBA.
  bool read_pixels(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    png_read_image(png_, rows);
    png_read_end(png_, info_);
    return true;
  }

  // Everything but the pixels.
  bool read_rest() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_update_info(png_, info_);  // or png_read_end does not know how to pass the pixels
    png_read_end(png_, info_);
    return true;
  }

  png_structp png() const { return png_; }
  png_infop info() const { return info_; }
  const char* error() const { return message_; }

 private:
  PngInput input_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[kMessageBytes] = "damaged PNG data";
};

class PngWriter {
 public:
  PngWriter() {
    png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, message_, on_error, on_warning);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) throw Error(ErrorCode::kOutOfMemory, "not enough memory to write a PNG");
  }
  ~PngWriter() { png_destroy_write_struct(&png_, &info_); }
  PngWriter(const PngWriter&) = delete;
  PngWriter& operator=(const PngWriter&) = delete;

  bool write(int width, int height, int color_type, png_bytepp rows, png_textp text, int num_text) {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_write_fn(png_, &output_, write_bytes, flush_bytes);
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
                 color_type, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png_, info_, text, num_text);
    png_write_info(png_, info_);
    png_write_image(png_, rows);
    png_write_end(png_, nullptr);
    return true;
  }

  const char* error() const { return message_; }
  std::string take() { return std::move(output_); }

 private:
  std::string output_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[kMessageBytes] = "cannot encode";
};

uint32_t big_endian(std::span<const uint8_t> bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | bytes[i];
  return value;
}

// Whether the chunk of animated PNGs, which libpng passes over, says that there are several frames.
// It stands before the pixels; a chunk is its length, its name, that many bytes and a checksum.
bool is_animation(std::span<const uint8_t> bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const size_t length = big_endian(bytes, at);
    const auto* name = reinterpret_cast<const char*>(bytes.data() + at + 4);
    if (std::memcmp(name, "acTL", 4) == 0) return big_endian(bytes, at + 8) > 1;
    if (std::memcmp(name, "IDAT", 4) == 0) return false;
    at += length + 12;
  }
  return false;
}

std::string utf8_of_latin1(std::string_view text) {
  std::string utf8;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xc0 | byte >> 6);
      utf8 += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return utf8;
}

// RGBA, four bytes a pixel.
std::vector<uint8_t> interleaved(const Image& image, const Image& alpha) {
  std::vector<uint8_t> rgba(image.rgb.size() / 3 * 4);
  for (size_t i = 0; i < image.rgb.size() / 3; ++i) {
    std::copy_n(image.rgb.data() + 3 * i, 3, rgba.data() + 4 * i);
    rgba[4 * i + 3] = alpha.rgb[3 * i];
  }
  return rgba;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

Raster read_png(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  PngReader reader(bytes.data(), bytes.size());
  if (!reader.read_header()) throw DecodeError(reader.error());
  const png_structp png = reader.png();
  const png_infop info = reader.info();
  Raster raster;
  raster.info.format = "png";
  raster.info.width = static_cast<int>(png_get_image_width(png, info));
  raster.info.height = static_cast<int>(png_get_image_height(png, info));
  raster.info.channels = png_get_channels(png, info);
  raster.info.bits = png_get_bit_depth(png, info);
  raster.info.has_alpha = (png_get_color_type(png, info) & PNG_COLOR_MASK_ALPHA) != 0 ||
                          png_get_valid(png, info, PNG_INFO_tRNS) != 0;
  raster.info.is_animated = is_animation(bytes);
  raster.info.has_color_profile = png_get_valid(png, info, PNG_INFO_iCCP) != 0;
  check(raster.info.width, raster.info.height);
  png_uint_32 exif_size = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(png, info, &exif_size, &exif) != 0 && exif) {
    raster.info.orientation = exif_orientation({exif, exif_size});
  }
  raster.layout = raster.info.has_alpha ? Layout::kRgba : Layout::kRgb;
  if (!pixels) return raster;
  const size_t row_bytes = static_cast<size_t>(raster.info.width) * raster.bytes_per_pixel();
  raster.data.resize(row_bytes * raster.info.height);
  std::vector<png_bytep> rows(raster.info.height);
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = raster.data.data() + row_bytes * y;
  if (!reader.read_pixels(rows.data())) throw DecodeError(reader.error());
  return raster;
}

std::string encode_png(const Image& image, const Text& text, const Image* alpha) {
  std::vector<::png_text> chunks(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& [keyword, value] = text[i];
    // libpng takes pointers to char that it does not write to.
    chunks[i].key = const_cast<char*>(keyword.c_str());
    chunks[i].text = const_cast<char*>(value.c_str());
    chunks[i].compression = is_ascii(value) ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    (is_ascii(value) ? chunks[i].text_length : chunks[i].itxt_length) = value.size();
  }
  std::vector<png_bytep> rows(image.height);
  std::vector<uint8_t> rgba;
  if (alpha != nullptr) rgba = interleaved(image, *alpha);
  for (int y = 0; y < image.height; ++y)
    rows[y] = alpha != nullptr ? rgba.data() + static_cast<size_t>(y) * image.width * 4
                               : const_cast<uint8_t*>(image.row(y));
  PngWriter writer;
  if (!writer.write(image.width, image.height,
                    alpha != nullptr ? PNG_COLOR_TYPE_RGB_ALPHA : PNG_COLOR_TYPE_RGB, rows.data(),
                    chunks.data(), static_cast<int>(chunks.size())))
    throw Error(ErrorCode::kInvalidArgument, std::string("cannot encode a PNG: ") + writer.error());
  return writer.take();
}

Text png_text(std::span<const uint8_t> bytes) {
  PngReader reader(bytes.data(), bytes.size());
  if (!reader.read_header() || !reader.read_rest()) throw DecodeError(reader.error());
  png_textp chunks = nullptr;
  const int count = png_get_text(reader.png(), reader.info(), &chunks, nullptr);
  Text text;
  for (int i = 0; i < count; ++i) {
    const bool is_utf8 = chunks[i].compression >= PNG_ITXT_COMPRESSION_NONE;
    const size_t size = is_utf8 ? chunks[i].itxt_length : chunks[i].text_length;
    const std::string_view value(chunks[i].text ? chunks[i].text : "", size);
    text.emplace_back(chunks[i].key, is_utf8 ? std::string(value) : utf8_of_latin1(value));
  }
  return text;
}

}  // namespace atelier::media
