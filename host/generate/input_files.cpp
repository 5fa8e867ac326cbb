#include "host/generate/input_files.h"

#include <algorithm>
#include <functional>
#include <span>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
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

}  // namespace

std::string soundtrack_file(const order::Settings& s, const ModelFamily& family) {
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (!input.is_soundtrack || given == s.family_inputs.end()) continue;
    const std::string path = inputs::texts_of(*given).front();
    const auto file = inputs::check_file(input.kind, path, /*decode_all=*/false);
    if (file.sound || (file.clip && file.clip->has_sound)) return path;
  }
  return {};
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
    shapes.insert_or_assign(std::string(input.name),
                            inputs::own_shapes_of(input, paths, s.fps.value_or(0.0)));
  }
  return shapes;
}

InputFiles read_inputs(const order::Settings& s, const ModelFamily& family) {
  const inputs::Made made = {order::target_of(s), s.fps.value_or(0.0)};
  const memory::HostScope on_host;  // files are read there, whatever computes
  const auto read_value = [&](const InputSpec& input, std::span<const std::string> paths) {
    return inputs::read_files(input, paths, made);
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
    InputValue shapes = inputs::shapes_of(input, paths, {order::target_of(s), s.fps.value_or(0.0)});
    if (auto* const images = std::get_if<std::vector<at::Tensor>>(&shapes)) {
      std::ranges::transform(*images, images->begin(), blank);
      return shapes;
    }
    return blank(std::get<at::Tensor>(shapes));
  };
  return inputs_by(read_value, s, family);
}

}  // namespace atelier::generate
