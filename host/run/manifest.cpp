#include "host/run/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "formats/escape.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/run/durable.h"

namespace atelier::run {

namespace {

constexpr int kVersion = 1;

// What stands around the checksum, which is that of all bytes before it.
constexpr std::string_view kBeforeChecksum = ",\n  \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr size_t kChecksumLength = 32;

std::string checksum(std::string_view bytes) {
  return files::ContentHash().add(bytes.data(), bytes.size()).hex();
}

// "2026-11-21T14:51:11Z".
std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string read_text(const std::string& path) {
  try {
    return files::read_text_file(path);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) throw damaged(path, "is not there");
    throw;
  }
}

// The object without its checksum. Throws Error{kDataLoss}.
nlohmann::json parse_checked(const std::string& path, std::string_view text) {
  const size_t end = kBeforeChecksum.size() + kChecksumLength + kAfterChecksum.size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), end));
  if (text.substr(body.size()) !=
      std::string(kBeforeChecksum) + checksum(body) + std::string(kAfterChecksum))
    throw damaged(path, "its checksum does not hold");
  return nlohmann::json::parse(std::string(body) + "}");
}

nlohmann::ordered_json list_of(const StateFiles& files) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [name, file] : files)
    list.push_back(
        nlohmann::ordered_json({{"name", name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}}));
  return list;
}

StateFiles files_of_list(const nlohmann::json& list) {
  StateFiles files;
  for (const nlohmann::json& file : list)
    files[file.at("name").get<std::string>()] = {file.at("bytes"), file.at("xxh3_128")};
  return files;
}

void read_manifest(const nlohmann::json& manifest, SavedState& into) {
  manifest.at("step").get_to(into.step);
  into.run = manifest.value("run", "");
  into.facts = manifest.at("facts");
  into.files = files_of_list(manifest.at("files"));
  for (const auto& [name, file] : into.files) {
    if (!is_plain_name(name))
      throw damaged(into.folder, formats::quote_and_escape(name) + " is no name of a file");
  }
}

}  // namespace

std::string step_name(int64_t step, std::string_view prefix) {
  std::array<char, 32> digits;
  std::snprintf(digits.data(), digits.size(), "%08lld", static_cast<long long>(step));
  return std::string(prefix) + digits.data();
}

std::optional<int64_t> step_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, failure] = std::from_chars(name.data() + prefix.size(), end, step);
  if (failure != std::errc() || stop != end || step_name(step, prefix) != name) return std::nullopt;
  return step;
}

bool is_plain_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), is_allowed);
}

std::string to_text(const StateFiles& files) {
  return list_of(files).dump();
}

StateFiles files_of_text(const std::string& text) {
  return files_of_list(nlohmann::json::parse(text));
}

std::string manifest_text(int64_t step, const StateFiles& files, const nlohmann::json& facts,
                          const std::string& run) {
  nlohmann::ordered_json manifest = {
      {"version", kVersion}, {"step", step}, {"time", time_now()}, {"sdk", ATELIER_SDK_VERSION}};
  if (!run.empty()) manifest["run"] = run;
  manifest["files"] = list_of(files);
  manifest["facts"] = facts;
  std::string body;
  try {
    body = manifest.dump(/*indent=*/2);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("the facts of a checkpoint cannot be written: ") + error.what(),
                "use UTF-8");
  }
  body.resize(body.size() - 2);  // the line end and the bracket
  return body + std::string(kBeforeChecksum) + checksum(body) + std::string(kAfterChecksum);
}

SavedState open_state(const std::string& folder) {
  const std::string path = path_in(folder, kManifestName);
  SavedState saved_state;
  saved_state.folder = folder;
  try {
    const nlohmann::json manifest = parse_checked(path, read_text(path));
    if (manifest.at("version") != kVersion)
      throw Error(ErrorCode::kUnsupported,
                  files::display_path(path) + ": its version is " + manifest.at("version").dump() +
                      ", and this program reads version " + std::to_string(kVersion),
                  "use the program that wrote it", "CHECKPOINT_VERSION");
    read_manifest(manifest, saved_state);
  } catch (const nlohmann::json::exception& error) {
    throw damaged(path, error.what());
  }
  for (const auto& [name, file] : saved_state.files) checked_path(saved_state, name);
  return saved_state;
}

std::string checked_path(const SavedState& saved_state, const std::string& file) {
  std::string path = path_in(saved_state.folder, file);
  std::error_code failure;
  const uint64_t bytes = std::filesystem::file_size(path, failure);
  if (failure) throw damaged(path, failure.message());
  const uint64_t expected = saved_state.files.at(file).bytes;
  if (bytes != expected)
    throw damaged(path, "has " + std::to_string(bytes) + " bytes, and the manifest says " +
                            std::to_string(expected));
  return path;
}

Error damaged(const std::string& path, const std::string& what) {
  return Error(ErrorCode::kDataLoss, files::display_path(path) + ": " + what,
               "use another checkpoint", "CHECKPOINT_DAMAGED");
}

}  // namespace atelier::run
