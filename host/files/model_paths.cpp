#include "host/files/model_paths.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"

namespace atelier::files {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// An entry of --model_paths: a path, or a list of shards; or of --model_id_with_origin_paths.
struct Entry {
  std::vector<std::string> words;  // as the user wrote it
  bool is_list = false;
  std::string id = {}, pattern = {};  // of published files; empty: paths
};

// The entries of --model_paths: JSON, one plain path, or several between commas where no file is
// called so.
nlohmann::json model_path_entries(const std::string& text) {
  std::error_code failure;
  if (text.empty()) return nlohmann::json::array();
  if (fs::exists(text, failure)) return nlohmann::json::array({text});
  try {
    if (!text.starts_with('[') && !text.starts_with('"')) return formats::parse_list(text);
    const nlohmann::json entries = formats::parse_json(text);
    return entries.is_array() ? entries : nlohmann::json::array({entries});
  } catch (const formats::ParseError& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string("--model_paths: ") + error.what(),
                "pass a JSON list of paths, or one plain path", error.tag);
  }
}

void flatten_list(const nlohmann::json& value, std::vector<std::string>& paths) {
  if (value.is_string()) {
    paths.push_back(value.get<std::string>());
  } else if (value.is_array()) {
    for (const auto& item : value) flatten_list(item, paths);
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "--model_paths: " + formats::quote_and_escape(value.dump()) +
                    " is no path and no list of paths",
                "pass '[\"a.safetensors\", [\"b-1.safetensors\", \"b-2.safetensors\"]]'",
                "MODEL_PATHS");
  }
}

void parse_model_paths(const std::string& text, std::vector<Entry>& entries,
                       report::Problems& problems) {
  nlohmann::json values = nlohmann::json::array();
  problems.collect([&] { values = model_path_entries(text); });
  for (const nlohmann::json& value : values) {
    Entry entry{{}, !value.is_string()};
    problems.collect([&] {
      flatten_list(value, entry.words);
      entries.push_back(std::move(entry));
    });
  }
}

void parse_model_ids(const std::string& text, std::vector<Entry>& entries,
                     report::Problems& problems) {
  std::vector<std::string> texts;
  try {
    texts = formats::parse_list(text);
  } catch (const formats::ParseError& error) {
    problems.add(std::string("--model_id_with_origin_paths: ") + error.what(), error.hint);
  }
  for (const std::string& text_of_entry : texts) {
    const std::string_view entry = text_of_entry;
    const size_t colon = entry.rfind(':');
    const std::string_view id = entry.substr(0, std::min(colon, entry.size()));
    const std::string_view pattern =
        colon == std::string_view::npos ? std::string_view() : entry.substr(colon + 1);
    // A run's configuration has the folder itself in the place of an id that was found nearby.
    static const std::regex id_form("[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?|/[^:]*");
    const bool leaves = pattern.starts_with("/") || pattern == ".." || pattern.starts_with("../") ||
                        pattern.find("/../") != std::string_view::npos || pattern.ends_with("/..");
    if (colon == std::string_view::npos || !std::regex_match(std::string(id), id_form) || leaves ||
        id.find("..") != std::string_view::npos) {
      problems.add("--model_id_with_origin_paths: " + formats::quote_and_escape(entry) +
                       " is no \"org/name:glob\"",
                   "write for instance \"org/name:transformer/*.safetensors\"");
      continue;
    }
    entries.push_back({{text_of_entry}, false, std::string(id), std::string(pattern)});
  }
}

// Model files among what a glob gives: a folder of a published model holds others beside them.
std::vector<std::string> model_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files, tensors;
  for (const std::string& path : paths) {
    if (!is_file(path)) continue;
    files.push_back(path);
    if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json"))
      tensors.push_back(path);
  }
  return tensors.empty() ? files : tensors;
}

std::vector<std::string> glob_files(const std::string& pattern) {
  std::vector<std::string> files = model_files(
      pattern.starts_with("/") ? expand_glob("/", pattern.substr(1)) : expand_glob("", pattern));
  if (files.empty())
    throw Error(ErrorCode::kNotFound, display_path(pattern) + ": no file matches",
                "check the pattern", "FILE_OPEN");
  return files;
}

// Whether a word is no path that is there, and can be a pattern.
bool is_pattern(const std::string& word) {
  std::error_code failure;
  return formats::has_glob(word) && !fs::exists(word, failure);
}

NamedPaths named_by(const std::string& word) {
  if (word.empty())
    throw Error(ErrorCode::kInvalidArgument, "--model_paths: an empty path",
                "name a file or folder", "MODEL_PATHS");
  if (is_pattern(word)) return {glob_files(word), /*are_shards=*/true, word};
  return {{word}};
}

NamedPaths shards_of(const std::vector<std::string>& words) {
  NamedPaths shards = {{}, /*are_shards=*/true};
  for (const std::string& word : words) {
    const auto paths = is_pattern(word) ? glob_files(word) : std::vector<std::string>{word};
    shards.paths.insert(shards.paths.end(), paths.begin(), paths.end());
  }
  return shards;
}

// What is published, in the first of its places that has it; nothing where none has.
std::vector<NamedPaths> published_paths(const Entry& entry) {
  std::string pattern = entry.pattern;
  while (pattern.ends_with('/')) pattern.pop_back();
  for (const std::string& folder : published_folders(entry.id)) {
    if (!is_folder(folder)) continue;
    if (pattern.empty() || pattern == ".") return {{{folder}}};
    const std::vector<std::string> paths = expand_glob(folder, pattern);
    if (paths.empty()) continue;
    const std::vector<std::string> files = model_files(paths);
    if (paths.size() > 1 && !files.empty()) return {{files, true, folder + "/" + pattern}};
    std::vector<NamedPaths> each;
    for (const std::string& path : paths) each.push_back({{path}});
    return each;
  }
  return {};
}

