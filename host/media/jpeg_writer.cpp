#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <jpeglib.h>

#include "atelier/error.h"

#include "host/media/jpeg.h"
#include "host/media/text_codec.h"

namespace atelier::media {
namespace {

struct EncoderErrors {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_encoder_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<EncoderErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->escape, 1);
}

// write() returns false when libjpeg jumped out; the message then stands in error(). It holds no
// local variables with destructors, because a jump runs none.
class JpegWriter {
 public:
  JpegWriter() {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = on_encoder_error;
  }
  ~JpegWriter() {
    if (is_created_) jpeg_destroy_compress(&jpeg_);
    std::free(bytes_);
  }
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;

  bool write(const Image& image, std::string_view exif) {
    constexpr int kQuality = 95;
    if (setjmp(errors_.escape)) return false;
    jpeg_create_compress(&jpeg_);
    is_created_ = true;
    jpeg_mem_dest(&jpeg_, &bytes_, &size_);
    jpeg_.image_width = static_cast<JDIMENSION>(image.width);
    jpeg_.image_height = static_cast<JDIMENSION>(image.height);
    jpeg_.input_components = 3;
    jpeg_.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg_);
    jpeg_set_quality(&jpeg_, kQuality, TRUE);
    jpeg_.comp_info[0].h_samp_factor = jpeg_.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&jpeg_, TRUE);
    if (!exif.empty())
      jpeg_write_marker(&jpeg_, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                        static_cast<unsigned>(exif.size()));
    while (jpeg_.next_scanline < jpeg_.image_height) {
      auto* row = const_cast<JSAMPROW>(image.rgb.data() + image.row_bytes() * jpeg_.next_scanline);
      jpeg_write_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_compress(&jpeg_);
    return true;
  }

  std::string_view bytes() const { return {reinterpret_cast<const char*>(bytes_), size_}; }
  const char* error() const { return errors_.message; }

 private:
  jpeg_compress_struct jpeg_ = {};
  EncoderErrors errors_ = {};
  bool is_created_ = false;
  unsigned char* bytes_ = nullptr;
  unsigned long size_ = 0;  // NOLINT(google-runtime-int): libjpeg's
};

}  // namespace

std::string encode_jpeg(const Image& image, const Text& text) {
  constexpr size_t kMostInMarker = 65'533;
  if (std::max(image.width, image.height) > kMaxJpegSide)
    throw Error(ErrorCode::kInvalidArgument,
                "JPEG holds at most " + std::to_string(kMaxJpegSide) + " pixels a side",
                "write .png");
  std::string exif;
  if (!text.empty()) exif = std::string("Exif\0\0", 6) + exif_of(to_comment(text));
  if (exif.size() > kMostInMarker) exif.clear();
  JpegWriter writer;
  if (!writer.write(image, exif))
    throw Error(ErrorCode::kInternal,
                std::string("an image cannot be encoded as JPEG: ") + writer.error());
  return std::string(writer.bytes());
}

}  // namespace atelier::media
