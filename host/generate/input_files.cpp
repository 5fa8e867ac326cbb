#include "host/generate/input_files.h"

#include <algorithm>
#include <functional>
#include <span>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
#include "host/media/frame_rate.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

// The value of an input, of its files.
using ReadFiles = std::function<InputValue(const InputSpec&, std::span<const std::string>)>;

// The mask is brought to its size as the image is that sampling begins from.
InputFiles inputs_by(const ReadFiles& read_value, const order::Settings& s,
                     const ModelFamily& family) {
  InputFiles files = {.inputs = value_inputs(s, family)};
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    InputValue value = read_value(input, inputs::texts_of(*given));
    if (input.role != InputRole::kStart) {
      files.inputs.insert_or_assign(std::string(input.name), std::move(value));
      continue;
    }
    const at::Tensor& pixels = std::get<at::Tensor>(value);
    files.start_pixels = inputs::is_clip(input.kind) ? pixels : pixels.unsqueeze(1);
    if (s.inpaint_mask.empty()) continue;
    const InputSpec mask = {.name = "inpaint_mask", .kind = InputKind::kMask, .fit = input.fit};
    files.inpaint_mask = std::get<at::Tensor>(read_value(mask, {&s.inpaint_mask, 1}));
  }
  return files;
}

// The frames of a clip that are seen, as many as are made.
std::vector<int64_t> read_frames(const std::string& clip, const order::Settings& s) {
  std::vector<int64_t> frames = shown_frames(media::open_clip(clip)->info(), s);
  frames.resize(std::min(frames.size(), static_cast<size_t>(order::target_of(s).frames)));
  return frames;
}

}  // namespace

std::vector<int64_t> shown_frames(const media::ClipInfo& clip, const order::Settings& s) {
  return media::frames_at_rate(clip, s.fps.value_or(0.0));
}

files::Checkpoint open_latents(const std::string& path) {
  files::Checkpoint file = files::Checkpoint::open(path, std::vector<std::string>{path});
  if (!file.index().contains("latents")) {
    throw Error(ErrorCode::kNotFound, path + ": tensor \"latents\" is missing");
  }
  return file;
}

Inputs value_inputs(const order::Settings& s, const ModelFamily& family) {
  Inputs values = {{"prompt", s.prompt.value_or("")}};
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given != s.family_inputs.end() && !inputs::is_file(input.kind))
      values.insert_or_assign(std::string(input.name), inputs::to_input(input, *given));
  }
  return values;
}

Inputs input_shapes(const order::Settings& s, const ModelFamily& family) {
  Inputs shapes = value_inputs(s, family);
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    std::vector<std::string> paths = inputs::texts_of(*given);
    std::erase_if(paths, [&](const std::string& path) {
      return inputs::check_file(input.kind, path, /*decode_all=*/false).error.has_value();
    });
    if (paths.empty()) continue;
    InputValue shape = inputs::shapes_of(input, paths, std::nullopt);
    if (inputs::is_clip(input.kind)) {
      const auto frames = std::ssize(shown_frames(media::open_clip(paths.front())->info(), s));
      shape = std::get<at::Tensor>(shape).narrow(1, 0, 1).expand({-1, frames, -1, -1});
    }
    shapes.insert_or_assign(std::string(input.name), std::move(shape));
  }
  return shapes;
}

InputFiles read_inputs(const order::Settings& s, const ModelFamily& family) {
  const MediaTarget target = order::target_of(s);
  const memory::HostScope on_host;  // files are read there, whatever computes
  const auto read_value = [&](const InputSpec& input,
                              std::span<const std::string> paths) -> InputValue {
    if (!inputs::is_clip(input.kind)) return inputs::read_files(input, paths, target);
    return inputs::read_clip(input, paths.front(), read_frames(paths.front(), s), target);
  };
  InputFiles files = inputs_by(read_value, s, family);
  if (!s.latents.empty()) files.latents = open_latents(s.latents).read("latents", at::kFloat);
  return files;
}

InputFiles blank_inputs(const order::Settings& s, const ModelFamily& family) {
  const memory::HostScope on_host;
  const auto blank = [](const at::Tensor& shape) {
    return at::zeros(shape.sizes(), at::TensorOptions(at::kCPU).dtype(shape.scalar_type()));
  };
  const auto read_value = [&](const InputSpec& input,
                              std::span<const std::string> paths) -> InputValue {
    InputValue shapes = inputs::shapes_of(input, paths, order::target_of(s));
    if (auto* const images = std::get_if<std::vector<at::Tensor>>(&shapes)) {
      std::ranges::transform(*images, images->begin(), blank);
      return shapes;
    }
    const at::Tensor& shape = std::get<at::Tensor>(shapes);
    if (!inputs::is_clip(input.kind)) return blank(shape);
    return blank(shape.narrow(1, 0, std::ssize(read_frames(paths.front(), s))));
  };
  return inputs_by(read_value, s, family);
}

}  // namespace atelier::generate
