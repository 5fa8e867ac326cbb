#include "host/generate/request.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/generate/sigma_schedule.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"
#include "host/plugins/guard.h"

namespace atelier::generate {
namespace {

constexpr std::pair<std::string_view, CfgRenorm> kRenorms[] = {
    {"none", CfgRenorm::kNone}, {"clamp", CfgRenorm::kClamp}, {"row", CfgRenorm::kRow}};

at::Tensor read_pixels(const std::string& path) {
  return media::to_pixels(media::read_picture(path));
}

at::Tensor read_mask(const std::string& path) {
  const at::Tensor rgb = (read_pixels(path) + 1.0) / 2.0;
  return (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]).unsqueeze(0);
}

bool is_file(InputKind kind) {
  return kind != InputKind::kText && kind != InputKind::kInteger && kind != InputKind::kReal &&
         kind != InputKind::kFlag;
}

// `value` has the kind of the input: see settings_of().
InputValue input_value(const InputSpec& input, const nlohmann::json& value) {
  switch (input.kind) {
    case InputKind::kText:
      return value.get<std::string>();
    case InputKind::kInteger:
      return value.get<int64_t>();
    case InputKind::kReal:
      return value.get<double>();
    case InputKind::kFlag:
      return value.get<bool>();
    case InputKind::kImage:
      return read_pixels(value.get<std::string>());
    case InputKind::kMask:
      return read_mask(value.get<std::string>());
    case InputKind::kImageList: {
      std::vector<at::Tensor> pictures;
      for (const auto& path : value) pictures.push_back(read_pixels(path.get<std::string>()));
      return pictures;
    }
    case InputKind::kVideo:
    case InputKind::kAudio:
      break;
  }
  throw Error(ErrorCode::kUnsupported, "input " + formats::quote_and_escape(input.name) +
                                           ": videos and sound cannot be read by this build");
}

// Those that are read from files, or those that are not.
void add_inputs(Inputs& inputs, const Settings& s, const ModelFamily& family, bool from_files) {
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || input.use == InputUse::kTrain) continue;
    if (is_file(input.kind) == from_files)
      inputs[std::string(input.name)] = input_value(input, *given);
  }
}

std::vector<float> sigmas_of(const Settings& s, const ScheduleDefaults& schedule,
                             const LatentSpec& spec) {
  std::vector<float> sigmas = make_sigmas(
      schedule,
      {.num_steps = static_cast<int>(s.num_inference_steps.value_or(schedule.num_inference_steps)),
       .tokens = tokens_of(s, spec),
       .flow_shift = s.flow_shift,
       .sigmas = s.sigmas});
  if (s.input_image.empty()) return sigmas;
  return keep_last_steps(std::move(sigmas), s.denoising_strength.value_or(kDefaultStrength));
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

int64_t tokens_of(const Settings& s, const LatentSpec& spec) {
  return (*s.height / spec.token_stride) * (*s.width / spec.token_stride);
}

const ScheduleDefaults& schedule_of(const Settings& s, const ModelFamily& family,
                                    std::string_view variant) {
  return find_schedule(family.schedules(), s.schedule, variant);
}

double cfg_scale_of(const Settings& s, const ModelFamily& family, std::string_view variant) {
  return s.cfg_scale.value_or(schedule_of(s, family, variant).cfg_scale);
}

void fill_size(Settings& s, const model::LoadedModel& model) {
  if (s.height && s.width) return;
  MediaTarget target = MediaDefaults{}.target;
  if (const model::LoadedPart* denoiser = model.denoiser()) {
    target = plugins::guard(std::string(model.family().name()) + ".media_defaults", [&] {
      return model.family().media_defaults(denoiser->detection).target;
    });
  }
  if (!s.height) s.height = target.height;
  if (!s.width) s.width = target.width;
}

std::string_view renorm_name(CfgRenorm renorm) {
  return std::ranges::find(kRenorms, renorm, &std::pair<std::string_view, CfgRenorm>::second)
      ->first;
}

Inputs value_inputs(const Settings& s, const ModelFamily& family) {
  Inputs inputs = {{"prompt", s.prompt}};
  add_inputs(inputs, s, family, /*from_files=*/false);
  return inputs;
}

Request make_request(const Settings& s, const ModelFamily& family, const Model& model,
                     uint64_t seed, std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  Request request;
  request.inputs = value_inputs(s, family);
  add_inputs(request.inputs, s, family, /*from_files=*/true);
  request.negative_prompt = s.negative_prompt;
  request.cfg_scale = s.cfg_scale.value_or(schedule.cfg_scale);
  request.cfg_trunc = s.cfg_trunc.value_or(schedule.cfg_trunc);
  request.cfg_renorm = find_renorm(s.cfg_renorm).value_or(schedule.cfg_renorm);
  request.cfg_renorm_ratio = s.cfg_renorm_ratio.value_or(schedule.cfg_renorm_ratio);
  request.sigmas = sigmas_of(s, schedule, model.latent_spec());
  request.whole_timesteps = schedule.whole_timesteps;
  request.solver = s.solver.empty() ? schedule.solver : s.solver;
  request.height = *s.height;
  request.width = *s.width;
  for (int64_t i = 0; i < s.num_images; ++i)
    request.seeds.push_back(seed + static_cast<uint64_t>(i));
  request.batch_size = s.batch_size;
  if (!s.latents.empty()) request.latents = open_latents(s.latents).read("latents", at::kFloat);
  if (!s.input_image.empty()) {
    const media::Picture picture = media::read_picture(s.input_image);
    request.input_pixels =
        media::to_pixels(media::crop_and_resize(picture, static_cast<int>(*s.width),
                                                static_cast<int>(*s.height)))
            .unsqueeze(1);
  }
  return request;
}

}  // namespace atelier::generate
