#include "host/serve/openai_fields.h"

#include <utility>

#include "formats/escape.h"
#include "host/report/text.h"

namespace atelier::serve {

using http::HttpError;
using nlohmann::json;

namespace {

constexpr int64_t kMostPixels = 65'536;  // of a side; what a model makes is checked later

constexpr OpenAiField kIgnoredOpenAi[] = {
    {"user", "nobody is told who asked"},
    {"safety_identifier", "nobody is told who asked"},
    {"moderation", "nothing is filtered"},
    {"style", "of models that are no more; the prompt says it"},
    {"quality", "num_inference_steps and size are settings of their own; it is given back"},
    {"complexity", "the model plans nothing before it draws"},
    {"input_fidelity", "how near a picture is followed is the model's, or denoising_strength"},
    {"output_compression", "JPEG files are of quality 95"},
};

constexpr OpenAiField kRefusedOpenAi[] = {
    {"frame_count", "is of GIF pictures; POST /v1/videos makes clips, with num_frames"},
    {"frame_duration_ms", "is of GIF pictures; POST /v1/videos makes clips, with fps"},
    {"svg", "vector graphics are not made"},
    {"markup", "drawings over a picture are not understood; send a mask"},
};

constexpr OpenAiAlias kAliases[] = {
    {"n", "num_images"},
    {"guidance_scale", "cfg_scale"},
    {"true_cfg_scale", "cfg_scale"},
    {"guidance_scale_2", "cfg_scale_2"},
    {"lora", "loras"},
};

std::string setting_of(const std::string& name) {
  for (const OpenAiAlias& alias : kAliases) {
    if (alias.name == name) return std::string(alias.setting);
  }
  return name;
}

const OpenAiField* find_openai(std::span<const OpenAiField> fields, std::string_view name) {
  for (const OpenAiField& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::vector<std::string> names_with(std::span<const std::string> own) {
  std::vector<std::string> names(own.begin(), own.end());
  for (const OpenAiField& field : kIgnoredOpenAi) names.emplace_back(field.name);
  for (const OpenAiAlias& alias : kAliases) names.emplace_back(alias.name);
  return names;
}

// Two words for one setting have to say the same.
void put_setting(Asked& asked, const std::string& name, const json& value, const Service& service,
                 std::span<const std::string> known) {
  const std::string setting = setting_of(name);
  const json before = asked.fields.value(setting, json());
  if (setting == "loras") return put_loras(asked, name, value, service.loras);
  put_field(asked, setting, value, service, known);
  if (!before.is_null() && before != asked.fields.at(setting))
    throw wrong(name, value.dump() + " is not what another field says of " + setting + ", " +
                          before.dump() + "; send one of them");
}

}  // namespace

std::span<const OpenAiField> ignored_openai_fields() {
  return kIgnoredOpenAi;
}

std::span<const OpenAiField> refused_openai_fields() {
  return kRefusedOpenAi;
}

std::span<const OpenAiAlias> openai_aliases() {
  return kAliases;
}

void check_model(const json& name, const ModelFacts& model) {
  if (name.is_null() || name == "" || name == model.name) return;
  throw HttpError(404, "model: " + formats::quote_and_escape(text_of("model", name)) +
                           " is not served, " + formats::quote_and_escape(model.name) +
                           " is; leave it out, or start the server with another --served_name");
}

void put_size(Asked& asked, const json& size) {
  if (size.is_null() || size == "auto" || size == "") return;
  const std::string text = text_of("size", size);
  const size_t cross = text.find('x');
  const auto width = report::parse_number<int64_t>(std::string_view(text).substr(0, cross));
  const auto height = cross == std::string::npos
                          ? std::nullopt
                          : report::parse_number<int64_t>(std::string_view(text).substr(cross + 1));
  if (!width || !height || *width < 1 || *height < 1 || *width > kMostPixels ||
      *height > kMostPixels)
    throw wrong("size", formats::quote_and_escape(text) + " is no size: auto, or 1024x768");
  asked.fields["width"] = *width;
  asked.fields["height"] = *height;
}

std::string size_of(const json& settings, const ModelFacts& model) {
  const auto side = [&](const char* name, int64_t preset) {
    const json value = settings.is_object() ? settings.value(name, json()) : json();
    return value.is_number_integer() ? value.get<int64_t>() : preset;
  };
  return report::size_text(side("height", model.height), side("width", model.width));
}

void put_rest(Asked& asked, Form form, const Service& service, std::span<const std::string> own) {
  const std::vector<std::string> known = names_with(own);
  for (const auto& [name, value] : form.fields.items()) {
    if (find_openai(kIgnoredOpenAi, name) != nullptr) continue;
    if (const OpenAiField* const refused = find_openai(kRefusedOpenAi, name))
      throw wrong(name, std::string(refused->why));
    put_setting(asked, name, value, service, known);
  }
  for (FormFile& file : form.files) {
    if (const OpenAiField* const refused = find_openai(kRefusedOpenAi, file.name))
      throw wrong(file.name, std::string(refused->why));
    if (file.name.ends_with("[]")) file.name.resize(file.name.size() - 2);
    put_file(asked, file.name, std::move(file.bytes), service.model, known);
  }
}

std::vector<Asked> by_seeds(Asked asked, const json& seeds, const ModelFacts& model) {
  std::vector<Asked> all;
  if (!seeds.is_array()) {
    all.push_back(std::move(asked));
    return all;
  }
  if (seeds.empty()) throw wrong("seed", "a list has one seed or more");
  if (std::ssize(seeds) > model.max_images)
    throw HttpError(413, "seed: " + std::to_string(seeds.size()) + " pictures are more than " +
                             std::to_string(model.max_images) +
                             ", the most that this server makes");
  const json images = asked.fields.value("num_images", json(1));
  if (images != 1 && images != seeds.size())
    throw wrong("seed", std::to_string(seeds.size()) + " seeds for " + images.dump() +
                            " pictures: each of a list makes one");
  asked.fields.erase("num_images");
  for (const json& seed : seeds) {
    all.push_back(asked);
    all.back().fields["seed"] = seed;
  }
  return all;
}

}  // namespace atelier::serve
