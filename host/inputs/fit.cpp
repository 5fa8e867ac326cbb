#include "host/inputs/fit.h"

#include "host/inputs/parse.h"
#include "host/media/resize.h"

namespace atelier::inputs {
namespace {

using media::Filter;
using media::Image;

Filter filter_of(const InputSpec& input) {
  return input.filter.value_or(input.fit == InputFit::kStretch ? Filter::kBicubic
                                                               : Filter::kBilinear);
}

// Where an image is brought to a size, which one.
std::pair<int, int> wanted_size(const InputSpec& input, const MediaTarget& target) {
  const bool has_own = input.fit_height > 0 && input.fit_width > 0;
  return {static_cast<int>(has_own ? input.fit_width : target.width),
          static_cast<int>(has_own ? input.fit_height : target.height)};
}

}  // namespace

Sides fitted_sides(const InputSpec& input, const Sides& image, const MediaTarget& target) {
  if (input.fit == InputFit::kAsIs) return image;
  const auto [width, height] = wanted_size(input, target);
  return {height, width};
}

Area area_of(const InputSpec& input, const Sides& image, const MediaTarget& target) {
  Area area = {.top = 0, .left = 0, .height = target.height, .width = target.width};
  if (input.fit != InputFit::kPad) return area;
  const auto [width, height] =
      media::size_within(static_cast<int>(image.width), static_cast<int>(image.height),
                         static_cast<int>(target.width), static_cast<int>(target.height));
  area.top = (target.height - height) / 2;
  area.left = (target.width - width) / 2;
  area.height = height;
  area.width = width;
  return area;
}

Image fitted(const Image& image, const InputSpec& input, const MediaTarget& target) {
  const auto [width, height] = wanted_size(input, target);
  switch (input.fit) {
    case InputFit::kAsIs:
      return image;
    case InputFit::kStretch:
      return media::resize(image, width, height, filter_of(input));
    case InputFit::kCrop:
      return media::crop_and_resize(image, width, height, filter_of(input));
    case InputFit::kPad:
      break;
  }
  const auto [inner_width, inner_height] =
      media::size_within(image.width, image.height, width, height);
  return media::padded(media::resize(image, inner_width, inner_height, filter_of(input)), width,
                       height, is_mask(input.kind) ? 0 : input.pad_level);
}

void fit_with_alpha(Image& image, Image& alpha, const InputSpec& input, const MediaTarget& target) {
  const auto [width, height] = wanted_size(input, target);
  const Filter filter = filter_of(input);
  if (input.fit == InputFit::kStretch)
    media::resize_with_alpha(image, alpha, width, height, filter);
  if (input.fit == InputFit::kCrop) {
    const auto [over_width, over_height] = media::covering_size(image, width, height);
    media::resize_with_alpha(image, alpha, over_width, over_height, filter);
    image = media::center_crop(image, width, height);
    alpha = media::center_crop(alpha, width, height);
  }
  if (input.fit == InputFit::kPad) {
    const auto [inner_width, inner_height] =
        media::size_within(image.width, image.height, width, height);
    media::resize_with_alpha(image, alpha, inner_width, inner_height, filter);
    image = media::padded(image, width, height, input.pad_level);
    alpha = media::padded(alpha, width, height, /*level=*/255);
  }
}

}  // namespace atelier::inputs
