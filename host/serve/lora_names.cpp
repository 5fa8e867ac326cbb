#include "host/serve/lora_names.h"

#include <algorithm>
#include <filesystem>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/files/folder.h"
#include "host/http/server.h"
#include "host/lora/lora_file.h"
#include "host/report/problems.h"
#include "host/serve/hidden_paths.h"
#include "host/serve/job_table.h"

namespace atelier::serve {
namespace {

namespace fs = std::filesystem;

using http::HttpError;
using nlohmann::json;

constexpr const char* kSuffix = ".safetensors";

using Metadata = std::map<std::string, std::string>;

// The words of "a, b", each once.
json words_of(const std::string& text) {
  json words = json::array();
  for (const std::string& word : formats::parse_list(text))
    if (!word.empty() && std::find(words.begin(), words.end(), word) == words.end())
      words.push_back(word);
  return words;
}

// The tags that most captions of the training had: {"folder": {"tag": count}}.
json frequent_tags(const std::string& text) {
  constexpr size_t kMost = 5;
  std::map<std::string, int64_t> counts;
  try {
    for (const json& folder : formats::parse_json(text)) {
      if (!folder.is_object()) continue;
      for (const auto& [tag, count] : folder.items())
        if (count.is_number_integer()) counts[tag] += count.get<int64_t>();
    }
  } catch (const formats::ParseError&) {
    return json::array();
  }
  std::vector<std::pair<int64_t, std::string>> tags;
  for (const auto& [tag, count] : counts) tags.emplace_back(-count, tag);
  std::ranges::sort(tags);
  json words = json::array();
  for (size_t i = 0; i < std::min(kMost, tags.size()); ++i) words.push_back(tags[i].second);
  return words;
}

// The words that bring out what a LoRA has learnt.
json trigger_words(const Metadata& metadata) {
  for (const char* const key : {"modelspec.trigger_phrase", "trigger_words"})
    if (const auto found = metadata.find(key); found != metadata.end() && !found->second.empty())
      return words_of(found->second);
  const auto tags = metadata.find("ss_tag_frequency");
  return tags != metadata.end() ? frequent_tags(tags->second) : json::array();
}

// What a file says of itself, as far as clients may want to know it.
json metadata_of(const std::string& path) {
  json told = json::object();
  try {
    const lora::LoraFile file = lora::LoraFile::open(path);
    int64_t rank = 0;
    for (const lora::LoraLayer& layer : file.layers()) rank = std::max(rank, layer.rank);
    if (rank > 0) told["rank"] = rank;
    const auto& metadata = file.tensors().metadata();
    const auto tell = [&](const char* name, std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        const auto found = metadata.find(key);
        if (found != metadata.end() && !told.contains(name)) told[name] = found->second;
      }
    };
    tell("base", {"ss_base_model_version", "modelspec.architecture", "base_model"});
    if (json words = trigger_words(metadata); !words.empty()) told["trigger_words"] = words;
  } catch (const Error& error) {
    told["error"] = "it cannot be read";  // the whole error names the file's path
  }
  return told;
}

void check_name(const std::string& name) {
  const bool is_plain = !name.empty() && name.size() <= 200 &&
                        name.find_first_of("/\\:<>\"\n\t") == std::string::npos;
  if (!is_plain)
    throw HttpError(400, "name: " + formats::quote_and_escape(name) +
                             " is no name of a LoRA; use letters, digits and signs but "
                             "/ \\ : < > \"");
}

}  // namespace

std::string without_folder_of(const lora::LoraRef& lora, std::string message) {
  return without_folder(std::move(message), fs::path(lora.path).parent_path().string());
}

LoraNames::LoraNames(std::string folder, const std::vector<lora::LoraRef>& loaded, Check check)
    : folder_(std::move(folder)), check_(std::move(check)) {
  look_into_folder();
  for (const lora::LoraRef& lora : loaded) {
    entries_.insert_or_assign(lora.name, Entry{lora});
    loaded_.push_back(lora.name);
  }
}

