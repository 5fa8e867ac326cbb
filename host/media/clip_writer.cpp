#include "host/media/clip_writer.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "host/media/clip_stream.h"
#include "host/media/video_library.h"

namespace atelier::media {
namespace {

// Players show frames of GIF that are shorter than 20 ms, and of WebP of 10 ms and less, for 100.
constexpr ClipFormat kFormats[] = {
    {".mp4", 16'384, 240, /*has_sound=*/true}, {".webp", 16'383, 90}, {".gif", 65'535, 50}};
constexpr const ClipFormat& kMp4 = kFormats[0];
constexpr const ClipFormat& kWebp = kFormats[1];
constexpr const ClipFormat& kGif = kFormats[2];

[[noreturn]] void fail() {
  throw Error(ErrorCode::kEnvironment, std::string("cannot be written: ") + std::strerror(errno));
}

}  // namespace

const ClipFormat* find_clip_format(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto format = std::ranges::find(kFormats, extension, &ClipFormat::extension);
  return format == std::end(kFormats) ? nullptr : format;
}

void require_clip_writer(const ClipFormat& format) {
  if (&format != &kMp4) return;
  try {
    video_library().require_encoder();
  } catch (const Error& error) {
    throw Error(error.code(), error.message(),
                "write .webp, .gif or .png instead, or " + error.hint(), error.tag());
  }
}

const ClipFormat& preferred_clip_format() {
  try {
    require_clip_writer(kMp4);
    return kMp4;
  } catch (const Error&) {
    return kWebp;
  }
}

std::unique_ptr<ClipWriter> create_clip(const ClipFormat& format, const std::filesystem::path& path,
                                        const ClipSettings& settings) {
  if (&format == &kGif) return create_gif(path, settings);
  if (&format == &kWebp) return create_webp(path, settings);
  require_clip_writer(format);
  return video_library().create_video(path, settings);
}

int64_t ticks_of(int64_t frame, double fps, int64_t ticks_per_second) {
  return std::llround(static_cast<double>(frame * ticks_per_second) / fps);
}

ClipStream::ClipStream(const std::filesystem::path& path)
    : file_(std::fopen(path.c_str(), "wb"), std::fclose) {
  if (!file_) fail();
}

void ClipStream::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) fail();
}

void ClipStream::overwrite(int64_t begin, std::string_view bytes) {
  if (std::fseek(file_.get(), begin, SEEK_SET) != 0) fail();
  write(bytes);
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) fail();
}

void ClipStream::finish() {
  if (std::fflush(file_.get()) != 0) fail();
}

}  // namespace atelier::media
