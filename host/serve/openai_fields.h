// What fields of OpenAI's requests become, pictures' and videos' alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/serve/fields.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// A field of OpenAI's that changes nothing here, or cannot be done; docs/serve.md has the tables.
struct OpenAiField {
  std::string_view name;
  std::string_view why;
};
std::span<const OpenAiField> ignored_openai_fields();
std::span<const OpenAiField> refused_openai_fields();

// Other words that clients of image servers have for our settings.
struct OpenAiAlias {
  std::string_view name, setting;
};
std::span<const OpenAiAlias> openai_aliases();

// Names another model than the one that is served: HttpError 404.
void check_model(const nlohmann::json& name, const ModelFacts& model);

// "64x96", width first, or "auto"; fields of `asked` get it. Throws HttpError 400.
void put_size(Asked& asked, const nlohmann::json& size);
// "96x64" of settings as they were carried out.
std::string size_of(const nlohmann::json& settings, const ModelFacts& model);

// Puts everything else that a form says into the job: settings and inputs by their names, LoRAs,
// what has other words. `own`: names that the caller has taken already, for messages. Throws
// HttpError 400 that begins with the field.
void put_rest(Asked& asked, Form form, const Service& service, std::span<const std::string> own);

// One job for each of a list of seeds; else the one.
std::vector<Asked> by_seeds(Asked asked, const nlohmann::json& seeds, const ModelFacts& model);

}  // namespace atelier::serve