void LoraNames::look_into_folder() const {
  for (const std::string& name : files::names_in(folder_)) {
    if (!name.ends_with(kSuffix) || !seen_.insert(name).second) continue;
    const std::string plain = name.substr(0, name.size() - std::string_view(kSuffix).size());
    entries_.emplace(plain, Entry{{.name = plain, .path = (fs::path(folder_) / name).string()}});
  }
}

std::vector<RegisteredLora> LoraNames::list() const {
  const std::lock_guard lock(mutex_);
  look_into_folder();
  std::vector<RegisteredLora> loras;
  for (auto& [name, entry] : entries_) {
    // A file may have been read while it was being copied.
    if (!entry.metadata || entry.metadata->contains("error"))
      entry.metadata = metadata_of(entry.ref.path);
    loras.push_back({.name = name,
                     .file = entry.ref.path,
                     .is_loaded = std::ranges::find(loaded_, name) != loaded_.end(),
                     .strength = entry.ref.strength,
                     .metadata = *entry.metadata});
  }
  return loras;
}

void LoraNames::add(const std::string& name, const std::string& file,
                    const std::string& component) {
  check_name(name);
  if (folder_.empty())
    throw HttpError(404, "file: the server was started without --lora_dir, so there is none");
  lora::LoraRef lora = {.name = name, .component = component};
  try {
    lora.path = lora::find_in_folder(folder_, file);
  } catch (const Error& error) {
    throw HttpError(error.code() == ErrorCode::kNotFound ? 404 : 400,
                    "file: " + without_folder(text_of(error), folder_));
  }
  try {
    check_(lora);
  } catch (const Error& error) {
    throw HttpError(refusal_of(error.code()), "file: " + without_folder_of(lora, text_of(error)));
  }
  const std::lock_guard lock(mutex_);
  std::erase(loaded_, name);
  entries_.insert_or_assign(name, Entry{lora});
}

LoraNames::Entry& LoraNames::find_entry(const std::string& name, int status) const {
  look_into_folder();
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, entry] : entries_) known.push_back(other);
  const std::string nearest = report::nearest_name(name, known);
  throw HttpError(
      status, "loras: " + formats::quote_and_escape(name) + " is not registered" +
                  (nearest.empty() ? "; GET /v1/loras lists those that are"
                                   : "; did you mean " + formats::quote_and_escape(nearest) + "?"));
}

void LoraNames::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  find_entry(name, 404);
  std::erase(loaded_, name);
  entries_.erase(name);
}

void LoraNames::set_loaded(const std::string& name, bool is_loaded, double strength) {
  lora::LoraRef lora;
  {
    const std::lock_guard lock(mutex_);
    lora = find_entry(name, 404).ref;
  }
  if (is_loaded) {
    try {
      check_(lora);
    } catch (const Error& error) {
      throw HttpError(refusal_of(error.code()), "name: " + without_folder_of(lora, text_of(error)));
    }
  }
  const std::lock_guard lock(mutex_);
  Entry& entry = find_entry(name, 404);
  std::erase(loaded_, name);
  if (!is_loaded || strength == 0) return;
  entry.ref.strength = strength;
  loaded_.push_back(name);
}

std::vector<lora::LoraRef> LoraNames::find(
    const std::optional<std::vector<std::pair<std::string, double>>>& asked) const {
  const std::lock_guard lock(mutex_);
  std::vector<lora::LoraRef> loras;
  if (!asked) {
    for (const std::string& name : loaded_) loras.push_back(find_entry(name, 500).ref);
    return loras;
  }
  for (const auto& [name, strength] : *asked) {
    if (std::ranges::find(loras, name, &lora::LoraRef::name) != loras.end())
      throw HttpError(400, "loras: " + formats::quote_and_escape(name) + " is named twice");
    loras.push_back(find_entry(name, 400).ref);
    loras.back().strength = strength;
  }
  return loras;
}

}  // namespace atelier::serve
