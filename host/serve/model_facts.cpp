#include "host/serve/model_facts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "formats/glob.h"
#include "host/generate/fill_settings.h"
#include "host/inputs/parse.h"
#include "host/model/encoder_check.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"

namespace atelier::serve {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

// The name of a model's folder, or of its only file.
std::string name_of(const model::LoadedModel& model) {
  if (model.stages().denoisers.empty()) return std::string(model.family().name());
  const model::LoadedPart* const part = model.find_part(model.stages().denoisers.front().name());
  const fs::path file = part->checkpoint.files().front();
  const fs::path folder = file.parent_path();
  if (fs::exists(folder.parent_path() / "model_index.json"))
    return folder.parent_path().filename().string();
  const std::string stem = file.stem().string();
  const bool is_anything = stem.starts_with("diffusion_pytorch_model") || stem.starts_with("model");
  return is_anything ? folder.filename().string() : stem;
}

const char* kind_of(flags::FlagKind kind) {
  switch (kind) {
    case flags::FlagKind::kInteger:
      return "integer";
    case flags::FlagKind::kReal:
      return "real";
    case flags::FlagKind::kFlag:
      return "flag";
    case flags::FlagKind::kSeed:
      return "seed";
    default:
      return "text";
  }
}

const char* kind_of(InputKind kind) {
  // In the order of InputKind.
  constexpr const char* kNames[] = {"text",  "image",   "video", "mask", "video_mask",
                                    "audio", "integer", "real",  "flag"};
  return kNames[static_cast<size_t>(kind)];
}

// The settings that a model has no use for.
std::set<std::string, std::less<>> useless(const model::LoadedModel& model) {
  std::set<std::string, std::less<>> names = {"output"};
  if (!model.model().latent_spec().takes_clips) names.insert({"num_frames", "fps"});
  if (model.stages().denoisers.size() < 2) names.insert({"cfg_scale_2", "switch_boundary"});
  if (model::start_input(model.family().inputs()) == nullptr)
    names.insert({"denoising_strength", "inpaint_mask"});
  return names;
}

json row_of(std::string name, const char* kind, std::string help, bool is_list, bool is_required) {
  return {{"name", std::move(name)},
          {"kind", kind},
          {"help", std::move(help)},
          {"list", is_list},
          {"required", is_required}};
}

void bound(json& row, double minimum, double maximum) {
  row["minimum"] = minimum;
  row["maximum"] = maximum;
}

// The range that requests have, beside what the model says.
void add_range(json& row, const order::Serving& order, const LatentSpec& spec) {
  const std::string name = row["name"];
  const order::RequestLimits& limits = order.limits;
  const auto most = static_cast<double>(limits.max_pixels / spec.pixel_multiple);
  if (name == "height" || name == "width")
    bound(row, static_cast<double>(spec.pixel_multiple), most);
  if (name == "num_frames") bound(row, 1, static_cast<double>(limits.max_frames));
  if (name == "num_inference_steps") bound(row, 1, static_cast<double>(limits.max_steps));
  if (name == "num_images") bound(row, 1, static_cast<double>(limits.max_images));
  if (name == "batch_size") bound(row, 1, static_cast<double>(order.max_batch.value_or(1)));
  if (name == "denoising_strength") bound(row, 0, 1);
}

json schedules_of(const model::LoadedModel& model) {
  json schedules = json::array();
  for (const ScheduleDefaults& schedule : model.family().schedules()) {
    if (!formats::any_glob_matches(schedule.variants, model.stages().variant)) continue;
    schedules.push_back({{"name", schedule.name},
                         {"steps", schedule.num_inference_steps},
                         {"cfg_scale", schedule.cfg_scale},
                         {"cfg_off", schedule.cfg_off},
                         {"solver", schedule.solver},
                         {"help", schedule.help}});
  }
  return schedules;
}

// What the command line says in place of what flags begin with.
json said_defaults(const order::Settings& base, const MediaTarget& target, double fps) {
  json said = {{"height", target.height}, {"width", target.width}, {"num_frames", target.frames}};
  if (fps > 0) said["fps"] = fps;
  const auto tell = [&](const char* name, const auto& value) {
    if (value) said[name] = *value;
  };
  if (!base.negative_prompt.empty()) said["negative_prompt"] = base.negative_prompt;
  tell("seed", base.seed);
  tell("num_inference_steps", base.num_inference_steps);
  tell("cfg_scale", base.cfg_scale);
  tell("cfg_scale_2", base.cfg_scale_2);
  tell("cfg_trunc", base.cfg_trunc);
  tell("flow_shift", base.flow_shift);
  tell("switch_boundary", base.switch_boundary);
  said["denoising_strength"] = base.denoising_strength.value_or(order::kDefaultStrength);
  said["num_images"] = base.num_images;
  said["batch_size"] = base.batch_size;
  if (!base.schedule.empty()) said["schedule"] = base.schedule;
  if (!base.solver.empty()) said["solver"] = base.solver;
  if (!base.cfg_renorm.empty()) said["cfg_renorm"] = base.cfg_renorm;
  for (const auto& [name, value] : base.family_inputs.items()) said[name] = value;
  return said;
}

json settings_rows(const model::LoadedModel& model, const order::Serving& order,
                   const json& defaults, const json& schedules) {
  json rows = json::array();
  const auto left_out = useless(model);
  const ModelFamily& family = model.family();
  for (const flags::FlagSpec& flag : order::settings_flags({}, family.solvers())) {
    if (left_out.contains(flag.name)) continue;
    json row = row_of(flag.name, kind_of(flag.kind), flag.help, /*is_list=*/false,
                      /*is_required=*/flag.name == "prompt");
    const InputSpec* const input = order::find_input_spec(family.inputs(), flag.name);
    if (input != nullptr && !input->help.empty()) row["help"] = input->help;
    if (flag.name == "inpaint_mask") row["kind"] = "mask";
    if (flag.name == "latents") row["kind"] = "file";
    if (!flag.choices.empty()) row["choices"] = flag.choices;
    if (flag.name == "schedule")
      for (const json& schedule : schedules) row["choices"].push_back(schedule["name"]);
    if (defaults.contains(flag.name)) row["default"] = defaults[flag.name];
    add_range(row, order, model.model().latent_spec());
    rows.push_back(std::move(row));
  }
  return rows;
}

json inputs_rows(const model::LoadedModel& model, const json& defaults) {
  json rows = json::array();
  const std::string& variant = model.stages().variant;
  for (const InputSpec& input : model.family().inputs()) {
    const std::string name(input.name);
    if (input.use == InputUse::kTrain || order::is_setting(name)) continue;
    if (!inputs::holds_for(input, variant) || model::missing_encoder(model, name) ||
        model::missing_control(model, name))
      continue;
    json row = row_of(name, kind_of(input.kind), std::string(input.help), inputs::is_list(input),
                      inputs::is_required(input, variant));
    if (!input.choices.empty()) row["choices"] = input.choices;
    if (input.role == InputRole::kStart) row["starts"] = true;
    if (inputs::is_list(input)) row["most"] = input.max_count;
    if (defaults.contains(name)) row["default"] = defaults[name];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

ModelFacts facts_of(const model::LoadedModel& model, const order::Serving& order) {
  order::Settings base = order.generation.base;
  generate::fill_target(base, model);
  const MediaTarget target = order::target_of(base);
  const MediaDefaults media = model::media_defaults(model);
  const LatentSpec spec = model.model().latent_spec();
  ModelFacts facts;
  facts.name = order.served_name.empty() ? name_of(model) : order.served_name;
  facts.family = model.family().name();
  facts.variant = model.stages().variant;
  facts.makes_clips = spec.takes_clips && !media.frames_are_pictures;
  facts.has_transparency = spec.pixel_channels == 4;
  facts.height = target.height;
  facts.width = target.width;
  facts.frames = target.frames;
  facts.frame_step = spec.temporal_stride;
  facts.max_images = order.limits.max_images;
  facts.fps = base.fps.value_or(0.0);
  for (const model::RangedDenoiser& denoiser : model.stages().denoisers)
    facts.denoisers.push_back(denoiser.name());
  facts.schedules = schedules_of(model);
  const json defaults = said_defaults(base, target, facts.fps);
  facts.inputs = {{"settings", settings_rows(model, order, defaults, facts.schedules)},
                  {"inputs", inputs_rows(model, defaults)}};
  for (const json& row : facts.inputs["settings"])
    if (row["name"] == "solver") facts.solvers = row["choices"].get<std::vector<std::string>>();
  facts.started_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return facts;
}

}  // namespace atelier::serve
