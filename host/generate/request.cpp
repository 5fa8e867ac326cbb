#include "host/generate/request.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "host/files/file_reader.h"
#include "host/generate/sigma_schedule.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"
#include "host/media/frame_rate.h"
#include "host/model/config_check.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

constexpr std::pair<std::string_view, CfgRenorm> kRenorms[] = {
    {"none", CfgRenorm::kNone}, {"clamp", CfgRenorm::kClamp}, {"row", CfgRenorm::kRow}};
constexpr double kMostPixels = 1e6;  // of a side, more than any check lets pass

// The first levels would leave nothing of an image or a clip to start from.
std::vector<float> sigmas_of(const Settings& s, const ScheduleDefaults& schedule,
                             const LatentSpec& spec, std::span<const InputSpec> inputs) {
  std::vector<float> sigmas = make_sigmas(
      schedule,
      {.num_steps = static_cast<int>(s.num_inference_steps.value_or(schedule.num_inference_steps)),
       .tokens = tokens_of(target_of(s), spec),
       .flow_shift = s.flow_shift,
       .sigmas = s.sigmas});
  if (!has_start(s, inputs)) return sigmas;
  return keep_last_steps(std::move(sigmas), s.denoising_strength.value_or(kDefaultStrength),
                         /*from_clip=*/inputs::is_clip(model::start_input(inputs)->kind));
}

// The inputs that are given; images and clips have the sizes of their files and no values, clips
// the frames that are seen. Files that cannot be read are told when they are checked.
Inputs shapes_of(const Settings& s, const ModelFamily& family) {
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

// The mask, brought to its size as the image is that sampling begins from.
at::Tensor read_mask(const Settings& s, const InputSpec& start, const MediaTarget& target) {
  const InputSpec mask = {.name = "inpaint_mask", .kind = InputKind::kMask, .fit = start.fit};
  return std::get<at::Tensor>(inputs::read_files(mask, {&s.inpaint_mask, 1}, target));
}

// The frames of a clip that are seen, as many as are made.
at::Tensor read_clip(const InputSpec& input, const std::string& path, const Settings& s) {
  const MediaTarget target = target_of(s);
  std::vector<int64_t> frames = shown_frames(media::open_clip(path)->info(), s);
  frames.resize(std::min(frames.size(), static_cast<size_t>(target.frames)));
  return inputs::read_clip(input, path, frames, target);
}

}  // namespace

std::vector<int64_t> shown_frames(const media::ClipInfo& clip, const Settings& s) {
  return media::frames_at_rate(clip, s.fps.value_or(0.0));
}

int64_t largest_clip(int64_t frames, const LatentSpec& spec) {
  return (frames - 1) / spec.temporal_stride * spec.temporal_stride + 1;
}

std::optional<CfgRenorm> find_renorm(std::string_view name) {
  for (const auto& [known, renorm] : kRenorms) {
    if (known == name) return renorm;
  }
  return std::nullopt;
}

files::Checkpoint open_latents(const std::string& path) {
  files::Checkpoint file = files::Checkpoint::open(path, std::vector<std::string>{path});
  if (!file.index().contains("latents")) {
    throw Error(ErrorCode::kNotFound, path + ": tensor \"latents\" is missing");
  }
  return file;
}

int64_t tokens_of(const MediaTarget& target, const LatentSpec& spec) {
  const int64_t latent_frames = (target.frames - 1) / spec.temporal_stride + 1;
  return latent_frames * (target.height / spec.token_stride) * (target.width / spec.token_stride);
}

const ScheduleDefaults& schedule_of(const Settings& s, const ModelFamily& family,
                                    std::string_view variant) {
  return find_schedule(family.schedules(), s.schedule, variant, s.solver);
}

CfgScales cfg_scales_of(const Settings& s, const ModelFamily& family, std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  if (s.cfg_scale) return {*s.cfg_scale, s.cfg_scale_2};
  return {schedule.cfg_scale, s.cfg_scale_2 ? s.cfg_scale_2 : schedule.cfg_scale_2};
}

void fill_target(Settings& s, const model::LoadedModel& model) {
  MediaDefaults preset = model::media_defaults(model);
  if (!s.fps && preset.fps > 0) s.fps = preset.fps;
  const MediaTarget asked = {s.num_frames.value_or(0), s.height.value_or(0), s.width.value_or(0)};
  const Inputs shapes = shapes_of(s, model.family());
  const MediaTarget said = model.model().target(shapes, asked);
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
void fill_from_scheduler(Settings& s, const model::FolderFile& file) {
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

void fill_from_folder(Settings& s, const model::LoadedModel& model) {
  const std::vector<model::RangedDenoiser>& denoisers = model.stages().denoisers;
  if (denoisers.empty()) return;
  for (const model::FolderFile& file :
       model::folder_files(model.find_part(denoisers.front().name())->checkpoint)) {
    if (file.prefix == "scheduler." && s.schedule == kOfFolder) fill_from_scheduler(s, file);
  }
}

std::string_view renorm_name(CfgRenorm renorm) {
  return std::ranges::find(kRenorms, renorm, &std::pair<std::string_view, CfgRenorm>::second)
      ->first;
}

Inputs value_inputs(const Settings& s, const ModelFamily& family) {
  Inputs values = {{"prompt", s.prompt.value_or("")}};
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given != s.family_inputs.end() && !inputs::is_file(input.kind))
      values.insert_or_assign(std::string(input.name), inputs::to_input(input, *given));
  }
  return values;
}

Request make_request(const Settings& s, const ModelFamily& family, const Model& model,
                     uint64_t seed, std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  Request request;
  request.target = target_of(s);
  request.inputs = value_inputs(s, family);
  const memory::HostScope on_host;  // files are read there, whatever computes
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    const std::vector<std::string> paths = inputs::texts_of(*given);
    const bool is_clip = inputs::is_clip(input.kind);
    InputValue value = is_clip ? InputValue(read_clip(input, paths.front(), s))
                               : inputs::read_files(input, paths, request.target);
    if (input.role == InputRole::kStart) {
      const at::Tensor& pixels = std::get<at::Tensor>(value);
      request.input_pixels = is_clip ? pixels : pixels.unsqueeze(1);
      if (!s.inpaint_mask.empty()) request.inpaint_mask = read_mask(s, input, request.target);
    } else {
      request.inputs.insert_or_assign(std::string(input.name), std::move(value));
    }
  }
  request.negative_prompt = s.negative_prompt;
  const CfgScales scales = cfg_scales_of(s, family, variant);
  request.cfg_scale = scales.first;
  request.cfg_scale_2 = scales.second;
  request.cfg_trunc = s.cfg_trunc.value_or(schedule.cfg_trunc);
  request.cfg_renorm = find_renorm(s.cfg_renorm).value_or(schedule.cfg_renorm);
  request.cfg_renorm_ratio = s.cfg_renorm_ratio.value_or(schedule.cfg_renorm_ratio);
  request.sigmas = sigmas_of(s, schedule, model.latent_spec(), family.inputs());
  request.whole_timesteps = schedule.whole_timesteps;
  request.switch_boundary = s.switch_boundary;
  request.solver = s.solver.empty() ? schedule.solver : s.solver;
  for (int64_t i = 0; i < s.num_images; ++i)
    request.seeds.push_back(seed + static_cast<uint64_t>(i));
  request.batch_size = s.batch_size;
  if (!s.latents.empty()) request.latents = open_latents(s.latents).read("latents", at::kFloat);
  return request;
}

}  // namespace atelier::generate
