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
                     const ModelFamily& family, Beside beside) {
  InputFiles files = {.inputs = value_inputs(s, family)};
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    if (beside == Beside::kPieces && input.along_clip) continue;
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

inputs::Area written_area(const order::Settings& s, const ModelFamily& family) {
  const MediaTarget target = order::target_of(s);
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    const bool has_bars = input.kind == InputKind::kImage && input.fit == InputFit::kPad &&
                          input.max_count == 1 && input.fit_height == 0;
    if (!has_bars || given == s.family_inputs.end()) continue;
    const InputValue shape = inputs::own_shapes_of(input, inputs::texts_of(*given), /*fps=*/0.0);
    const at::Tensor& image = std::get<at::Tensor>(shape);
    return inputs::area_of(input, {.height = image.size(-2), .width = image.size(-1)}, target);
  }
  return {.top = 0, .left = 0, .height = target.height, .width = target.width};
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

namespace {

inputs::Made made_of(const order::Settings& s) {
  return {order::target_of(s), s.fps.value_or(0.0)};
}

// Files are read on the host, whatever computes.
ReadFiles reads(const inputs::Made& made) {
  return [made](const InputSpec& input, std::span<const std::string> paths) {
    const memory::HostScope on_host;
    return inputs::read_files(input, paths, made);
  };
}

ReadFiles makes_blank(const inputs::Made& made) {
  return [made](const InputSpec& input, std::span<const std::string> paths) -> InputValue {
    const memory::HostScope on_host;
    const auto blank = [](const at::Tensor& shape) {
      return at::zeros(shape.sizes(), at::TensorOptions(at::kCPU).dtype(shape.scalar_type()));
    };
    InputValue shapes = inputs::shapes_of(input, paths, made);
    if (auto* const images = std::get_if<std::vector<at::Tensor>>(&shapes)) {
      std::ranges::transform(*images, images->begin(), blank);
      return shapes;
    }
    return blank(std::get<at::Tensor>(shapes));
  };
}

// A piece may end behind the clip, where what runs beside that ends, too.
Inputs beside_by(ReadFiles (*read)(const inputs::Made& made), const order::Settings& s,
                 const ModelFamily& family, const Piece& piece) {
  inputs::Made made = made_of(s);
  made.target.frames = piece.frames;
  made.first = piece.first;
  Inputs values;
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !input.along_clip) continue;
    InputSpec lasting = input;
    if (input.tail == Tail::kRefuse)
      lasting.tail = inputs::is_sound(input.kind) ? Tail::kZero : Tail::kRepeat;
    values.emplace(input.name, read(made)(lasting, inputs::texts_of(*given)));
  }
  return values;
}

}  // namespace

std::vector<Piece> pieces_of(const order::Settings& s, const ModelFamily& family,
                             const Model& model, const order::Origin& place) {
  if (!s.num_frames || !s.height || !s.width) return {};
  const MediaTarget target = order::target_of(s);
  if (target.frames <= 1 || target.frames > order::kMaxImages) return {};
  try {
    return model.pieces(input_shapes(s, family), target);
  } catch (const Error& error) {
    throw order::told_at(error, family.inputs(), place);
  }
}

MediaTarget made_at_once(const order::Settings& s, const ModelFamily& family, const Model& model) {
  MediaTarget target = order::target_of(s);
  const std::vector<Piece> pieces = pieces_of(s, family, model);
  if (!pieces.empty()) target.frames = std::ranges::max(pieces, {}, &Piece::frames).frames;
  return target;
}

InputFiles read_inputs(const order::Settings& s, const ModelFamily& family, Beside beside) {
  InputFiles files = inputs_by(reads(made_of(s)), s, family, beside);
  const memory::HostScope on_host;
  if (!s.latents.empty()) files.latents = open_latents(s.latents).read("latents", at::kFloat);
  if (files.latents.defined() && files.latents.dim() == 4)
    files.latents = files.latents.unsqueeze(2);  // pictures, which have one frame
  return files;
}

Inputs read_beside(const order::Settings& s, const ModelFamily& family, const Piece& piece) {
  return beside_by(reads, s, family, piece);
}

InputFiles blank_inputs(const order::Settings& s, const ModelFamily& family, Beside beside) {
  return inputs_by(makes_blank(made_of(s)), s, family, beside);
}

Inputs blank_beside(const order::Settings& s, const ModelFamily& family, const Piece& piece) {
  return beside_by(makes_blank, s, family, piece);
}

}  // namespace atelier::generate
