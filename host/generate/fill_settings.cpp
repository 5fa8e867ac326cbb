#include "host/generate/fill_settings.h"

#include <algorithm>
#include <cmath>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "host/files/file_reader.h"
#include "host/generate/input_files.h"
#include "host/inputs/parse.h"
#include "host/model/config_check.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"

namespace atelier::generate {
namespace {

constexpr double kMostPixels = 1e6;  // of a side, more than any check lets pass

// What is made of a clip [C, T, H, W] where the user leaves it open: its frames and its shape, as
// far as the model can make them.
MediaTarget target_of_clip(const at::Tensor& clip_CTHW, const MediaTarget& asked,
                           const LatentSpec& spec) {
  const auto height = static_cast<double>(clip_CTHW.size(2)),
             width = static_cast<double>(clip_CTHW.size(3));
  double scale = 1.0;
  if (asked.height > 0) {
    scale = static_cast<double>(asked.height) / height;
  } else if (asked.width > 0) {
    scale = static_cast<double>(asked.width) / width;
  }
  const auto side = [&](double length) {
    const auto scaled = static_cast<int64_t>(std::min(length * scale, kMostPixels));
    return std::max(scaled / spec.pixel_multiple, int64_t{1}) * spec.pixel_multiple;
  };
  return {largest_clip(clip_CTHW.size(1), spec), side(height), side(width)};
}

// The frames that a model makes of a sound, which it counts at the rate that it is made for, at
// another one.
int64_t at_rate(int64_t frames, double fps, double of_model) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(frames) * fps / of_model));
}

MediaTarget target_of_inputs(const Inputs& shapes, const MediaTarget& asked,
                             const model::LoadedModel& model, const order::Origin& place) {
  try {
    return model.model().target(shapes, asked);
  } catch (const Error& error) {
    throw order::told_at(error, model.family().inputs(), place);
  }
}

bool has_sound(const Inputs& inputs, std::span<const InputSpec> specs) {
  return std::ranges::any_of(specs, [&](const InputSpec& input) {
    return input.kind == InputKind::kAudio && inputs.contains(input.name);
  });
}

}  // namespace

int64_t largest_clip(int64_t frames, const LatentSpec& spec) {
  return (frames - 1) / spec.temporal_stride * spec.temporal_stride + 1;
}

void fill_target(order::Settings& s, const model::LoadedModel& model, const order::Origin& place) {
  MediaDefaults preset = model::media_defaults(model);
  if (!s.fps && preset.fps > 0) s.fps = preset.fps;
  const MediaTarget asked = {s.num_frames.value_or(0), s.height.value_or(0), s.width.value_or(0)};
  Inputs shapes = input_shapes(s, model.family());
  if (!s.prompt) shapes.erase("prompt");  // none yet, which is another thing than an empty one
  MediaTarget said = target_of_inputs(shapes, asked, model, place);
  if (!s.num_frames && preset.fps > 0 && has_sound(shapes, model.family().inputs()))
    said.frames = at_rate(said.frames, *s.fps, preset.fps);
  if (s.num_frames && s.height && s.width) return;
  if (const InputSpec* start = model::start_input(model.family().inputs());
      start != nullptr && inputs::is_clip(start->kind)) {
    if (const auto* clip = find_input<at::Tensor>(shapes, start->name))
      preset.target = target_of_clip(*clip, asked, model.model().latent_spec());
  }
  const auto fill = [](std::optional<int64_t>& to, int64_t from_inputs, int64_t from_model) {
    if (!to) to = from_inputs > 0 ? from_inputs : from_model;
  };
  fill(s.num_frames, said.frames, preset.target.frames);
  fill(s.height, said.height, preset.target.height);
  fill(s.width, said.width, preset.target.width);
}

namespace {

constexpr const char* kOfFolder = "diffusers";  // the schedule that goes by the model's folder

// Under --schedule diffusers.
void fill_from_scheduler(order::Settings& s, const model::FolderFile& file) {
  const TensorIndex scheduler({}, file.fields);
  const auto name = file.fields.find("_class_name");
  const auto is_class = [&](const char* wanted) {
    return name != file.fields.end() && name->second == ConfigValue(wanted);
  };
  auto shift = scheduler.config_real("flow_shift");
  if (!shift) shift = scheduler.config_real("shift");
  if (is_class("FlowMatchEulerDiscreteScheduler") && s.solver.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "--schedule " + std::string(kOfFolder) + ": " + files::display_path(file.path) +
                    " is a FlowMatchEulerDiscreteScheduler, whose levels are not made under this "
                    "name",
                "choose another schedule, and its shift with --flow_shift");
  }
  if (is_class("DPMSolverMultistepScheduler") && s.solver.empty()) s.solver = "dpm++";
  if (!s.flow_shift && s.sigmas.empty()) s.flow_shift = shift;
}

}  // namespace

void fill_from_folder(order::Settings& s, const model::LoadedModel& model) {
  const std::vector<model::RangedDenoiser>& denoisers = model.stages().denoisers;
  if (denoisers.empty()) return;
  for (const model::FolderFile& file :
       model::folder_files(model.find_part(denoisers.front().name())->model_folder())) {
    if (file.prefix == "scheduler." && s.schedule == kOfFolder) fill_from_scheduler(s, file);
  }
}

}  // namespace atelier::generate
