#include "host/serve/translation.h"

#include <algorithm>
#include <cmath>

#include "formats/escape.h"
#include "host/generate/fill_settings.h"
#include "host/generate/request.h"
#include "host/generate/settings_checks.h"
#include "host/http/server.h"
#include "host/inputs/parse.h"
#include "host/model/media_defaults.h"
#include "host/report/problems.h"

namespace atelier::serve {
namespace {

using http::HttpError;
using nlohmann::json;
using order::Settings;

const order::Origin kRequest = {.file = {}, .line = 0, .is_request = true};

// Settings whose values are files, which clients send and do not name.
bool is_file_setting(std::string_view name) {
  return name == "inpaint_mask" || name == "latents";
}

// Names of the tables that are the server's to say.
bool is_of_server(std::string_view name) {
  return name == "output" || name == "loras";
}

bool is_file(std::string_view name, std::span<const InputSpec> inputs) {
  if (is_file_setting(name)) return true;
  const InputSpec* const input = order::find_input_spec(inputs, name);
  return input != nullptr && inputs::is_file(input->kind);
}

// What the client sent and named as a line of a prompts file has it.
json line_of(const Asked& asked, const SpooledFiles& files, std::span<const InputSpec> inputs) {
  json line = asked.fields;
  for (const auto& [name, value] : line.items()) {
    if (is_of_server(name))
      throw HttpError(400, name + ": is not for clients to say here; leave it out");
    if (is_file(name, inputs))
      throw HttpError(400, name + ": is a file, and its bytes are sent along; no path is taken");
  }
  for (const auto& [name, paths] : files) {
    if (!is_file(name, inputs)) throw HttpError(400, name + ": takes no file");
    const InputSpec* const input = order::find_input_spec(inputs, name);
    const bool is_list = input != nullptr && inputs::is_list(*input);
    if (input == nullptr && paths.size() != 1)
      throw HttpError(400, name + ": one file is expected");
    line[name] = is_list || paths.size() > 1 ? json(paths) : json(paths.front());
  }
  return line;
}

// Nothing that is wrong with a request is the server's failure.
void throw_if_any(const report::Problems& problems, const Spool& spool,
                  std::span<const lora::LoraRef> loras = {}) {
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    std::string message = spool.without_folder(text_of(error));
    for (const lora::LoraRef& lora : loras) message = without_folder_of(lora, std::move(message));
    throw HttpError(refusal_of(error.code()), message);
  }
}

// Steps of one image.
int64_t steps_of(const Settings& s, const ModelFamily& family, std::string_view variant) {
  if (!s.sigmas.empty()) return std::ssize(s.sigmas);
  const int64_t steps =
      s.num_inference_steps.value_or(generate::schedule_of(s, family, variant).num_inference_steps);
  if (!order::has_start(s, family.inputs())) return steps;
  const double part = s.denoising_strength.value_or(order::kDefaultStrength);
  return std::max<int64_t>(1, std::llround(part * static_cast<double>(steps)));
}

}  // namespace

PreparedJob Translation::prepare(const std::string& id, const Asked& asked,
                                 const SpooledFiles& files,
                                 const std::vector<lora::LoraRef>* loras) const {
  PreparedJob work = {.id = id, .settings = read(asked, files)};
  work.settings.loras = loras != nullptr ? *loras : loras_.find(asked.loras);
  hold_limits(work.settings);
  check(work, asked);
  return work;
}

Settings Translation::read(const Asked& asked, const SpooledFiles& files) const {
  const std::span<const InputSpec> inputs = order_.generation.family()->inputs();
  report::Problems problems;
  Settings settings = order::settings_of(line_of(asked, files, inputs), order_.generation.base,
                                         inputs, kRequest, problems);
  throw_if_any(problems, spool_);
  return settings;
}

void Translation::hold_limits(const Settings& s) const {
  const int64_t max_batch =
      std::max(order_.max_batch.value_or(1), order_.generation.base.batch_size);
  for (const order::Excess& excess : order::beyond(order_.limits, max_batch, s))
    throw HttpError(413, std::string(excess.name) + ": " + excess.text());
}

