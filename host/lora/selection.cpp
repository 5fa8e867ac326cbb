#include "host/lora/selection.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::lora {

namespace fs = std::filesystem;
using formats::quote_and_escape;
using nlohmann::json;

namespace {

constexpr std::string_view kExtension = ".safetensors";
constexpr const char* kUse = "PATH:STRENGTH, or PATH:STRENGTH@COMPONENT";

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

void check_strength(double strength, const std::string& name) {
  if (!std::isfinite(strength))
    refuse(quote_and_escape(name) + ": the strength is not finite", "1 adds it as it was trained");
}

// Cuts off what stands behind the last `mark`, where `take` wants it and no file has the whole
// name.
template <class Take>
void take_end(std::string& path, char mark, Take take) {
  std::error_code failure;
  const size_t at = path.rfind(mark);
  if (at == std::string::npos || fs::exists(path, failure)) return;
  if (take(std::string_view(path).substr(at + 1))) path.resize(at);
}

// A relative path without "." and "..", in plain characters.
bool stays_inside(const std::string& name) {
  if (name.empty() || name.size() > 1024) return false;
  for (const char c : name) {
    if (c == '\\' || static_cast<unsigned char>(c) < 0x20) return false;
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

std::string without_extension(std::string name) {
  if (name.size() > kExtension.size() && name.ends_with(kExtension))
    name.resize(name.size() - kExtension.size());
  return name;
}

}  // namespace

LoraRef parse_use(std::string_view text) {
  LoraRef use;
  use.path = std::string(text);
  take_end(use.path, '@', [&](std::string_view end) {
    if (end.find('/') != std::string_view::npos) return false;  // the @ of a folder
    if (end.empty()) refuse(quote_and_escape(text) + ": there is no component", kUse);
    use.component = end;
    return true;
  });
  take_end(use.path, ':', [&](std::string_view end) {
    const auto strength = report::parse_number<double>(end);
    if (strength) use.strength = *strength;
    return strength.has_value();
  });
  if (use.path.empty()) refuse(quote_and_escape(text) + ": there is no path", kUse);
  fs::path path(use.path);
  if (path.filename().empty()) path = path.parent_path();  // "folder/"
  use.name = without_extension(path.filename().string());
  check_strength(use.strength, use.name);
  return use;
}

std::vector<LoraRef> parse_flags(const std::vector<std::string>& texts) {
  std::vector<LoraRef> uses;
  const auto is_taken = [&](const std::string& name) {
    return std::any_of(uses.begin(), uses.end(),
                       [&](const LoraRef& use) { return use.name == name; });
  };
  for (const std::string& text : texts) {
    LoraRef use = parse_use(text);
    for (const LoraRef& other : uses) {
      if (other.path == use.path && other.component == use.component)
        refuse(quote_and_escape(use.path) + ": given twice", "give it once, with one strength");
    }
    const std::string stem = use.name;
    for (int i = 2; is_taken(use.name); ++i) use.name = stem + "_" + std::to_string(i);
    uses.push_back(std::move(use));
  }
  return uses;
}

namespace {

constexpr const char* kForm = "write [{\"name\": \"style\", \"strength\": 0.7}]";

// One entry of a list: a name, or an object.
LoraRef parse_entry(const json& item) {
  LoraRef use;
  if (item.is_string()) {
    use.name = item.get<std::string>();
    return use;
  }
  if (!item.is_object()) refuse(quote_and_escape(item.dump()) + " is no object", kForm);
  for (const auto& [key, value] : item.items()) {
    if (key == "name" && value.is_string()) {
      use.name = value.get<std::string>();
    } else if (key == "strength" && value.is_number()) {
      use.strength = value.get<double>();
    } else if (key == "component" && value.is_string()) {
      use.component = value.get<std::string>();
    } else {
      refuse(
          quote_and_escape(key) + ": " + quote_and_escape(value.dump()) + " is no part of a LoRA",
          kForm);
    }
  }
  if (!item.contains("name"))
    refuse(quote_and_escape(item.dump()) + ": \"name\" is missing", kForm);
  return use;
}

}  // namespace

std::vector<LoraRef> parse_uses(const json& list, const std::string& folder) {
  if (!list.is_array()) refuse(quote_and_escape(list.dump()) + " is no list", kForm);
  std::vector<LoraRef> uses;
  for (const json& item : list) {
    LoraRef use = parse_entry(item);
    use.name = without_extension(use.name);
    check_strength(use.strength, use.name);
    use.path = find_in_folder(folder, use.name);
    for (const LoraRef& other : uses) {
      if (other.name == use.name && other.component == use.component)
        refuse(quote_and_escape(use.name) + ": given twice", "give it once, with one strength");
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

std::string find_in_folder(const std::string& folder, const std::string& name) {
  if (folder.empty())
    refuse("LoRA " + quote_and_escape(name) +
               ": names are looked up in --lora_dir, which is not given",
           "give the folder of the LoRA files with --lora_dir");
  if (!stays_inside(name))
    refuse("LoRA " + quote_and_escape(name) + ": is no name of a file in --lora_dir",
           "names are relative to --lora_dir, without . and ..");
  std::error_code failure;
  for (const std::string& file : {name + std::string(kExtension), name}) {
    const fs::path path = fs::path(folder) / file;
    if (path.extension() == kExtension && fs::is_regular_file(path, failure)) return path.string();
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    if (entry.path().extension() == kExtension) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  const std::string nearest = report::nearest_name(name, names);
  throw Error(ErrorCode::kNotFound,
              "LoRA " + quote_and_escape(name) + ": there is no such file in " +
                  files::display_path(folder),
              !nearest.empty() ? "did you mean " + quote_and_escape(nearest) + "?"
              : names.empty()  ? "the folder holds no .safetensors file"
                               : "there are " + report::list_names(names, 5),
              "LORA_NAME");
}

}  // namespace atelier::lora
