#include "host/samples/cache_manifest.h"

#include <algorithm>
#include <filesystem>

#include "atelier/error.h"

#include "formats/json.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"

namespace atelier::samples {

namespace fs = std::filesystem;

namespace {

using files::display_path;
using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kFormat = "atelier.cache";
const std::string kEmpty = "empty_";  // before the stages of a row with an empty prompt
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;

Json encoders_json(const EncoderRecords& records) {
  Json out = Json::object();
  for (const auto& [component, record] : records)
    out[component] = {{"fingerprint", record.fingerprint}, {"dtype", record.dtype}};
  return out;
}

EncoderRecords encoders_of(const Json& json) {
  EncoderRecords records;
  for (const auto& [component, record] : json.items())
    records[component] = {record.at("fingerprint"), record.at("dtype")};
  return records;
}

// What an item calls the key of a stage: "text", and "stage.files" where the name alone would be
// another field. Stages have no dot in their names.
std::string key_field(const std::string& stage) {
  static constexpr std::string_view kFields[] = {"place", "alternative",   "frames", "height",
                                                 "width", "latents_shape", "values", "files"};
  const bool is_taken =
      std::ranges::find(kFields, stage) != std::end(kFields) || stage.starts_with(kEmpty);
  return is_taken ? "stage." + stage : stage;
}

Json item_json(const CacheItem& item) {
  Json out = {{"place", item.place},        {"height", item.target.height},
              {"width", item.target.width}, {"latents_shape", item.latents_shape},
              {"values", item.values},      {"files", item.files}};
  if (item.target.frames != 1) out["frames"] = item.target.frames;
  if (item.is_alternative) out["alternative"] = true;
  for (const auto& [stage, key] : item.keys) out[key_field(stage)] = key;
  for (const auto& [stage, key] : item.empty_keys) out[kEmpty + stage] = key;
  return out;
}

CacheItem item_of(const Json& json, const CachedStages& stages) {
  CacheItem item;
  item.place = json.at("place");
  item.is_alternative = json.value("alternative", false);
  item.target = {json.value("frames", int64_t{1}), json.at("height"), json.at("width")};
  item.latents_shape = json.at("latents_shape").get<std::vector<int64_t>>();
  for (const auto& [stage, is_cached] : stages) {
    item.keys[stage] = json.at(key_field(stage));
    if (const auto empty = json.find(kEmpty + stage); empty != json.end())
      item.empty_keys[stage] = *empty;
  }
  for (const auto& [name, value] : json.at("values").items()) item.values[name] = value;
  item.files = json.at("files").get<std::vector<std::string>>();
  return item;
}

std::string text_of(const Manifest& manifest) {
  Json out = {{"format", kFormat},
              {"version", kVersion},
              {"complete", manifest.is_complete},
              {"family", manifest.family},
              {"cached", manifest.cached},
              {"dataset", manifest.dataset},
              {"options", manifest.options},
              {"files", Json::object()},
              {"items", Json::array()}};
  if (manifest.plugin_version != kUnsaidVersion) out["plugin_version"] = manifest.plugin_version;
  for (const auto& [stage, records] : manifest.encoders)
    out[stage + "_encoders"] = encoders_json(records);
  for (const auto& [path, file] : manifest.files)
    out["files"][path] = {{"size", file.size}, {"mtime_ns", file.mtime_ns}, {"hash", file.hash}};
  for (const CacheItem& item : manifest.items) out["items"].push_back(item_json(item));
  // Paths need not be UTF-8: such a file is not found again, and so is hashed anew.
  return out.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  manifest.is_complete = json.at("complete");
  manifest.family = json.at("family");
  manifest.plugin_version = json.value("plugin_version", kUnsaidVersion);
  for (const auto& [stage, is_cached] : json.at("cached").items()) {
    manifest.cached[stage] = is_cached;
    manifest.encoders[stage] = encoders_of(json.at(stage + "_encoders"));
  }
  manifest.dataset = json.at("dataset");
  manifest.options = json.at("options");
  for (const auto& [path, file] : json.at("files").items())
    manifest.files[path] = {file.at("size"), file.at("mtime_ns"), file.at("hash")};
  for (const Json& item : json.at("items"))
    manifest.items.push_back(item_of(item, manifest.cached));
  return manifest;
}

}  // namespace

std::string Manifest::path(const std::string& folder) {
  return (fs::path(folder) / "manifest.json").string();
}

Manifest Manifest::read(const std::string& folder) {
  const std::string name = path(folder);
  std::error_code failure;
  if (!fs::exists(name, failure) && !failure)
    throw Error(ErrorCode::kNotFound, display_path(name) + ": there is no cache",
                "run --task sft:data_process first, with the same --output_path or --cache_path",
                "CACHE_ABSENT");
  const std::string text = files::read_text_file(name, kMaxBytes);
  const char* const hint = "run --task sft:data_process again, which writes it anew";
  try {
    const Json json = formats::parse_json(text, {.max_depth = 64, .max_values = uint64_t{1} << 28});
    if (!json.is_object() || json.value("format", "") != kFormat)
      throw Error(ErrorCode::kInvalidArgument, display_path(name) + ": is no manifest of a cache",
                  "name another folder with --cache_path or --output_path", kForeignCache);
    if (json.value("version", 0) != kVersion)
      throw Error(ErrorCode::kInvalidArgument,
                  display_path(name) + ": version " + json.at("version").dump() + ", " +
                      std::to_string(kVersion) + " is known here",
                  hint, kStaleCache);
    return manifest_of(json);
  } catch (const formats::ParseError& error) {
    const Error at = files::at_file(name, error, ErrorCode::kDataLoss);
    throw Error(at.code(), at.message(), hint, at.tag());
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kDataLoss, display_path(name) + ": is damaged: " + error.what(), hint);
  }
}

void Manifest::write(const std::string& folder) const {
  const std::string name = path(folder), text = text_of(*this);
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorCode::kEnvironment,
                display_path(folder) + ": the folder cannot be made: " + failure.message(),
                "check --cache_path", "FILE_WRITE");
  if (fs::exists(name, failure) && files::read_text_file(name, kMaxBytes) == text) return;
  files::write_file(name, text);
}

}  // namespace atelier::samples
