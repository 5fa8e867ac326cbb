#include "host/data/sizes.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

namespace atelier::data {
namespace {

constexpr int64_t kMaxSide = 65'536;

std::string with_number(const char* flag, int64_t value) {
  return std::string("--") + flag + ": " + std::to_string(value);
}

// Says what is wrong with a length in pixels.
void check_multiple(const char* flag, int64_t value, int64_t multiple, report::Problems& problems) {
  if (value < multiple || value > kMaxSide) {
    problems.add(with_number(flag, value) + " pixels are not between " + std::to_string(multiple) +
                 " and " + std::to_string(kMaxSide));
  } else if (value % multiple != 0) {
    const int64_t below = value / multiple * multiple;
    problems.add(with_number(flag, value) + " is no multiple of " + std::to_string(multiple),
                 "use " + std::to_string(below) + " or " + std::to_string(below + multiple));
  }
}

void check_buckets(const DatasetOptions& options, int64_t multiple, report::Problems& problems) {
  check_multiple("bucket_reso_steps", options.bucket_reso_steps, multiple, problems);
  if (options.min_bucket_reso < 1 || options.max_bucket_reso > kMaxSide) {
    problems.add(with_number("min_bucket_reso", options.min_bucket_reso) +
                     " and --max_bucket_reso: " + std::to_string(options.max_bucket_reso) +
                     " leave no size between them",
                 "use for instance 256 and 2048");
  }
}

}  // namespace

void check_sizes(const DatasetOptions& options, report::Problems& problems) {
  if (options.height.has_value() != options.width.has_value()) {
    problems.add(std::string("--") + (options.height ? "height" : "width") +
                     ": is given without --" + (options.height ? "width" : "height"),
                 "give both, or neither to keep each image's shape");
  }
  if (options.enable_bucket && options.height && options.width) {
    problems.add("--enable_bucket: all images have one size by --height and --width",
                 "leave out one of them; --max_pixels is the area of the buckets");
  }
  if (options.min_bucket_reso > options.max_bucket_reso) {
    problems.add(with_number("min_bucket_reso", options.min_bucket_reso) +
                     " is more than --max_bucket_reso " + std::to_string(options.max_bucket_reso),
                 "use for instance 256 and 2048");
  }
}

Size target_size(int64_t height, int64_t width, int64_t max_pixels, int64_t multiple) {
  const double pixels = static_cast<double>(height) * static_cast<double>(width);
  double scale = 1.0;
  if (pixels > static_cast<double>(max_pixels))
    scale = std::sqrt(pixels / static_cast<double>(max_pixels));
  const auto fitted = [&](int64_t side) {
    return static_cast<int64_t>(static_cast<double>(side) / scale) / multiple * multiple;
  };
  return {fitted(height), fitted(width)};
}

std::vector<Size> make_buckets(const DatasetOptions& options, int64_t multiple) {
  // A multiple of both, so that every bucket fits the model.
  const int64_t step = std::max(multiple, options.bucket_reso_steps / multiple * multiple);
  const int64_t first = (std::max(options.min_bucket_reso, step) + step - 1) / step * step;
  const int64_t last = options.max_bucket_reso / step * step;
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (int64_t side = first; side <= last; side += step) {
    const int64_t other = std::min(last, options.max_pixels / side / step * step);
    if (other < first) break;
    sizes.emplace(side, other);
    sizes.emplace(other, side);
  }
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(options.max_pixels)));
  const int64_t square = std::min(last, root / step * step);
  if (square >= first) sizes.emplace(square, square);
  std::vector<Size> buckets;
  buckets.reserve(sizes.size());
  for (const auto& [height, width] : sizes) buckets.push_back({height, width});
  return buckets;
}

Size nearest_bucket(std::span<const Size> buckets, int64_t height, int64_t width) {
  const auto ratio = [](int64_t h, int64_t w) {
    return std::log(static_cast<double>(h) / static_cast<double>(w));
  };
  const double wanted = ratio(height, width);
  const auto is_nearer = [&](const Size& a, const Size& b) {
    const double error_a = std::abs(ratio(a.height, a.width) - wanted);
    const double error_b = std::abs(ratio(b.height, b.width) - wanted);
    if (error_a != error_b) return error_a < error_b;
    return a.height * a.width > b.height * b.width;
  };
  const auto nearest = std::min_element(buckets.begin(), buckets.end(), is_nearer);
  return nearest == buckets.end() ? Size{0, 0} : *nearest;
}

SizeRule::SizeRule(const DatasetOptions& options, int64_t multiple, report::Problems& problems)
    : options_(options), multiple_(multiple), is_valid_(check(problems)) {
  if (!is_valid_ || !options_.enable_bucket) return;
  buckets_ = make_buckets(options_, multiple_);
  if (!buckets_.empty()) return;
  problems.add(
      "--enable_bucket: no bucket fits --min_bucket_reso, --max_bucket_reso and "
      "--max_pixels " +
          std::to_string(options_.max_pixels),
      "lower --min_bucket_reso");
  is_valid_ = false;
}

bool SizeRule::check(report::Problems& problems) const {
  report::Problems found;
  check_sizes(options_, found);
  if (options_.height) check_multiple("height", *options_.height, multiple_, found);
  if (options_.width) check_multiple("width", *options_.width, multiple_, found);
  if (options_.max_pixels < multiple_ * multiple_) {
    found.add(with_number("max_pixels", options_.max_pixels) + " is less than the " +
                  std::to_string(multiple_ * multiple_) + " pixels of the smallest image",
              "use for instance 1048576");
  }
  if (options_.enable_bucket) check_buckets(options_, multiple_, found);
  problems.collect([&] { found.throw_if_any(); });
  return found.empty();
}

Size SizeRule::of(int64_t height, int64_t width) const {
  if (!is_valid_ || height < 1 || width < 1) return {0, 0};
  if (options_.height) return {*options_.height, *options_.width};
  if (!options_.enable_bucket) return target_size(height, width, options_.max_pixels, multiple_);
  const Size bucket = nearest_bucket(buckets_, height, width);
  const bool is_enlarged = bucket.height > height || bucket.width > width;
  if (!is_enlarged || !options_.bucket_no_upscale) return bucket;
  return target_size(height, width, options_.max_pixels, options_.bucket_reso_steps);
}

}  // namespace atelier::data
