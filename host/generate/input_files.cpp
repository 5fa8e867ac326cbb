#include "host/generate/input_files.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
#include "host/media/frame_rate.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

// The mask, brought to its size as the image is that sampling begins from.
at::Tensor read_mask(const order::Settings& s, const InputSpec& start, const MediaTarget& target) {
  const InputSpec mask = {.name = "inpaint_mask", .kind = InputKind::kMask, .fit = start.fit};
  return std::get<at::Tensor>(inputs::read_files(mask, {&s.inpaint_mask, 1}, target));
}

// The frames of a clip that are seen, as many as are made.
at::Tensor read_clip(const InputSpec& input, const std::string& path, const order::Settings& s) {
  const MediaTarget target = order::target_of(s);
  std::vector<int64_t> frames = shown_frames(media::open_clip(path)->info(), s);
  frames.resize(std::min(frames.size(), static_cast<size_t>(target.frames)));
  return inputs::read_clip(input, path, frames, target);
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
  InputFiles files = {.inputs = value_inputs(s, family)};
  const memory::HostScope on_host;  // files are read there, whatever computes
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    const std::vector<std::string> paths = inputs::texts_of(*given);
    const bool is_clip = inputs::is_clip(input.kind);
    InputValue value = is_clip ? InputValue(read_clip(input, paths.front(), s))
                               : inputs::read_files(input, paths, target);
    if (input.role == InputRole::kStart) {
      const at::Tensor& pixels = std::get<at::Tensor>(value);
      files.start_pixels = is_clip ? pixels : pixels.unsqueeze(1);
      if (!s.inpaint_mask.empty()) files.inpaint_mask = read_mask(s, input, target);
    } else {
      files.inputs.insert_or_assign(std::string(input.name), std::move(value));
    }
  }
  if (!s.latents.empty()) files.latents = open_latents(s.latents).read("latents", at::kFloat);
  return files;
}

}  // namespace atelier::generate
