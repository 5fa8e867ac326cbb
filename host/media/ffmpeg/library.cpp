// The door of libatelier_video.so.
#include <cstdarg>
#include <spdlog/spdlog.h>
#include <string_view>

#include "atelier/export.h"
#include "atelier/plugin.h"

#include "host/media/ffmpeg/ffmpeg.h"

namespace {

// What FFmpeg says is for those who look for it; what a user needs is in the errors.
void log(void* context, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_WARNING || !spdlog::should_log(spdlog::level::debug)) return;
  char line[1024] = "";
  int print_prefix = 1;
  av_log_format_line(context, level, format, arguments, line, sizeof(line), &print_prefix);
  std::string_view text(line);
  while (text.ends_with('\n')) text.remove_suffix(1);
  spdlog::debug("FFmpeg: {}", text);
}

}  // namespace

extern "C" ATELIER_API const atelier::media::VideoLibrary* atelier_video() noexcept {
  using namespace atelier::media;
  static const std::string version = std::string("FFmpeg ") + av_version_info();
  static const VideoLibrary library = {ATELIER_ABI " video=" ATELIER_VIDEO_HASH,
                                       ffmpeg::open_video,
                                       ffmpeg::create_video,
                                       version.c_str(),
                                       ffmpeg::require_encoder,
                                       ffmpeg::probe_sound,
                                       ffmpeg::read_sound};
  av_log_set_callback(log);
  return &library;
}