void Translation::check(PreparedJob& work, const Asked& asked) const {
  model::LoadedModel& model = opened_.model();
  const ModelFamily& family = model.family();
  const std::string& variant = model.stages().variant;
  order::Job job = {.place = kRequest, .settings = std::move(work.settings)};
  report::Problems problems;
  problems.collect([&] {
    if (generate::check_said_target(job.settings, kRequest, problems))
      generate::fill_target(job.settings, model, kRequest);
  });
  throw_if_any(problems, spool_);
  hold_limits(job.settings);
  name_output(job.settings, work.id, asked.format);
  opened_.check(job, problems);
  throw_if_any(problems, spool_, job.settings.loras);
  work.settings = std::move(job.settings);
  if (asked.previews > 0)
    work.preview_every =
        std::max<int64_t>(1, steps_of(work.settings, family, variant) / (asked.previews + 1));
  work.shown = shown_settings(work.settings, family, variant);
}

void Translation::name_output(Settings& s, const std::string& id, const std::string& format) const {
  const bool is_clip =
      s.num_frames.value_or(1) > 1 && !model::media_defaults(opened_.model()).frames_are_pictures;
  std::string extension = format;
  if (format == "jpeg") extension = "jpg";
  if (format.empty()) extension = is_clip ? "mp4" : "png";
  const std::vector<std::string> known = is_clip ? std::vector<std::string>{"mp4", "webp", "gif"}
                                                 : std::vector<std::string>{"png", "jpg"};
  if (std::ranges::find(known, extension) == known.end())
    throw HttpError(400, "format: " + formats::quote_and_escape(format) +
                             (is_clip ? " is none of a clip; use mp4, webp or gif"
                                      : " is none of a picture; use png or jpeg"));
  s.output = spool_.output_of(id, extension);
}

json shown_settings(const Settings& s, const ModelFamily& family, std::string_view variant) {
  const ScheduleDefaults& schedule = generate::schedule_of(s, family, variant);
  const generate::CfgScales scales = generate::cfg_scales_of(s, family, variant);
  json shown = {{"prompt", s.prompt.value_or("")},
                {"height", s.height.value_or(0)},
                {"width", s.width.value_or(0)},
                {"cfg_scale", scales.first},
                {"schedule", schedule.name},
                {"solver", s.solver.empty() ? std::string(schedule.solver) : s.solver}};
  const auto tell = [&](const char* name, const auto& value) {
    if (value) shown[name] = *value;
  };
  if (!s.negative_prompt.empty()) shown["negative_prompt"] = s.negative_prompt;
  if (s.num_frames.value_or(1) > 1) {
    shown["num_frames"] = *s.num_frames;
    tell("fps", s.fps);
  }
  tell("seed", s.seed);
  if (s.sigmas.empty()) {
    shown["num_inference_steps"] = s.num_inference_steps.value_or(schedule.num_inference_steps);
  } else {
    shown["sigmas"] = s.sigmas;
  }
  tell("cfg_scale_2", scales.second);
  tell("cfg_trunc", s.cfg_trunc);
  if (!s.cfg_renorm.empty()) shown["cfg_renorm"] = s.cfg_renorm;
  tell("cfg_renorm_ratio", s.cfg_renorm_ratio);
  if (s.num_images > 1) shown["num_images"] = s.num_images;
  tell("flow_shift", s.flow_shift);
  tell("switch_boundary", s.switch_boundary);
  if (order::has_start(s, family.inputs()))
    shown["denoising_strength"] = s.denoising_strength.value_or(order::kDefaultStrength);
  for (const auto& [name, value] : s.family_inputs.items())
    if (!is_file(name, family.inputs())) shown[name] = value;
  for (const lora::LoraRef& lora : s.loras)
    shown["loras"].push_back({{"name", lora.name}, {"strength", lora.strength}});
  return shown;
}

}  // namespace atelier::serve
