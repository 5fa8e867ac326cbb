#include "host/inputs/image_file.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <string_view>

#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/inputs/parse.h"
#include "host/report/text.h"

namespace atelier::inputs {
namespace {

using files::FileReader;

// What is read of a file for its header; more when the header turns out to be longer.
constexpr uint64_t kHeadBytes = 65'536;
// The largest image that can be decoded is smaller, uncompressed at 16 bits.
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
// A tolerance of the logarithm of the ratio of two shapes.
constexpr double kShapeTolerance = 0.01;

// Fails when the file is too long to be an image.
std::vector<uint8_t> read_bytes(const FileReader& file, uint64_t begin, uint64_t bytes) {
  if (file.size() > kMaxBytes)
    throw Error(ErrorCode::kInvalidArgument, files::display_path(file.path()) + ": " +
                                                 report::bytes_text(file.size()) +
                                                 " are too many for an image");
  std::vector<uint8_t> data(bytes);
  file.read(data.data(), begin, bytes);
  return data;
}

// Whether the file ends as a whole one does. A whole file may have something behind its end, or no
// mark there, so that false proves nothing.
bool has_good_end(const FileReader& file, const media::ImageInfo& info,
                  const std::vector<uint8_t>& head) {
  using namespace std::string_view_literals;
  if (info.format == "webp") {  // the container says how long it is
    uint64_t length = 8;
    for (int i = 0; i < 4; ++i) length += uint64_t{head[4 + i]} << (8 * i);
    return file.size() >= length;
  }
  if (info.format != "png" && info.format != "jpeg") return false;
  const std::string_view end = info.format == "png" ? "IEND\xae\x42\x60\x82"sv : "\xff\xd9"sv;
  if (file.size() < end.size()) return false;
  const std::vector<uint8_t> tail = read_bytes(file, file.size() - end.size(), end.size());
  return std::equal(tail.begin(), tail.end(), end.begin(),
                    [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); });
}

media::ImageInfo check_content(const FileReader& file, bool decode_all) {
  const std::string name = files::display_path(file.path());
  std::vector<uint8_t> bytes = read_bytes(file, 0, std::min(file.size(), kHeadBytes));
  const auto read_rest = [&] {
    if (bytes.size() < file.size()) bytes = read_bytes(file, 0, file.size());
  };
  // WebP has its EXIF data at the end, and GIF further frames.
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (head.substr(0, 12).ends_with("WEBP") || head.starts_with("GIF8")) read_rest();
  media::ImageInfo info;
  try {
    info = media::probe_image(bytes, name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss || bytes.size() == file.size()) throw;
    read_rest();
    info = media::probe_image(bytes, name);
  }
  if (decode_all || !has_good_end(file, info, bytes)) {
    read_rest();
    media::decode_image(bytes, name);
  }
  return info;
}

void check_clip(const std::string& path, bool decode_all, ImageFile& file) {
  const std::unique_ptr<media::ClipReader> reader = media::open_clip(path);
  const media::ClipInfo& clip = reader->info();
  if (clip.frames() == 0)
    throw Error(ErrorCode::kDataLoss, files::display_path(path) + ": holds no frames",
                "the file is damaged or cut short; get it again");
  file.info = {.format = clip.format,
               .width = clip.width,
               .height = clip.height,
               .has_alpha = clip.has_alpha,
               .is_animated = true};
  if (decode_all) {
    std::vector<int64_t> all(static_cast<size_t>(clip.frames()));
    std::iota(all.begin(), all.end(), int64_t{0});
    reader->read(all, [](const media::Image&) {});
  }
  file.clip = std::make_shared<const media::ClipInfo>(clip);
}

void check_sound(const std::string& path, bool decode_all, ImageFile& file) {
  const media::SoundInfo sound = media::probe_sound(path);
  if (decode_all) media::read_sound(path, {});
  file.sound = std::make_shared<const media::SoundInfo>(sound);
}

// What a file is looked at as.
enum class Medium { kStill, kClip, kSound };

ImageFile check(const std::string& path, Medium medium, bool decode_all) {
  ImageFile image;
  try {
    if (medium == Medium::kClip) {
      check_clip(path, decode_all, image);
    } else if (medium == Medium::kSound) {
      check_sound(path, decode_all, image);
    } else {
      image.info = check_content(FileReader(path), decode_all);
    }
    const files::FileStamp stamp = files::stamp_of(path).value_or(files::FileStamp());
    image.bytes = stamp.bytes;
    image.ends_hash = files::hash_ends(path);
  } catch (const Error& error) {
    image.error = error;
  } catch (const std::bad_alloc&) {
    image.error = Error(ErrorCode::kOutOfMemory,
                        files::display_path(path) + ": not enough memory to read it");
  }
  return image;
}

}  // namespace

bool has_shape_of(const media::ImageInfo& mask, const media::ImageInfo& image) {
  const double ratio = (static_cast<double>(mask.width) * image.height) /
                       (static_cast<double>(mask.height) * image.width);
  return std::abs(std::log(ratio)) <= kShapeTolerance;
}

ImageFile check_file(InputKind kind, const std::string& path, bool decode_all) {
  if (is_sound(kind)) return check(path, Medium::kSound, decode_all);
  if (!is_clip(kind)) return check(path, Medium::kStill, decode_all);
  if (media::looks_like_clip(path)) return check(path, Medium::kClip, decode_all);
  ImageFile still = check(path, Medium::kStill, decode_all);
  // What is no picture either is told as what stands in a clip's place.
  const bool is_unread = still.error && still.error->code() == ErrorCode::kUnsupported;
  return is_unread ? check(path, Medium::kClip, decode_all) : still;
}

media::ClipInfo clip_of(const ImageFile& file) {
  if (file.clip) return *file.clip;
  media::ClipInfo still;
  still.times_s = {0.0};
  return still;
}

std::vector<IgnoredProperty> ignored_properties(const InputSpec& input,
                                                const media::ImageInfo& info) {
  std::vector<IgnoredProperty> unseen;
  if (input.kind != InputKind::kImage) return unseen;
  if (info.is_animated)
    unseen.push_back({info.format == "tiff" ? "has several pages" : "is an animation",
                      info.format == "tiff" ? "the first is taken" : "its first frame is taken"});
  if (info.has_alpha && input.channels == 3)
    unseen.push_back({"may be transparent", "it is laid over white"});
  return unseen;
}

std::vector<uint8_t> read_image_file(const std::string& path) {
  const FileReader file(path);
  return read_bytes(file, 0, file.size());
}

}  // namespace atelier::inputs
