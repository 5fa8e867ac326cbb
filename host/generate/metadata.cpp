#include "host/generate/metadata.h"

#include <filesystem>
#include <sstream>

#include "host/generate/request.h"
#include "host/inputs/parse.h"

namespace atelier::generate {
namespace {

using nlohmann::json;

// Shortest text that reads well: 4, 3.5.
std::string number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// The name of one file, or the names of several.
json short_paths(const json& value) {
  if (value.is_string()) return short_path(value.get<std::string>());
  json paths = json::array();
  for (const std::string& path : inputs::texts_of(value)) paths.push_back(short_path(path));
  return paths;
}

std::string parameters_text(const ModelRecord& model, const order::Settings& settings,
                            const Request& request, size_t index) {
  std::string text = settings.prompt.value_or("");
  if (!settings.negative_prompt.empty()) text += "\nNegative prompt: " + settings.negative_prompt;
  text += "\nSteps: " + std::to_string(request.sigmas.size() - 1) +
          ", Sampler: " + std::string(request.solver.title);
  text += ", Schedule type: " + request.schedule;
  text += ", CFG scale: " + number(request.cfg_scale);
  if (request.cfg_scale_2) text += ", CFG scale 2: " + number(*request.cfg_scale_2);
  text += ", Seed: " + std::to_string(request.seeds.at(index));
  text += ", Size: " + std::to_string(request.target.width) + "x" +
          std::to_string(request.target.height);
  text += ", Model: " + model.family;
  if (!model.variant.empty()) text += " " + model.variant;
  if (request.denoising_strength)
    text += ", Denoising strength: " + number(*request.denoising_strength);
  std::string loras;
  for (const lora::LoraRef& use : settings.loras)
    loras += (loras.empty() ? "" : ", ") + use.name + ": " + number(use.strength);
  if (!loras.empty()) text += ", Loras: \"" + loras + "\"";
  return text + ", Version: atelier " + model.version;
}

}  // namespace

std::string short_path(const std::string& path) {
  const std::filesystem::path full(path);
  const std::filesystem::path folder = full.parent_path().filename();
  return folder.empty() ? full.filename().string() : (folder / full.filename()).string();
}

media::Text metadata_of(const ModelRecord& model, const order::Settings& settings,
                        const Request& request, size_t index) {
  json record = {
      {"version", model.version},
      {"family", model.family},
      {"plugin_version", model.plugin_version},
      {"variant", model.variant},
      {"model_files", model.files},
      {"dtype", model.dtype},
      {"device", model.device},
      {"prompt", settings.prompt.value_or("")},
      {"negative_prompt", settings.negative_prompt},
      {"seed", request.seeds.at(index)},
      {"num_inference_steps", request.sigmas.size() - 1},
      {"cfg_scale", request.cfg_scale},
      {"schedule", request.schedule},
      {"sigmas", request.sigmas},
      {"height", request.target.height},
      {"width", request.target.width},
  };
  if (request.target.frames > 1) {
    record["num_frames"] = request.target.frames;
    if (settings.fps) record["fps"] = *settings.fps;
  }
  if (request.cfg_scale_2) record["cfg_scale_2"] = *request.cfg_scale_2;
  if (request.cfg_trunc < 1.0) record["cfg_trunc"] = request.cfg_trunc;
  if (request.cfg_renorm != CfgRenorm::kNone)
    record["cfg_renorm"] = renorm_name(request.cfg_renorm);
  if (request.cfg_renorm == CfgRenorm::kClamp)
    record["cfg_renorm_ratio"] = request.cfg_renorm_ratio;
  if (request.solver.name != "euler") record["solver"] = request.solver.name;
  if (!model.dtypes.empty()) record["dtypes"] = model.dtypes;
  if (!model.storage.empty()) record["storage"] = model.storage;
  if (!model.compute.empty()) record["compute"] = model.compute;
  if (settings.num_inference_steps) record["num_inference_steps"] = *settings.num_inference_steps;
  if (settings.flow_shift) record["flow_shift"] = *settings.flow_shift;
  if (settings.switch_boundary) record["switch_boundary"] = *settings.switch_boundary;
  if (request.denoising_strength) record["denoising_strength"] = *request.denoising_strength;
  if (!settings.inpaint_mask.empty()) record["inpaint_mask"] = short_path(settings.inpaint_mask);
  if (!settings.latents.empty()) record["latents"] = short_path(settings.latents);
  if (request.tiling) {
    record["tiled"] = true;
    record["tile_size"] = request.tiling->size;
    record["tile_stride"] = request.tiling->stride;
  }
  for (const lora::LoraRef& use : settings.loras) {
    json& lora = record["loras"].emplace_back(
        json{{"name", use.name}, {"file", short_path(use.path)}, {"strength", use.strength}});
    if (!use.component.empty()) lora["component"] = use.component;
  }
  for (const auto& [name, value] : settings.family_inputs.items()) {
    const InputSpec* input = order::find_input_spec(model.inputs, name);
    const bool is_file = input != nullptr && inputs::is_file(input->kind);
    record[name] = is_file ? short_paths(value) : value;
  }
  return {{"parameters", parameters_text(model, settings, request, index)},
          {"atelier", record.dump(-1, ' ', false, json::error_handler_t::replace)}};
}

}  // namespace atelier::generate