std::vector<NamedPaths> paths_of(const Entry& entry) {
  if (!entry.id.empty()) return published_paths(entry);
  return {entry.is_list ? shards_of(entry.words) : named_by(entry.words.front())};
}

void report_missing(const std::vector<Entry>& missing, report::Problems& problems) {
  std::string files, places, commands;
  std::map<std::string, std::vector<std::string>> by_id;
  for (const Entry& entry : missing) by_id[entry.id].push_back(entry.pattern);
  for (const auto& [id, patterns] : by_id) {
    std::string include;
    for (const std::string& pattern : patterns) {
      files += (files.empty() ? "" : ", ") + formats::quote_and_escape(id + ":" + pattern);
      std::string remote = pattern.empty() || pattern == "." ? "*" : pattern;
      if (remote.ends_with('/')) remote += "*";
      include += " '" + remote + "'";
    }
    const std::vector<std::string> folders = published_folders(id);
    for (const std::string& folder : folders)
      places += (places.empty() ? "" : ", ") + display_path(folder);
    const std::string target = display_path(folders.front());
    commands += (commands.empty() ? "" : " && ") +
                (environment("DIFFSYNTH_DOWNLOAD_SOURCE") == "modelscope"
                     ? "modelscope download --model " + id + " --include" + include +
                           " --local_dir " + target
                     : "hf download " + id + " --include" + include + " --local-dir " + target);
  }
  problems.add("model files are not there: " + files + "; searched " + places,
               "download them: " + commands, ErrorCode::kNotFound);
}

// The first of the environment variables that is set, else `otherwise`.
fs::path folder_of(std::initializer_list<const char*> variables, const fs::path& otherwise) {
  for (const char* variable : variables) {
    if (const std::string value = environment(variable); !value.empty()) return value;
  }
  return otherwise;
}

// The snapshot of a model in a cache folder of Hugging Face's hub: that of refs/main, else the
// last.
fs::path hub_snapshot(const fs::path& hub, const std::string& model_id) {
  std::string flat = "models--" + model_id;
  if (const size_t slash = flat.find('/'); slash != std::string::npos) flat.replace(slash, 1, "--");
  const fs::path model = hub / flat;
  std::string revision;
  if (is_file(model / "refs" / "main"))
    revision = read_text_file((model / "refs" / "main").string(), 4096);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())))
    revision.pop_back();
  if (!revision.empty() && revision.find('/') == std::string::npos &&
      revision.find("..") == std::string::npos)
    return model / "snapshots" / revision;
  const std::vector<std::string> snapshots = names_in(model / "snapshots");
  return snapshots.empty() ? model : model / "snapshots" / snapshots.back();
}

// ModelScope's folders of a model; they write a dot of a name as three underscores.
void add_modelscope_folders(const fs::path& scope, const std::string& model_id,
                            std::vector<std::string>& folders) {
  std::string escaped;
  for (const char c : model_id) escaped += c == '.' ? std::string("___") : std::string(1, c);
  for (const fs::path& root : {scope / "models", scope}) {
    folders.push_back((root / escaped).string());
    if (escaped != model_id && is_folder(root / model_id))
      folders.push_back((root / model_id).string());
  }
}

}  // namespace

std::vector<std::string> published_folders(const std::string& model_id) {
  if (model_id.starts_with('/')) return {model_id};
  const fs::path base =
      folder_of({"ATELIER_MODEL_BASE_PATH", "DIFFSYNTH_MODEL_BASE_PATH"}, "models");
  const fs::path cache = folder_of({"XDG_CACHE_HOME"}, fs::path(environment("HOME")) / ".cache");
  const fs::path hub =
      folder_of({"HF_HUB_CACHE"}, folder_of({"HF_HOME"}, cache / "huggingface") / "hub");
  const fs::path scope = folder_of({"MODELSCOPE_CACHE"}, cache / "modelscope" / "hub");
  std::vector<std::string> folders = {(base / model_id).string(),
                                      hub_snapshot(hub, model_id).string()};
  add_modelscope_folders(scope, model_id, folders);
  return folders;
}

void find_at_path(const std::string& path, FoundFiles& found) {
  add_files(named_by(path), found);
}

FoundFiles find_model_files(const std::string& model_paths,
                            const std::string& model_id_with_origin_paths,
                            report::Problems& problems) {
  FoundFiles found;
  std::vector<Entry> entries, missing;
  parse_model_paths(model_paths, entries, problems);
  parse_model_ids(model_id_with_origin_paths, entries, problems);
  for (const Entry& entry : entries) {
    const size_t before = found.checkpoints.size();
    found.entries.insert(found.entries.end(), entry.words.begin(), entry.words.end());
    problems.collect([&] {
      const std::vector<NamedPaths> all = paths_of(entry);
      if (all.empty()) missing.push_back(entry);
      for (const NamedPaths& named : all) add_files(named, found);
    });
    for (FoundCheckpoint& checkpoint : std::span(found.checkpoints).subspan(before))
      checkpoint.entry = entry.words;
  }
  if (!missing.empty()) report_missing(missing, problems);
  return found;
}

}  // namespace atelier::files
