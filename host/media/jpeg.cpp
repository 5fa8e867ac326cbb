#include <csetjmp>
#include <cstdio>
#include <jpeglib.h>
// jerror.h needs jpeglib.h before it.
#include <jerror.h>

#include "host/media/codec.h"
#include "host/media/text_codec.h"

namespace atelier::media {
namespace {

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->escape, 1);
}

// libjpeg fills in what is missing and only warns; a damaged image is an error here.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
      on_error(info);
    default:
      return;
  }
}

// A few kilobytes of progressive JPEG can hold thousands of scans of a large image.
void on_progress(j_common_ptr info) {
  constexpr int kMaxScans = 500;
  auto* jpeg = reinterpret_cast<jpeg_decompress_struct*>(info);
  if (jpeg->input_scan_number > kMaxScans) {
    auto* errors = reinterpret_cast<JpegErrors*>(info->err);
    std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMaxScans);
    std::longjmp(errors->escape, 1);
  }
}

// Members return false when libjpeg jumped out; the message then stands in error(). They hold no
// local variables with destructors, because a jump runs none.
class JpegReader {
 public:
  JpegReader() {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = on_error;
    errors_.base.emit_message = on_message;
    errors_.message[0] = '\0';
    progress_.progress_monitor = on_progress;
  }
  ~JpegReader() {
    if (is_created_) jpeg_destroy_decompress(&jpeg_);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool read_header(const uint8_t* bytes, size_t size) {
    if (setjmp(errors_.escape)) return false;
    jpeg_create_decompress(&jpeg_);
    is_created_ = true;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, bytes, size);
    jpeg_save_markers(&jpeg_, JPEG_APP0 + 1, 0xffff);
    jpeg_save_markers(&jpeg_, JPEG_APP0 + 2, 0xffff);
    jpeg_read_header(&jpeg_, TRUE);
    is_cmyk_ = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = is_cmyk_ ? JCS_CMYK : JCS_RGB;
    return true;
  }

  bool read_pixels(uint8_t* out, size_t row_bytes) {
    if (setjmp(errors_.escape)) return false;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = out + row_bytes * jpeg_.output_scanline;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  const jpeg_decompress_struct& jpeg() const { return jpeg_; }
  bool is_cmyk() const { return is_cmyk_; }
  const char* error() const { return errors_.message; }

 private:
  jpeg_decompress_struct jpeg_ = {};
  jpeg_progress_mgr progress_ = {};
  JpegErrors errors_ = {};
  bool is_created_ = false;
  bool is_cmyk_ = false;
};

bool starts_with(std::span<const uint8_t> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), bytes.begin());
}

constexpr std::string_view kExif("Exif\0\0", 6), kColors("ICC_PROFILE\0", 12);  // begin markers

}  // namespace

Raster read_jpeg(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  JpegReader reader;
  if (!reader.read_header(bytes.data(), bytes.size())) throw DecodeError(reader.error());
  const jpeg_decompress_struct& jpeg = reader.jpeg();
  Raster raster;
  raster.info.format = "jpeg";
  raster.info.width = static_cast<int>(jpeg.image_width);
  raster.info.height = static_cast<int>(jpeg.image_height);
  raster.info.channels = jpeg.num_components;
  raster.info.bits = jpeg.data_precision;
  bool has_exif = false;
  for (jpeg_saved_marker_ptr marker = jpeg.marker_list; marker; marker = marker->next) {
    const std::span<const uint8_t> data(marker->data, marker->data_length);
    if (marker->marker == JPEG_APP0 + 1 && !has_exif && starts_with(data, kExif)) {
      raster.info.orientation = exif_orientation(data.subspan(kExif.size()));
      has_exif = true;
    }
    if (marker->marker == JPEG_APP0 + 2 && starts_with(data, kColors)) {
      raster.info.has_color_profile = true;
    }
  }
  raster.layout = reader.is_cmyk() ? Layout::kInvertedCmyk : Layout::kRgb;
  check(raster.info.width, raster.info.height);
  if (!pixels) return raster;
  const size_t row_bytes = static_cast<size_t>(raster.info.width) * raster.bytes_per_pixel();
  raster.data.resize(row_bytes * raster.info.height);
  if (!reader.read_pixels(raster.data.data(), row_bytes)) throw DecodeError(reader.error());
  return raster;
}

std::string jpeg_comment(std::span<const uint8_t> bytes) {
  JpegReader reader;
  if (!reader.read_header(bytes.data(), bytes.size())) throw DecodeError(reader.error());
  for (auto marker = reader.jpeg().marker_list; marker; marker = marker->next) {
    const std::span<const uint8_t> data(marker->data, marker->data_length);
    if (marker->marker == JPEG_APP0 + 1 && starts_with(data, kExif))
      return exif_comment(data.subspan(kExif.size()));
  }
  return "";
}

}  // namespace atelier::media
