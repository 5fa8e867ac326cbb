#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/dataset.h"
#include "host/files/file_reader.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"

namespace atelier::data {
namespace {

// The transparency of the image to learn, cut as it is; undefined where it has none.
at::Tensor read_alpha_mask(const std::string& path, const MediaTarget& target) {
  const media::Image alpha =
      media::decode_with_alpha(inputs::read_image_file(path), files::display_path(path)).alpha;
  if (alpha.rgb.empty()) return {};
  return media::to_mask(media::crop_and_resize(alpha, static_cast<int>(target.width),
                                               static_cast<int>(target.height)));
}

}  // namespace

Inputs Dataset::values_of(const Item& item) const {
  Inputs values;
  for (const InputSpec& input : inputs_) {
    if (inputs::is_file(input.kind)) continue;
    const std::string name(input.name);
    values.emplace(name, inputs::to_input(input, item.values.at(name)));
  }
  return values;
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
  const MediaTarget target = {1, item.height, item.width};
  Sample sample = {values_of(item), {}};
  for (const InputSpec& input : inputs_) {
    const auto paths = item.files.find(input.name);
    if (paths != item.files.end())
      sample.inputs.emplace(input.name, inputs::read_files(input, paths->second, target));
  }
  const at::Tensor& learnt = std::get<at::Tensor>(sample.inputs.at(learnt_));
  for (const InputSpec& input : inputs_) {
    if (!sample.inputs.contains(input.name))
      sample.inputs.emplace(input.name, inputs::simulated(input, learnt));
  }
  const std::string& mask_column = options_.mask_column;
  if (options_.alpha_mask) sample.mask = read_alpha_mask(item.files.at(learnt_).front(), target);
  const auto mask = item.files.find(mask_column);
  if (mask != item.files.end() && !sample.inputs.contains(mask_column))
    sample.mask = std::get<at::Tensor>(
        inputs::read_files({.name = mask_column, .kind = InputKind::kMask}, mask->second, target));
  return sample;
}

}  // namespace atelier::data
