#include "host/serve/sglang_loras.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "formats/escape.h"
#include "host/serve/fields.h"

namespace atelier::serve {
namespace {

using http::Client;
using http::HttpError;
using http::Request;
using http::Response;
using nlohmann::json;

constexpr std::string_view kAll = "all", kFirst = "transformer", kSecond = "transformer_2";

// One LoRA that POST /v1/set_lora asks for.
struct Wanted {
  std::string name, file;
  std::string component;
  double strength = 1.0;
};

// The values of a field, which is one or a list of `count`; of one that is absent `preset`.
std::vector<json> values_of(const json& fields, const char* name, size_t count,
                            const json& preset) {
  const json value = fields.value(name, json());
  if (value.is_null()) return std::vector<json>(count, preset);
  if (!value.is_array()) return std::vector<json>(count, value);
  if (value.size() != count)
    throw wrong(name, "has " + std::to_string(value.size()) + " values, and lora_nickname " +
                          std::to_string(count));
  return value.get<std::vector<json>>();
}

// Whether both of two denoisers are meant, or which one.
std::string component_of(const json& target, const ModelFacts& model) {
  const std::string name = text_of("target", target);
  if (name == kAll) return "";
  const size_t number = name == kSecond ? 1 : 0;
  if ((name != kFirst && name != kSecond) || number >= model.denoisers.size())
    throw wrong("target",
                formats::quote_and_escape(name) + " is no part of " + model.name + "; use all");
  return model.denoisers.size() > 1 ? model.denoisers[number] : "";
}

std::vector<Wanted> wanted_of(const Request& request, const ModelFacts& model) {
  const json fields = read_form(request).fields;
  for (const auto& [name, value] : fields.items()) {
    constexpr std::string_view kKnown[] = {"lora_nickname", "lora_path", "target", "strength"};
    if (std::ranges::find(kKnown, name) == std::end(kKnown)) throw wrong(name, "is not taken");
  }
  const json names = fields.value("lora_nickname", json());
  if (names.is_null()) throw wrong("lora_nickname", "is missing");
  const size_t count = names.is_array() ? names.size() : 1;
  const std::vector<json> nicknames = values_of(fields, "lora_nickname", count, nullptr);
  const std::vector<json> files = values_of(fields, "lora_path", count, "");
  const std::vector<json> targets = values_of(fields, "target", count, kAll);
  const std::vector<json> strengths = values_of(fields, "strength", count, 1.0);
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < count; ++i)
    wanted.push_back({.name = text_of("lora_nickname", nicknames[i]),
                      .file = files[i].is_null() ? "" : text_of("lora_path", files[i]),
                      .component = component_of(targets[i], model),
                      .strength = real_of("strength", strengths[i])});
  return wanted;
}

void unload_all(Loras& loras) {
  for (const RegisteredLora& lora : loras.list())
    if (lora.is_loaded) loras.set_loaded(lora.name, /*is_loaded=*/false, 0);
}

// The LoRAs that the last POST /v1/set_lora asked for, which can be taken out and put in again.
struct LastSet {
  std::mutex mutex;
  std::vector<std::pair<std::string, double>> loras;
};

Response set_loras(const Request& request, Service& service, LastSet& last) {
  const std::vector<Wanted> wanted = wanted_of(request, service.model);
  const std::lock_guard lock(last.mutex);
  for (const Wanted& lora : wanted) {
    const std::vector<RegisteredLora> known = service.loras.list();
    const bool is_known = std::ranges::find(known, lora.name, &RegisteredLora::name) != known.end();
    if (!lora.file.empty() && !(is_known && lora.file == lora.name))
      service.loras.add(lora.name, lora.file, lora.component);
  }
  // A name that nobody knows changes nothing.
  const std::vector<RegisteredLora> known = service.loras.list();
  for (const Wanted& lora : wanted) {
    if (std::ranges::find(known, lora.name, &RegisteredLora::name) == known.end())
      throw HttpError(404, "there is no LoRA " + lora.name);
  }
  unload_all(service.loras);
  last.loras.clear();
  for (const Wanted& lora : wanted) {
    service.loras.set_loaded(lora.name, /*is_loaded=*/true, lora.strength);
    last.loras.emplace_back(lora.name, lora.strength);
  }
  return json_reply({{"status", "ok"}});
}

// Puts in again what was set, as it was or all of one strength.
Response merge(const Request& request, Service& service, LastSet& last) {
  std::optional<double> strength;
  if (!request.body.empty()) {
    const json fields = read_form(request).fields;
    if (fields.contains("strength")) strength = real_of("strength", fields["strength"]);
    if (fields.contains("target")) component_of(fields["target"], service.model);
  }
  const std::lock_guard lock(last.mutex);
  if (last.loras.empty()) throw HttpError(400, "no LoRA was set; POST /v1/set_lora does");
  for (const auto& [name, own] : last.loras)
    service.loras.set_loaded(name, /*is_loaded=*/true, strength.value_or(own));
  return json_reply({{"status", "ok"}});
}

Response list_all(const Service& service) {
  json adapters = json::array(), active = json::array();
  for (const RegisteredLora& lora : service.loras.list()) {
    const std::string file = std::filesystem::path(lora.file).filename().string();
    adapters.push_back({{"nickname", lora.name}, {"path", file}});
    if (!lora.is_loaded) continue;
    active.push_back(
        {{"nickname", lora.name}, {"path", file}, {"merged", false}, {"strength", lora.strength}});
  }
  return json_reply({{"loaded_adapters", adapters},
                     {"active", active.empty() ? json::object() : json{{kFirst, active}}}});
}

}  // namespace

void add_sglang_loras(http::Router& router, Service& service) {
  const auto last = std::make_shared<LastSet>();
  router.add("POST", "/v1/set_lora", [&service, last](const Request& request, Client&) {
    return set_loras(request, service, *last);
  });
  router.add("POST", "/v1/merge_lora_weights", [&service, last](const Request& request, Client&) {
    return merge(request, service, *last);
  });
  router.add("POST", "/v1/unmerge_lora_weights", [&service](const Request&, Client&) {
    unload_all(service.loras);
    return json_reply({{"status", "ok"}});
  });
  router.add("GET", "/v1/list_loras",
             [&service](const Request&, Client&) { return list_all(service); });
}

}  // namespace atelier::serve
