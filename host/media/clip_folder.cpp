#include <algorithm>
#include <array>
#include <fstream>

#include "atelier/error.h"

#include "host/media/clip_readers.h"
#include "host/media/codec.h"
#include "host/report/open_failure.h"

namespace atelier::media {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Compares runs of digits by their value.
bool comes_before(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [](const std::string& text, size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string first = number(a, i), second = number(b, j);
    if (first.size() != second.size()) return first.size() < second.size();
    if (first != second) return first < second;
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;  // as many zeros differ
}

// A file that cannot be read is told later, and not left out.
bool is_frame(const std::filesystem::directory_entry& entry) {
  std::error_code failure;
  if (!entry.is_regular_file(failure)) return false;
  std::array<uint8_t, 64> head;
  std::ifstream file(entry.path(), std::ios::binary);
  if (!file) return true;
  file.read(reinterpret_cast<char*>(head.data()), head.size());
  return looks_like_image(std::span(head).first(static_cast<size_t>(file.gcount())));
}

// Images of one size, each in a file of its own.
class ImagesReader : public ClipReader {
 public:
  ImagesReader(std::vector<std::filesystem::path> paths, std::string place,
               const std::string& format, const ClipLimits& limits);

  const ClipInfo& info() const override { return info_; }
  void read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) override;

 private:
  ClipInfo info_;
  const std::vector<std::filesystem::path> paths_;
  const std::string place_;
  const DecodeOptions options_;
};

ImagesReader::ImagesReader(std::vector<std::filesystem::path> paths, std::string place,
                           const std::string& format, const ClipLimits& limits)
    : paths_(std::move(paths)),
      place_(std::move(place)),
      options_({.max_pixels = limits.max_pixels}) {
  info_.format = format;
  for (const std::filesystem::path& path : paths_) {
    const ImageInfo image = probe_image(path, options_);
    if (info_.times_s.empty()) {
      info_.width = image.width;
      info_.height = image.height;
    } else if (image.width != info_.width || image.height != info_.height) {
      throw Error(ErrorCode::kUnsupported,
                  path.string() + ": is " + std::to_string(image.width) + "x" +
                      std::to_string(image.height) + ", the first frame of its folder is " +
                      std::to_string(info_.width) + "x" + std::to_string(info_.height),
                  "give all frames of a clip one size");
    }
    info_.has_alpha = info_.has_alpha || image.has_alpha;
    info_.times_s.push_back(static_cast<double>(info_.frames()));
  }
}

void ImagesReader::read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) {
  check_numbers(frames, info_, place_);
  for (const int64_t number : frames)
    sink(decode_image(paths_[static_cast<size_t>(number)], options_));
}

}  // namespace

std::vector<std::filesystem::path> frames_in(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::directory_iterator entry(folder, failure);
  std::vector<std::filesystem::path> paths;
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    if (is_frame(*entry)) paths.push_back(entry->path());
  }
  if (failure)
    throw Error(report::open_failure(failure.value()), folder.string() + ": " + failure.message());
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) {
    return comes_before(a.filename().string(), b.filename().string());
  });
  return paths;
}

std::unique_ptr<ClipReader> open_folder(const std::filesystem::path& folder,
                                        const ClipLimits& limits) {
  std::vector<std::filesystem::path> paths = frames_in(folder);
  if (paths.empty())
    throw Error(ErrorCode::kUnsupported, folder.string() + ": a folder without images",
                "a clip's folder holds an image for each frame");
  if (static_cast<int64_t>(paths.size()) > limits.max_frames)
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() + ": " + std::to_string(paths.size()) +
                    " frames are more than the limit of " + std::to_string(limits.max_frames),
                "divide the clip into shorter ones");
  return std::make_unique<ImagesReader>(std::move(paths), folder.string(), "folder", limits);
}

std::unique_ptr<ClipReader> open_still(const std::filesystem::path& path,
                                       const ClipLimits& limits) {
  const std::string format = probe_image(path, {.max_pixels = limits.max_pixels}).format;
  return std::make_unique<ImagesReader>(std::vector{path}, path.string(), format, limits);
}

}  // namespace atelier::media
