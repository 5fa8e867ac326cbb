#include "host/serve/sdapi_fields.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "atelier/error.h"
#include "atelier/version.h"

#include "formats/base64.h"
#include "formats/escape.h"
#include "host/media/text.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/sampling/solvers.h"
#include "host/serve/masks.h"
#include "host/serve/work.h"

namespace atelier::serve {

using http::HttpError;
using nlohmann::json;

namespace {

constexpr int64_t kMostImages = 1000;  // of one request, by its own numbers; jobs have a limit, too
constexpr int64_t kPreviews = 4;       // as often as "progress" shows another picture
constexpr const char* kAutomatic = "automatic";
// What webuiapi and the web UI send where their user says nothing.
constexpr const char* kUnsaidSampler = "Euler a";

constexpr SdField kIgnoredSd[] = {
    // The second pass.
    {"enable_hr", "no second pass enlarges pictures; width and height say their size", false},
    {"hr_scale", "of the second pass"},
    {"hr_upscaler", "of the second pass"},
    {"hr_second_pass_steps", "of the second pass"},
    {"hr_resize_x", "of the second pass"},
    {"hr_resize_y", "of the second pass"},
    {"hr_checkpoint_name", "of the second pass"},
    {"hr_sampler_name", "of the second pass"},
    {"hr_scheduler", "of the second pass"},
    {"hr_prompt", "of the second pass"},
    {"hr_negative_prompt", "of the second pass"},
    {"hr_cfg", "of the second pass"},
    {"hr_additional_modules", "of the second pass"},
    {"firstphase_width", "of the second pass"},
    {"firstphase_height", "of the second pass"},
    // Noise.
    {"subseed", "counts with subseed_strength alone"},
    {"subseed_strength", "noise of two seeds is not mixed", false},
    {"seed_resize_from_h", "noise is drawn for the picture's own size"},
    {"seed_resize_from_w", "noise is drawn for the picture's own size"},
    {"eta", "of samplers that add noise; none here does"},
    {"s_churn", "of samplers that add noise; none here does"},
    {"s_tmax", "of samplers that add noise; none here does"},
    {"s_tmin", "of samplers that add noise; none here does"},
    {"s_noise", "of samplers that add noise; none here does"},
    {"s_min_uncond", "cfg_trunc says where guidance ends"},
    {"initial_noise_multiplier", "noise is as strong as the model learned it"},
    // Pictures.
    {"restore_faces", "faces are not made anew", false},
    {"tiling", "pictures that repeat are not made", false},
    {"resize_mode", "how a picture is brought to size is the model's"},
    {"mask_blur", "a mask is taken as it is"},
    {"inpainting_fill", "what a mask shows begins from the picture itself"},
    {"inpaint_full_res", "the whole picture is made"},
    {"inpaint_full_res_padding", "the whole picture is made"},
    {"image_cfg_scale", "of models of another kind"},
    {"include_init_images", "the request is given back without its pictures"},
    // What other programs do beside. SillyTavern sends on all that its page sent.
    {"url", "SillyTavern's own"},
    {"auth", "SillyTavern's own"},
    {"clip_skip", "texts are encoded as the model learned it"},
    {"styles", "no texts are kept under names", false},
    {"script_name", "there are no scripts", false},
    {"script_args", "there are no scripts"},
    {"alwayson_scripts", "there are no extensions"},
    {"refiner_checkpoint", "one model is served", false},
    {"refiner_switch_at", "one model is served"},
    {"disable_extra_networks", "LoRAs that no prompt names are not used anyway", false},
    {"comments", "nobody reads them"},
    {"infotext", "fields are to be sent themselves", false},
    {"force_task_id", "jobs have names of their own"},
    {"override_settings_restore_afterwards", "nothing is changed for later requests"},
    {"save_images", "results are kept for a while in any case"},
    {"do_not_save_samples", "results are kept for a while in any case"},
    {"do_not_save_grid", "grids are not made"},
};

const SdField* find_ignored(std::string_view name) {
  for (const SdField& field : kIgnoredSd) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

bool is_nothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" || value == "None" ||
         (value.is_structured() && value.empty());
}

std::string lower(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return small;
}

// Our setting of a field with another name.
constexpr std::pair<const char*, const char*> kRenamed[] = {{"steps", "num_inference_steps"}};

std::vector<std::string> other_names() {
  std::vector<std::string> names = {"n_iter",      "sampler_name",     "sampler_index",
                                    "scheduler",   "init_images",      "mask",
                                    "send_images", "override_settings"};
  for (const auto& [name, _] : kRenamed) names.emplace_back(name);
  for (const SdField& field : kIgnoredSd) names.emplace_back(field.name);
  return names;
}

json take(json& fields, const char* name) {
  const auto found = fields.find(name);
  if (found == fields.end()) return nullptr;
  json value = std::move(*found);
  fields.erase(found);
  return value;
}

// The name of a schedule; "": the model's first.
std::string schedule_of(const json& scheduler, const ModelFacts& model) {
  if (is_nothing(scheduler)) return {};
  const std::string name = text_of("scheduler", scheduler);
  std::vector<std::string> known = {kAutomatic};
  if (lower(name) == kAutomatic) return {};
  for (const json& schedule : model.schedules) {
    known.push_back(schedule.at("name"));
    if (lower(known.back()) == lower(name)) return known.back();
  }
  throw wrong("scheduler", "there is no " + formats::quote_and_escape(name) + ", there are " +
                               report::list_names(known));
}

void put_overrides(Asked& asked, const json& overrides, const ModelFacts& model) {
  if (is_nothing(overrides)) return;
  if (!overrides.is_object()) throw wrong("override_settings", "is no object");
  const json name = overrides.value("sd_model_checkpoint", json());
  if (!is_nothing(name) && name != model.name)
    throw HttpError(404, "override_settings: sd_model_checkpoint " + name.dump() +
                             " is not served, " + formats::quote_and_escape(model.name) + " is");
  const json format = overrides.value("samples_format", json());
  if (format == "jpg" || format == "jpeg") asked.format = "jpeg";
}

void put_init_images(Asked& asked, json& fields, const Service& service) {
  const json sent = take(fields, "init_images");
  if (is_nothing(sent)) throw wrong("init_images", "is missing");
  std::vector<Upload> pictures = uploads_of("init_images", sent, service.jobs);
  std::optional<Upload> mask;
  const json inverts = take(fields, "inpainting_mask_invert");
  if (const json value = take(fields, "mask"); !is_nothing(value)) {
    std::vector<Upload> masks = uploads_of("mask", value, service.jobs);
    if (masks.size() != 1) throw wrong("mask", "takes one file");
    mask = std::move(masks.front());
    if (!is_nothing(inverts)) mask = inverted_mask(*mask);
  }
  const bool starts =
      put_pictures(asked, "init_images", std::move(pictures), std::move(mask), service.model);
  // Clients send it always; it is of what sampling begins from.
  if (!starts) fields.erase("denoising_strength");
}

void put_prompt(Asked& asked, json& fields, const char* name, const Service& service) {
  const json value = take(fields, name);
  if (value.is_null()) return;
  std::string prompt = text_of(name, value);
  for (const auto& [lora, strength] : take_loras(name, prompt))
    add_lora(asked, name, lora, strength, service.loras);
  asked.fields[name] = prompt;
}

std::string infotext_of(const JobFile& file) {
  try {
    for (const auto& [key, text] : media::read_text(file.path)) {
      if (key == "parameters") return text;
    }
  } catch (const Error&) {
    throw HttpError(410, "the file is gone; results are kept for a while only");
  }
  return {};
}

// What the web UI says of a job, beside its pictures.
json info_of(const SdRequest& request, const JobView& view, const ModelFacts& model) {
  json seeds = json::array(), infotexts = json::array();
  for (const JobFile& file : view.files) {
    if (view.state == JobState::kDone) seeds.push_back(file.seed);  // else not known yet
    infotexts.push_back(infotext_of(file));
  }
  const auto setting = [&](const char* name) {
    return view.settings.is_object() ? view.settings.value(name, json()) : json();
  };
  const size_t count = view.files.size();
  const json prompt = request.asked.fields.value("prompt", json(""));
  const json negative = request.asked.fields.value("negative_prompt", json(""));
  json info = {{"prompt", prompt},
               {"all_prompts", std::vector<json>(count, prompt)},
               {"negative_prompt", negative},
               {"all_negative_prompts", std::vector<json>(count, negative)},
               {"seed", seeds.empty() ? setting("seed") : seeds.front()},
               {"all_seeds", seeds},
               {"subseed", -1},
               {"all_subseeds", std::vector<int>(count, -1)},
               {"subseed_strength", 0},
               {"width", setting("width")},
               {"height", setting("height")},
               {"sampler_name", nullptr},
               {"cfg_scale", setting("cfg_scale")},
               {"steps", setting("num_inference_steps")},
               {"batch_size", request.batch_size},
               {"denoising_strength", setting("denoising_strength")},
               {"restore_faces", false},
               {"sd_model_name", model.name},
               {"sd_model_hash", nullptr},
               {"extra_generation_params", json::object()},
               {"index_of_first_image", 0},
               {"infotexts", infotexts},
               {"styles", json::array()},
               {"version", "atelier " ATELIER_SDK_VERSION}};
  if (const json solver = setting("solver"); solver.is_string())
    info["sampler_name"] = sampler_title(solver.get<std::string>());
  if (const json schedule = setting("schedule"); schedule.is_string())
    info["extra_generation_params"]["Schedule type"] = schedule;
  return info;
}

double part_done(const JobView& view) {
  return view.steps > 0 ? static_cast<double>(view.step) / static_cast<double>(view.steps) : 0.0;
}

}  // namespace

std::span<const SdField> ignored_sd_fields() {
  return kIgnoredSd;
}

std::vector<std::pair<std::string, double>> take_loras(std::string_view field,
                                                       std::string& prompt) {
  constexpr std::string_view kBegin = "<lora:";
  std::vector<std::pair<std::string, double>> loras;
  size_t begin = 0;
  while ((begin = prompt.find(kBegin, begin)) != std::string::npos) {
    const size_t end = prompt.find('>', begin);
    if (end == std::string::npos) throw wrong(field, "a <lora:…> lacks its >");
    const std::string inside = prompt.substr(begin + kBegin.size(), end - begin - kBegin.size());
    const size_t colon = inside.find(':');
    const auto strength =
        colon == std::string::npos
            ? std::optional(1.0)
            : report::parse_number<double>(std::string_view(inside).substr(colon + 1));
    if (inside.substr(0, colon).empty() || !strength)
      throw wrong(field, formats::quote_and_escape("<lora:" + inside + ">") +
                             " is none; write <lora:name> or <lora:name:0.8>");
    loras.emplace_back(inside.substr(0, colon), *strength);
    const size_t before = prompt.find_last_not_of(" \t", begin == 0 ? 0 : begin - 1);
    const size_t from = begin == 0 || before == std::string::npos ? 0 : before + 1;
    prompt.erase(from, end + 1 - from);
    begin = from;
    if (from == 0) prompt.erase(0, prompt.find_first_not_of(" \t"));
  }
  return loras;
}

std::string sampler_title(std::string_view solver) {
  for (const SolverSpec& spec : sampling::solvers()) {
    if (spec.name == solver) return std::string(spec.title);
  }
  return std::string(solver);
}

std::string solver_of(const json& sampler, const ModelFacts& model) {
  if (is_nothing(sampler) || sampler == kUnsaidSampler || sampler == "Automatic") return {};
  const std::string name = text_of("sampler_name", sampler);
  std::vector<std::string> titles;
  for (const std::string& solver : model.solvers) {
    titles.push_back(sampler_title(solver));
    if (lower(name) == lower(titles.back()) || lower(name) == lower(solver)) return solver;
  }
  throw wrong("sampler_name", "there is no " + formats::quote_and_escape(name) + ", there are " +
                                  report::list_names(titles));
}

std::string in_words_of(const SdRequest& request, std::string message) {
  for (const auto& [from, to] : kRenamed) {
    const std::string_view name = to;
    if (request.parameters.contains(from) && message.starts_with(std::string(name) + ": "))
      return from + message.substr(name.size());
  }
  return message;
}

SdRequest read_sd(json fields, const Service& service, bool is_img2img) {
  if (!fields.is_object()) throw HttpError(400, "the body is no JSON object");
  SdRequest request = {.parameters = fields};
  for (const char* const name : {"init_images", "mask", "url", "auth"})
    request.parameters.erase(name);
  Asked& asked = request.asked;
  asked.api = "sdapi";
  asked.previews = kPreviews;
  for (auto field = fields.begin(); field != fields.end();) {
    const SdField* const ignored = find_ignored(field.key());
    if (ignored != nullptr && !ignored->is_any && !is_nothing(*field))
      throw wrong(field.key(), std::string(ignored->why));
    field = ignored != nullptr || field->is_null() ? fields.erase(field) : std::next(field);
  }
  const auto count = [&](const char* name) {
    const json value = take(fields, name);
    return value.is_null() ? 1 : integer_of(name, value, 1, kMostImages);
  };
  request.batch_size = count("batch_size");
  request.n_iter = count("n_iter");
  asked.fields["num_images"] = request.batch_size * request.n_iter;
  if (const json sends = take(fields, "send_images"); !sends.is_null())
    request.sends_images = flag_of("send_images", sends);
  put_prompt(asked, fields, "prompt", service);
  put_prompt(asked, fields, "negative_prompt", service);
  put_overrides(asked, take(fields, "override_settings"), service.model);
  const json sampler = take(fields, "sampler_name"), index = take(fields, "sampler_index");
  if (const auto solver = solver_of(is_nothing(sampler) ? index : sampler, service.model);
      !solver.empty())
    asked.fields["solver"] = solver;
  if (const auto schedule = schedule_of(take(fields, "scheduler"), service.model);
      !schedule.empty())
    asked.fields["schedule"] = schedule;
  if (is_img2img) {
    put_init_images(asked, fields, service);
  } else {
    fields.erase("denoising_strength");  // of the second pass there
  }
  if (service.model.makes_clips && !fields.contains("num_frames")) asked.fields["num_frames"] = 1;
  for (const auto& [from, to] : kRenamed) {
    if (json value = take(fields, from); !value.is_null()) fields[to] = std::move(value);
  }
  for (const auto& [name, value] : fields.items())
    put_field(asked, name, value, service, other_names());
  return request;
}

json sd_reply(const SdRequest& request, const JobView& view, const ModelFacts& model) {
  json images = json::array();
  for (const JobFile& file : view.files) {
    if (request.sends_images) images.push_back(formats::encode_base64(bytes_of(file)));
  }
  return {
      {"images", std::move(images)},
      {"parameters", request.parameters},
      {"info", info_of(request, view, model).dump(-1, ' ', false, json::error_handler_t::replace)}};
}

json sd_progress(const std::vector<JobView>& views, bool with_preview, double now_s) {
  const JobView* running = nullptr;  // the one that began first
  int64_t jobs = 0;
  for (const JobView& view : views) {
    if (view.api != "sdapi") continue;
    const bool runs = view.state == JobState::kRunning;
    if (runs || view.state == JobState::kQueued) ++jobs;
    if (runs && (running == nullptr || view.started_s < running->started_s)) running = &view;
  }
  const double part = running == nullptr ? 0.0 : part_done(*running);
  const double gone_s = running == nullptr ? 0.0 : now_s - running->started_s;
  json current;
  if (with_preview && running != nullptr && running->preview != nullptr)
    current = formats::encode_base64(*running->preview);
  return {{"progress", part},
          {"eta_relative", part > 0 ? gone_s / part - gone_s : 0.0},
          {"current_image", current},
          {"textinfo", nullptr},
          {"state",
           {{"skipped", false},
            {"interrupted", false},
            {"stopping_generation", false},
            {"job", running == nullptr ? "" : running->id},
            {"job_count", jobs},
            {"job_no", 0},
            {"job_timestamp", "0"},
            {"sampling_step", running == nullptr ? 0 : running->step},
            {"sampling_steps", running == nullptr ? 0 : running->steps}}}};
}

}  // namespace atelier::serve
