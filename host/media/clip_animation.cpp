#include <string>

#include "atelier/error.h"

#include "host/media/animation.h"
#include "host/media/clip_readers.h"

namespace atelier::media {
namespace {

class AnimationReader : public ClipReader {
 public:
  AnimationReader(const std::filesystem::path& path, const ClipLimits& limits);

  const ClipInfo& info() const override { return info_; }
  void read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) override;

 private:
  void open();
  void set_times();

  const std::string place_;
  const ClipLimits limits_;
  const std::vector<uint8_t> bytes_;
  ClipInfo info_;
  std::unique_ptr<Animation> animation_;
  Image shown_;  // the frame before next_
  int64_t next_ = 0;
};

AnimationReader::AnimationReader(const std::filesystem::path& path, const ClipLimits& limits)
    : place_(path.string()), limits_(limits), bytes_(read_file(path)) {
  const ImageInfo image = probe_image(bytes_, place_, {.max_pixels = limits.max_pixels});
  info_.format = image.format;
  info_.width = image.width;
  info_.height = image.height;
  info_.has_alpha = image.has_alpha;
  try {
    open();
  } catch (const DecodeError& error) {
    throw Error(ErrorCode::kDataLoss, place_ + ": " + error.what(),
                "the animation is damaged or cut short; get it again");
  }
  set_times();
}

void AnimationReader::open() {
  const auto check = [&](int64_t width, int64_t height) {
    if (width * height > limits_.max_pixels)
      throw DecodeError("more pixels than the limit of " + std::to_string(limits_.max_pixels));
  };
  animation_ = info_.format == "gif" ? open_gif(bytes_, check) : open_webp(bytes_, check);
  next_ = 0;
}

void AnimationReader::set_times() {
  const std::vector<int>& durations_ms = animation_->durations_ms();
  if (static_cast<int64_t>(durations_ms.size()) > limits_.max_frames)
    throw Error(ErrorCode::kInvalidArgument,
                place_ + ": " + std::to_string(durations_ms.size()) +
                    " frames are more than the limit of " + std::to_string(limits_.max_frames),
                "cut the animation into shorter ones");
  int64_t end_ms = 0;
  for (const int duration_ms : durations_ms) {
    info_.times_s.push_back(static_cast<double>(end_ms) / 1000);
    end_ms += duration_ms;
    info_.is_variable_rate = info_.is_variable_rate || duration_ms != durations_ms.front();
  }
  info_.duration_s = static_cast<double>(end_ms) / 1000;
  const auto count = static_cast<double>(info_.frames());
  info_.fps = count > 1 ? (count - 1) / info_.times_s.back() : count / info_.duration_s;
}

void AnimationReader::read(std::span<const int64_t> frames,
                           const std::function<void(Image)>& sink) {
  check_numbers(frames, info_, place_);
  for (const int64_t number : frames) {
    if (number < next_ - 1) open();
    try {
      while (next_ <= number) {
        const Raster& canvas = animation_->next();
        if (next_++ == number) shown_ = to_rgb(canvas, /*over_white=*/true);
      }
    } catch (const DecodeError& error) {
      throw Error(ErrorCode::kDataLoss,
                  place_ + ": frame " + std::to_string(next_) + ": " + error.what(),
                  "the animation is damaged or cut short; get it again");
    }
    sink(shown_);
  }
}

}  // namespace

std::unique_ptr<ClipReader> open_animation(const std::filesystem::path& path,
                                           const ClipLimits& limits) {
  return std::make_unique<AnimationReader>(path, limits);
}

}  // namespace atelier::media
