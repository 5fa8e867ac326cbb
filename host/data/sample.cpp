#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/columns.h"
#include "host/data/dataset.h"
#include "host/data/picture_check.h"
#include "host/data/sizes.h"
#include "host/files/file_reader.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"

namespace atelier::data {
namespace {

media::Picture read(const std::string& path) {
  return media::decode_picture(read_picture_file(path), files::display_path(path));
}

media::Picture cut(const media::Picture& picture, Size size) {
  return media::crop_and_resize(picture, static_cast<int>(size.width),
                                static_cast<int>(size.height));
}

// Returns float32 [1, H, W] in [0, 1]: the brightness of each pixel, as Pillow's mode L.
at::Tensor to_mask(const media::Picture& picture) {
  at::Tensor mask = at::empty({1, picture.height, picture.width}, at::kFloat);
  float* out = mask.mutable_data_ptr<float>();
  for (size_t i = 0; i < picture.rgb.size(); i += 3) {
    const uint8_t* rgb = picture.rgb.data() + i;
    const uint32_t gray = (rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16;
    *out++ = static_cast<float>(gray) / 255.0F;
  }
  return mask;
}

InputValue value_of(const InputSpec& input, const nlohmann::json& value) {
  switch (input.kind) {
    case InputKind::kInteger:
      return value.get<int64_t>();
    case InputKind::kReal:
      return value.get<double>();
    case InputKind::kFlag:
      return value.get<bool>();
    default:
      return value.get<std::string>();
  }
}

}  // namespace

Inputs Dataset::values_of(const Item& item) const {
  Inputs inputs;
  for (const InputSpec& input : inputs_) {
    if (is_picture(input.kind)) continue;
    const std::string name(input.name);
    inputs.emplace(name, value_of(input, item.values.at(name)));
  }
  return inputs;
}

Sample Dataset::load(size_t index) const {
  const Item& item = items_.at(index);
  try {
    return load(item);
  } catch (const Error& error) {
    throw error.at(item.place);
  }
}

Sample Dataset::load(const Item& item) const {
  const Size size = {item.height, item.width};
  Sample sample = {values_of(item), {}};
  for (const InputSpec& input : inputs_) {
    const std::string name(input.name);
    if (!is_picture(input.kind)) continue;
    const std::vector<std::string>& paths = item.files.at(name);
    if (input.kind == InputKind::kImageList) {
      std::vector<at::Tensor> pictures;
      for (const std::string& path : paths) {
        const media::Picture picture = read(path);
        pictures.push_back(
            media::to_pixels(cut(picture, sizes_->of(picture.height, picture.width))));
      }
      sample.inputs.emplace(name, std::move(pictures));
    } else if (input.kind == InputKind::kMask) {
      sample.inputs.emplace(name, to_mask(cut(read(paths.front()), size)));
    } else if (name == learnt_ && options_.alpha_mask) {
      auto [picture, alpha] = media::decode_with_alpha(read_picture_file(paths.front()),
                                                       files::display_path(paths.front()));
      sample.inputs.emplace(name, media::to_pixels(cut(picture, size)));
      if (!alpha.rgb.empty()) sample.mask = to_mask(cut(alpha, size));
    } else {
      sample.inputs.emplace(name, media::to_pixels(cut(read(paths.front()), size)));
    }
  }
  const auto mask = item.files.find(options_.mask_column);
  if (mask != item.files.end() && !sample.inputs.contains(options_.mask_column))
    sample.mask = to_mask(cut(read(mask->second.front()), size));
  return sample;
}

}  // namespace atelier::data
