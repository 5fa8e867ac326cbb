#include "host/media/clip.h"

#include <optional>
#include <string_view>

#include "atelier/error.h"

#include "host/media/clip_readers.h"
#include "host/media/codec.h"
#include "host/media/file_head.h"
#include "host/media/video_library.h"

namespace atelier::media {
namespace {

namespace fs = std::filesystem;

bool is_transport_stream(std::string_view head) {
  const auto has_packets = [&](size_t first, size_t length) {
    return head.size() > first + length && head[first] == 'G' && head[first + length] == 'G';
  };
  return has_packets(0, 188) || has_packets(4, 192);
}

struct Video {
  std::string_view unread;  // the name of a kind that is not read
};

// What kind of video begins like this; nothing for what is none.
std::optional<Video> find_video(std::string_view head) {
  // The boxes with which MP4 files and older QuickTime ones begin.
  for (const std::string_view box : {"ftyp", "moov", "mdat", "wide", "free", "skip", "pnot"})
    if (has_text(head, 4, box)) return Video{};
  if (has_text(head, 0, "\x1a\x45\xdf\xa3") || is_transport_stream(head)) return Video{};
  if (has_text(head, 0, "RIFF") && has_text(head, 8, "AVI ")) return Video{};
  if (has_text(head, 0, "FLV\x01")) return Video{"FLV"};
  if (has_text(head, 0, {"\0\0\x01\xba", 4})) return Video{"MPEG program stream"};
  if (has_text(head, 0, "\x30\x26\xb2\x75")) return Video{"Windows Media"};
  if (has_text(head, 0, "OggS")) return Video{"Ogg"};
  if (has_text(head, 0, "YUV4MPEG2")) return Video{"YUV4MPEG2"};
  return std::nullopt;
}

bool is_animated(const fs::path& path, std::string_view head) {
  const bool can_be = has_text(head, 0, "GIF8") || has_text(head, 8, "WEBP");
  return can_be && probe_image(path).is_animated;
}

bool looks_like_clip_or_throws(const fs::path& path) {
  if (fs::is_directory(path)) return !frames_in(path).empty();
  if (!fs::is_regular_file(path)) return false;
  const std::string head = read_head(path);
  if (looks_like_image(bytes_of(head))) return is_animated(path, head);
  return find_video(head).has_value();
}

}  // namespace

bool looks_like_clip(const fs::path& path) {
  try {
    return looks_like_clip_or_throws(path);
  } catch (const std::exception&) {
    return false;
  }
}

std::unique_ptr<ClipReader> open_clip(const fs::path& path, const ClipLimits& limits) {
  std::error_code failure;
  if (fs::is_directory(path, failure)) return open_folder(path, limits);
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure))
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": not a regular file");
  const std::string head = read_head(path);
  if (!looks_like_image(bytes_of(head))) {
    const std::optional<Video> video = find_video(head);
    if (video && video->unread.empty()) return video_library().open_video(path, limits);
    if (video)
      throw Error(ErrorCode::kUnsupported,
                  path.string() + ": a video of the kind " + std::string(video->unread) +
                      ", which is not read",
                  "convert it to MP4 (H.264)");
    // What holds nothing, and what stands in a file's place, is told as for images.
    if (!head.empty() && !is_lfs_pointer(head)) {
      if (const std::string_view text = name_of_text(head); !text.empty())
        throw Error(ErrorCode::kUnsupported,
                    path.string() + ": " + std::string(text) + ", and no video or image",
                    "name the file of the video itself");
      throw Error(ErrorCode::kUnsupported,
                  path.string() + ": neither a video nor an image of a kind that is read",
                  "convert it to MP4 (H.264) or PNG");
    }
  }
  return is_animated(path, head) ? open_animation(path, limits) : open_still(path, limits);
}

}  // namespace atelier::media
