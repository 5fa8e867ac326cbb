#include <cstring>
#include <limits>
#include <string>
#include <webp/encode.h>

#include "atelier/error.h"

#include "host/media/clip_stream.h"
#include "host/media/clip_writer.h"
#include "host/media/text_codec.h"

namespace atelier::media {
namespace {

constexpr float kQuality = 80;     // as Pillow's
constexpr int64_t kTicks = 1000;   // a second
constexpr size_t kHeadBytes = 12;  // RIFF, size, WEBP: before the chunks of a file

void add_number(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i);
}

std::string chunk_of(std::string_view name, std::string_view content) {
  std::string chunk(name);
  add_number(chunk, content.size(), 4);
  chunk += content;
  if (content.size() % 2 != 0) chunk += '\0';
  return chunk;
}

struct Picture : WebPPicture {
  Picture() {
    if (!WebPPictureInit(this)) throw Error(ErrorCode::kInternal, "libwebp is of another version");
  }
  ~Picture() { WebPPictureFree(this); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
};

struct Memory : WebPMemoryWriter {
  Memory() { WebPMemoryWriterInit(this); }
  ~Memory() { WebPMemoryWriterClear(this); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// The chunks of a still.
std::string encode(const Image& frame) {
  WebPConfig config;
  Picture picture;
  Memory memory;
  if (!WebPConfigPreset(&config, WEBP_PRESET_DEFAULT, kQuality))
    throw Error(ErrorCode::kInternal, "libwebp is of another version");
  config.thread_level = 1;
  picture.width = frame.width;
  picture.height = frame.height;
  picture.writer = WebPMemoryWrite;
  picture.custom_ptr = &memory;
  if (!WebPPictureImportRGB(&picture, frame.rgb.data(), static_cast<int>(frame.row_bytes())) ||
      !WebPEncode(&config, &picture)) {
    const bool has_room = picture.error_code != VP8_ENC_ERROR_OUT_OF_MEMORY &&
                          picture.error_code != VP8_ENC_ERROR_BITSTREAM_OUT_OF_MEMORY;
    throw Error(has_room ? ErrorCode::kInternal : ErrorCode::kOutOfMemory,
                "a frame cannot be encoded as WebP: error " + std::to_string(picture.error_code));
  }
  const std::string_view file(reinterpret_cast<const char*>(memory.mem), memory.size);
  return std::string(file.substr(kHeadBytes));
}

// The frames are whole pictures one after another, each written as soon as it is there: libwebp's
// own WebPAnimEncoder keeps them all until the end.
class WebpWriter final : public ClipWriter {
 public:
  WebpWriter(const std::filesystem::path& path, const ClipSettings& settings)
      : settings_(settings), stream_(path) {
    constexpr char kAnimation = 2, kExif = 8;
    std::string canvas = {
        static_cast<char>(settings.comment.empty() ? kAnimation : kAnimation | kExif), 0, 0, 0};
    add_sides(canvas);
    std::string loop;
    add_number(loop, 0xffffffff, 4);  // the background, which no frame leaves free
    add_number(loop, 0, 2);           // forever
    write(std::string("RIFF\0\0\0\0WEBP", kHeadBytes) + chunk_of("VP8X", canvas) +
          chunk_of("ANIM", loop));
  }

  void add(const Image& frame) override {
    require_size(settings_, frame);
    const int64_t begin = ticks_of(frames_, settings_.fps, kTicks);
    const int64_t end = ticks_of(++frames_, settings_.fps, kTicks);
    constexpr uint64_t kReplaces = 2;  // what was shown, without blending
    std::string content;
    add_number(content, 0, 6);  // the left upper corner
    add_sides(content);
    add_number(content, static_cast<uint64_t>(end - begin), 3);
    add_number(content, kReplaces, 1);
    write(chunk_of("ANMF", content + encode(frame)));
  }

  void finish() override {
    if (!settings_.comment.empty()) write(chunk_of("EXIF", exif_of(settings_.comment)));
    std::string size;
    add_number(size, bytes_ - 8, 4);
    stream_.overwrite(4, size);
    stream_.finish();
  }

 private:
  void add_sides(std::string& bytes) const {
    add_number(bytes, static_cast<uint64_t>(settings_.width - 1), 3);
    add_number(bytes, static_cast<uint64_t>(settings_.height - 1), 3);
  }

  void write(const std::string& bytes) {
    bytes_ += bytes.size();
    if (bytes_ > std::numeric_limits<uint32_t>::max())
      throw Error(ErrorCode::kInvalidArgument, "a WebP file holds 4 GiB at most",
                  "make fewer frames, or write .mp4");
    stream_.write(bytes);
  }

  const ClipSettings settings_;
  ClipStream stream_;
  uint64_t bytes_ = 0;
  int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipWriter> create_webp(const std::filesystem::path& path,
                                        const ClipSettings& settings) {
  return std::make_unique<WebpWriter>(path, settings);
}

}  // namespace atelier::media
