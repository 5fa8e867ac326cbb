#include "host/generate/request.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/generate/sigma_schedule.h"
#include "host/inputs/parse.h"
#include "host/inputs/read.h"

namespace atelier::generate {
namespace {

constexpr std::pair<std::string_view, CfgRenorm> kRenorms[] = {
    {"none", CfgRenorm::kNone}, {"clamp", CfgRenorm::kClamp}, {"row", CfgRenorm::kRow}};

// `starts`: from an image, which the first levels would leave nothing of.
std::vector<float> sigmas_of(const Settings& s, const ScheduleDefaults& schedule,
                             const LatentSpec& spec, bool starts) {
  std::vector<float> sigmas = make_sigmas(
      schedule,
      {.num_steps = static_cast<int>(s.num_inference_steps.value_or(schedule.num_inference_steps)),
       .tokens = tokens_of(target_of(s), spec),
       .flow_shift = s.flow_shift,
       .sigmas = s.sigmas});
  if (!starts) return sigmas;
  return keep_last_steps(std::move(sigmas), s.denoising_strength.value_or(kDefaultStrength));
}

// The inputs that are given; images have the sizes of their files and no values. Those that cannot
// be read are told when they are checked.
Inputs shapes_of(const Settings& s, const ModelFamily& family) {
  Inputs shapes = value_inputs(s, family);
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_image(input.kind)) continue;
    try {
      shapes.insert_or_assign(std::string(input.name),
                              inputs::shapes_of(input, inputs::texts_of(*given), std::nullopt));
    } catch (const Error&) {
    }
  }
  return shapes;
}

}  // namespace

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
  return find_schedule(family.schedules(), s.schedule, variant);
}

CfgScales cfg_scales_of(const Settings& s, const ModelFamily& family, std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  if (s.cfg_scale) return {*s.cfg_scale, s.cfg_scale_2};
  return {schedule.cfg_scale, s.cfg_scale_2 ? s.cfg_scale_2 : schedule.cfg_scale_2};
}

void fill_target(Settings& s, const model::LoadedModel& model) {
  MediaDefaults preset;
  if (const model::RangedDenoiser* denoiser = model.stages().first())
    preset = model.family().media_defaults(denoiser->part);
  if (!s.fps && preset.fps > 0) s.fps = preset.fps;
  if (s.num_frames && s.height && s.width) return;
  const MediaTarget asked = {s.num_frames.value_or(0), s.height.value_or(0), s.width.value_or(0)};
  const MediaTarget said = model.model().target(shapes_of(s, model.family()), asked);
  const auto fill = [](std::optional<int64_t>& to, int64_t from_inputs, int64_t from_model) {
    if (!to) to = from_inputs > 0 ? from_inputs : from_model;
  };
  fill(s.num_frames, said.frames, preset.target.frames);
  fill(s.height, said.height, preset.target.height);
  fill(s.width, said.width, preset.target.width);
}

std::string_view renorm_name(CfgRenorm renorm) {
  return std::ranges::find(kRenorms, renorm, &std::pair<std::string_view, CfgRenorm>::second)
      ->first;
}

Inputs value_inputs(const Settings& s, const ModelFamily& family) {
  Inputs values = {{"prompt", s.prompt}};
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
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    InputValue value = inputs::read_files(input, inputs::texts_of(*given), request.target);
    if (input.role == InputRole::kStart) {
      request.input_pixels = std::get<at::Tensor>(value).unsqueeze(1);
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
  request.sigmas = sigmas_of(s, schedule, model.latent_spec(), has_start(s, family.inputs()));
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
