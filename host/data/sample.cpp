#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/dataset.h"
#include "host/files/file_reader.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
#include "host/media/clip.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"

namespace atelier::data {

namespace {

// The frames of an item's numbers.
at::Tensor read_frames(const InputSpec& input, const std::string& path, const Item& item) {
  return inputs::read_clip(
      input, path, [&](const media::ClipInfo&) { return item.frames; }, item.target);
}

}  // namespace

inputs::Made made_of(const Item& item) {
  return {item.target, item.fps, item.first, item.frames};
}

Inputs Dataset::values_of(const Item& item) const {
  Inputs values;
  for (const InputSpec& input : inputs_) {
    if (inputs::is_file(input.kind)) continue;
    const std::string name(input.name);
    values.emplace(name, inputs::to_input(input, item.values.at(name)));
  }
  return values;
}

Inputs Dataset::shapes(size_t index) const {
  const Item& item = items_.at(index);
  try {
    return shapes(item);
  } catch (const Error& error) {
    throw error.at(item.place);
  }
}

Inputs Dataset::shapes(const Item& item) const {
  Inputs shapes = values_of(item);
  const at::Tensor target =
      at::empty({3, item.target.frames, item.target.height, item.target.width},
                at::TensorOptions(at::kMeta).dtype(item.frames.empty() ? at::kFloat : at::kByte));
  for (const InputSpec& input : inputs_) {
    if (input.name == target_input_ || !inputs::is_file(input.kind)) continue;
    const auto paths = item.files.find(input.name);
    if (paths == item.files.end() && input.when_absent == WhenAbsent::kLeftOut) continue;
    shapes.emplace(input.name, paths == item.files.end()
                                   ? inputs::when_absent(input, target)
                                   : inputs::shapes_of(input, paths->second, made_of(item)));
  }
  return shapes;
}

Sample Dataset::load(size_t index) const {
  const Item& item = items_.at(index);
  try {
    return load(item);
  } catch (const Error& error) {
    throw error.at(item.place);
  }
}

// An input that has files in this row.
InputValue Dataset::read(const InputSpec& input, const Item& item,
                         const std::vector<std::string>& paths) const {
  if (input.name != target_input_ || !inputs::is_clip(input.kind))
    return inputs::read_files(input, paths, made_of(item));
  if (!item.frames.empty()) return read_frames(input, paths.front(), item);
  // A picture is a clip of one frame.
  InputSpec image = input;
  image.kind = InputKind::kImage;
  return std::get<at::Tensor>(inputs::read_images(image, paths, item.target)).unsqueeze(1);
}

at::Tensor Dataset::read_mask(const Item& item, const std::string& path) const {
  const InputSpec clip = {.name = options_.mask_column, .kind = InputKind::kVideoMask};
  if (!item.frames.empty() && media::looks_like_clip(path)) return read_frames(clip, path, item);
  const InputSpec image = {.name = options_.mask_column, .kind = InputKind::kMask};
  return std::get<at::Tensor>(inputs::read_images(image, {&path, 1}, item.target));
}

Sample Dataset::load(const Item& item) const {
  const MediaTarget& size = item.target;
  Sample sample = {values_of(item), {}};
  for (const InputSpec& input : inputs_) {
    const auto paths = item.files.find(input.name);
    if (paths == item.files.end()) continue;
    if (options_.alpha_mask && input.name == target_input_ && item.frames.empty()) {
      auto [image, mask] = inputs::read_with_mask(input, paths->second.front(), size);
      const bool is_clip = inputs::is_clip(input.kind);
      sample.inputs.emplace(input.name, is_clip ? image.unsqueeze(1) : std::move(image));
      sample.mask = std::move(mask);
    } else {
      sample.inputs.emplace(input.name, read(input, item, paths->second));
    }
  }
  const InputValue& learnt = sample.inputs.at(target_input_);
  const auto* const pictures = std::get_if<std::vector<at::Tensor>>(&learnt);
  const at::Tensor target = pictures ? pictures->front() : std::get<at::Tensor>(learnt);
  for (const InputSpec& input : inputs_) {
    if (!sample.inputs.contains(input.name) && input.when_absent != WhenAbsent::kLeftOut)
      sample.inputs.emplace(input.name, inputs::when_absent(input, target));
  }
  const std::string& mask_column = options_.mask_column;
  const auto mask = item.files.find(mask_column);
  if (mask != item.files.end() && !sample.inputs.contains(mask_column))
    sample.mask = read_mask(item, mask->second.front());
  return sample;
}

}  // namespace atelier::data
