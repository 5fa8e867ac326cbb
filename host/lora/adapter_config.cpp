#include "host/lora/adapter_config.h"

#include <filesystem>

#include "atelier/error.h"

#include "formats/json.h"
#include "host/files/file_reader.h"

namespace atelier::lora {

namespace fs = std::filesystem;
using files::display_path;
using nlohmann::json;

namespace {

constexpr const char* kMetadataKey = "lora_adapter_metadata";

json parse_config(const std::string& text, const std::string& where) {
  try {
    json values = formats::parse_json(text);
    if (values.is_object()) return values;
  } catch (const formats::ParseError& error) {
    throw Error(ErrorCode::kDataLoss, where + ": " + error.what(), error.hint, error.tag);
  }
  throw Error(ErrorCode::kDataLoss, where + ": is no JSON object", "save the LoRA again",
              "LORA_METADATA");
}

// peft's patterns are the end of a name, at a dot; "^" anchors them at its start.
bool names_layer(const std::string& pattern, const std::string& layer) {
  if (pattern.starts_with("^")) return layer == pattern.substr(1);
  return layer == pattern || layer.ends_with("." + pattern);
}

}  // namespace

AdapterConfig AdapterConfig::of(const files::Checkpoint& file) {
  const auto found = file.metadata().find(kMetadataKey);
  if (found != file.metadata().end()) {
    return AdapterConfig(
        parse_config(found->second, display_path(file.name()) + ": metadata " + kMetadataKey));
  }
  const fs::path path(file.files().front());
  const fs::path beside = path.parent_path() / "adapter_config.json";
  std::error_code failure;
  if (path.filename() == "adapter_model.safetensors" && fs::is_regular_file(beside, failure)) {
    return AdapterConfig(parse_config(files::read_text_file(beside.string(), 16'000'000),
                                      display_path(beside.string())));
  }
  return AdapterConfig(json::object());
}

std::optional<AdapterConfig::Alpha> AdapterConfig::find(const std::string& layer,
                                                        const std::string& alpha_key) const {
  for (const auto& [key, value] : values_.items()) {
    if (key != alpha_key && !key.ends_with("." + alpha_key)) continue;
    const std::string component = key.substr(0, key.size() - alpha_key.size());
    if (!layer.starts_with(component) || !value.is_number()) continue;
    const std::string name = layer.substr(component.size());
    const auto root = values_.find(component + "use_rslora");
    return Alpha{*number_for(component, alpha_key, "alpha_pattern", name),
                 number_for(component, "r", "rank_pattern", name),
                 root != values_.end() && root->is_boolean() && root->get<bool>()};
  }
  return std::nullopt;
}

// What `patterns_key` says of the layer `name` of a component, else the value of `key`.
std::optional<double> AdapterConfig::number_for(const std::string& component,
                                                const std::string& key, const char* patterns_key,
                                                const std::string& name) const {
  if (const auto patterns = values_.find(component + patterns_key);
      patterns != values_.end() && patterns->is_object()) {
    for (const auto& [pattern, own] : patterns->items()) {
      if (own.is_number() && names_layer(pattern, name)) return own.get<double>();
    }
  }
  const auto found = values_.find(component + key);
  if (found == values_.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace atelier::lora
