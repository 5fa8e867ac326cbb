#include "host/media/sound.h"

#include <algorithm>
#include <cmath>

#include "atelier/error.h"

#include "formats/git_lfs.h"
#include "host/media/decode.h"
#include "host/media/file_head.h"
#include "host/media/video_library.h"

namespace atelier::media {
namespace {

namespace fs = std::filesystem;

// Throws for what plainly is no sound, so that it is called by its name.
void require_sound(const fs::path& path) {
  std::error_code failure;
  const std::string place = path.string();
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure))
    throw Error(ErrorCode::kInvalidArgument, place + ": not a regular file");
  const std::string head = read_head(path);
  if (head.empty())
    throw Error(ErrorCode::kDataLoss, place + ": the file is empty", "get it again");
  if (const auto pointer = formats::find_git_lfs_pointer(head, ""))
    throw Error(ErrorCode::kUnsupported, place + ": " + pointer->what(), pointer->hint);
  const bool is_image = looks_like_image(bytes_of(head));
  const std::string what = is_image ? "an image" : std::string(name_of_text(head));
  if (!what.empty())
    throw Error(ErrorCode::kUnsupported, place + ": " + what + ", and no sound",
                "name the file of the sound itself");
}

}  // namespace

bool looks_like_sound(std::string_view head) {
  if (has_text(head, 0, "RIFF")) return has_text(head, 8, "WAVE");
  if (has_text(head, 0, "FORM")) return has_text(head, 8, "AIF");
  // The frames of MP3 and of AAC.
  const auto second = static_cast<uint8_t>(head.size() > 1 ? head[1] : 0);
  const bool is_frame =
      head.starts_with('\xff') && ((second & 0xe6) == 0xe2 || (second & 0xf6) == 0xf0);
  return is_frame || has_text(head, 0, "fLaC") || has_text(head, 0, "OggS") ||
         has_text(head, 0, "ID3") || has_text(head, 0, "caff");
}

SoundInfo probe_sound(const fs::path& path) {
  require_sound(path);
  return video_library().probe_sound(path);
}

Sound read_sound(const fs::path& path, const SoundRequest& request) {
  require_sound(path);
  return video_library().read_sound(path, request);
}

Sound read_soundtrack(const fs::path& path, double seconds) {
  constexpr int kRates[] = {96'000, 88'200, 64'000, 48'000, 44'100, 32'000, 24'000,
                            22'050, 16'000, 12'000, 11'025, 8'000,  7'350};
  const SoundInfo info = probe_sound(path);
  const bool is_known = std::ranges::find(kRates, info.sample_rate) != std::end(kRates);
  const int rate = is_known ? info.sample_rate : 48'000;
  return read_sound(path, {.channels = std::min(info.channels, 2),
                           .sample_rate = rate,
                           .count = std::llround(seconds * rate)});
}

}  // namespace atelier::media
