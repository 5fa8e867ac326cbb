#include "host/files/model_paths.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"

namespace atelier::files {

namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kUsualStems[] = {"diffusion_pytorch_model", "model"};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_folder(const fs::path& path) {
  std::error_code failure;
  return fs::is_directory(path, failure);
}

// "model-00002-of-00005.safetensors" is shard 2 of 5 of "model".
struct ShardName {
  std::string stem;
  int64_t number = 0, count = 0;
};

std::optional<ShardName> parse_shard_name(const std::string& file) {
  static const std::regex form(R"((.*)-(\d{5})-of-(\d{5})\.safetensors)");
  std::smatch match;
  if (!std::regex_match(file, match, form)) return std::nullopt;
  return ShardName{match[1], std::stoll(match[2]), std::stoll(match[3])};
}

// Throws when the files are numbered shards and some numbers are missing.
void check_complete(const std::string& name, const std::vector<std::string>& files) {
  std::map<std::pair<std::string, int64_t>, std::set<int64_t>> numbers;
  for (const std::string& file : files) {
    if (const auto shard = parse_shard_name(fs::path(file).filename().string()))
      numbers[{shard->stem, shard->count}].insert(shard->number);
  }
  for (const auto& [stem, found] : numbers) {
    std::vector<std::string> missing;
    for (int64_t i = 1; i <= stem.second; ++i) {
      if (found.contains(i)) continue;
      char file[64];
      std::snprintf(file, sizeof(file), "-%05d-of-%05d.safetensors", static_cast<int>(i),
                    static_cast<int>(stem.second));
      missing.push_back(stem.first + file);
    }
    if (!missing.empty())
      throw Error(ErrorCode::kNotFound,
                  display_path(name) + ": " + std::to_string(missing.size()) + " of " +
                      std::to_string(stem.second) +
                      " shards are missing: " + report::list_names(missing, 3),
                  "pass the folder or the index, and download what is missing", "SHARD_MISSING");
  }
}

CheckpointFiles from_index(const std::string& name, const fs::path& index_path) {
  const formats::ShardIndex index = read_shard_index(index_path.string());
  CheckpointFiles files{name, {}, index_path.string(), config_beside(index_path)};
  std::vector<std::string> missing;
  for (const std::string& shard : index.shards) {
    const fs::path path = index_path.parent_path() / shard;
    if (!is_file(path)) missing.push_back(shard);
    files.files.push_back(path.string());
  }
  if (!missing.empty())
    throw Error(ErrorCode::kNotFound,
                display_path(index_path.string()) + ": " + std::to_string(missing.size()) + " of " +
                    std::to_string(index.shards.size()) +
                    " shards are missing: " + report::list_names(missing, 3),
                "download them into the same folder", "SHARD_MISSING");
  return files;
}

// The one checkpoint of a component folder; nullopt when it holds none.
std::optional<CheckpointFiles> from_component_folder(const fs::path& folder) {
  std::vector<std::string> indices, tensors, foreign;
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(kIndexSuffix)) indices.push_back(name);
    if (name.ends_with(".safetensors")) tensors.push_back(name);
    for (const char* extension : {".bin", ".pt", ".pth", ".ckpt", ".gguf"}) {
      if (name.ends_with(extension)) foreign.push_back(name);
    }
  }
  const auto prefer = [](std::vector<std::string>& names, const std::string& suffix) {
    for (const std::string_view stem : kUsualStems) {
      const std::string plain = std::string(stem) + suffix;
      if (names.size() > 1 && std::find(names.begin(), names.end(), plain) != names.end())
        names = {plain};
    }
  };
  const std::string name = folder.string();
  prefer(indices, kIndexSuffix);
  if (indices.size() == 1) return from_index(name, folder / indices.front());
  if (indices.size() > 1)
    throw Error(
        ErrorCode::kInvalidArgument,
        display_path(name) + ": holds several checkpoints: " + report::list_names(indices, 4),
        "pass the index of the one you want", "FOLDER_AMBIGUOUS");
  if (tensors.empty()) {
    if (!foreign.empty()) {
      // Says by its bytes and name what it is instead.
      const std::string file = (folder / foreign.front()).string();
      read_tensors(FileReader(file));
      if (foreign.size() == 1) return CheckpointFiles{name, {file}, {}, config_beside(file)};
    }
    return std::nullopt;
  }
  const bool are_shards = std::all_of(tensors.begin(), tensors.end(), [](const std::string& file) {
    return parse_shard_name(file).has_value();
  });
  if (!are_shards) {
    prefer(tensors, ".safetensors");
    if (tensors.size() > 1)
      throw Error(
          ErrorCode::kInvalidArgument,
          display_path(name) + ": holds several checkpoints: " + report::list_names(tensors, 4),
          "pass the file you want", "FOLDER_AMBIGUOUS");
  }
  CheckpointFiles files{name, {}, {}, {}};
  for (const std::string& file : tensors) files.files.push_back((folder / file).string());
  files.config_path = config_beside(files.files.front());
  check_complete(name, files.files);
  return files;
}

// Whether the folder is that of a whole model. Throws for a model_index.json that is none.
bool is_model_folder(const fs::path& folder) {
  const std::string index = (folder / "model_index.json").string();
  if (!is_file(index)) return false;
  try {
    if (formats::parse_json(read_text_file(index)).is_object()) return true;
  } catch (const formats::ParseError& error) {
    throw at_file(index, error, ErrorCode::kDataLoss);
  }
  throw Error(ErrorCode::kDataLoss, display_path(index) + ": is no JSON object",
              "download it again, or pass the component folders", "INDEX_FORM");
}

// The folders in one, hidden ones aside.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> folders;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(".") && is_folder(folder / name)) folders.push_back(folder / name);
  }
  return folders;
}

// A folder that holds a tokenizer, or those in it that do: google/umt5-xxl.
void add_tokenizers(const fs::path& folder, std::vector<std::string>& found) {
  if (holds_tokenizer(folder.string())) {
    found.push_back(folder.string());
    return;
  }
  for (const fs::path& child : folders_in(folder)) {
    if (holds_tokenizer(child.string())) found.push_back(child.string());
  }
}

// Whether a folder holds more than one component: archives of torch.save(), or a tokenizer in a
// folder of its own, beside other checkpoints.
bool is_repository(const fs::path& folder) {
  int64_t archives = 0, tensors = 0;
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(".pth")) ++archives;
    if (name.ends_with(".safetensors")) ++tensors;
  }
  if (archives > 0) return archives + tensors > 1;
  if (tensors == 0) return false;
  std::vector<std::string> tokenizers;
  for (const fs::path& child : folders_in(folder)) add_tokenizers(child, tokenizers);
  return !tokenizers.empty();
}

// Whether an archive holds other things than tensors: the state of a random generator.
bool is_foreign_archive(const std::string& path) {
  try {
    read_tensors(FileReader(path));
    return false;
  } catch (const Error& error) {
    return error.tag() == "PTH_GLOBAL" || error.tag() == "PTH_OPCODE" || error.tag() == "PTH_DICT";
  }
}

// The checkpoints in the root of a repository. Shards belong together; any other file stands for
// itself, unless it is a variant of one that is there: model.fp16.safetensors.
std::vector<CheckpointFiles> from_repository(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> checkpoints;  // paths by stem
  std::vector<CheckpointFiles> all;
  const std::vector<std::string> names = names_in(folder);
  for (const std::string& name : names) {
    const std::string path = (folder / name).string();
    if (const auto shard = parse_shard_name(name)) {
      checkpoints[shard->stem].push_back(path);
    } else if (name.ends_with(".safetensors")) {
      checkpoints[fs::path(name).stem().string()].push_back(path);
    } else if (name.ends_with(".pth") && !is_foreign_archive(path)) {
      all.push_back({path, {path}, {}, config_beside(path)});
    }
  }
  for (const auto& [stem, files] : checkpoints) {
    const bool is_variant = std::ranges::any_of(
        checkpoints, [&](const auto& other) { return stem.starts_with(other.first + "."); });
    if (is_variant) continue;
    const fs::path index = folder / (stem + kIndexSuffix);
    if (is_file(index)) {
      all.push_back(from_index(folder.string(), index));
    } else {
      check_complete(folder.string(), files);
      const bool is_usual = std::ranges::find(kUsualStems, stem) != std::end(kUsualStems);
      const bool owns_config = is_usual || checkpoints.size() == 1;
      all.push_back({files.front(), files, {}, owns_config ? config_beside(files.front()) : ""});
    }
  }
  return all;
}

void from_folder(const fs::path& folder, FoundFiles& found) {
  const bool is_model = is_model_folder(folder);
  const bool has_root = !is_model && is_repository(folder);
  if (!is_model && !has_root) {
    if (auto files = from_component_folder(folder)) {
      found.checkpoints.push_back({std::move(*files), false});
      return;
    }
  }
  // A model folder: its component folders, whether or not all of them were downloaded.
  const size_t before = found.checkpoints.size() + found.tokenizers.size();
  if (holds_tokenizer(folder.string())) found.tokenizers.push_back(folder.string());
  report::Problems problems;
  problems.collect([&] {
    if (!has_root) return;
    for (CheckpointFiles& files : from_repository(folder))
      found.checkpoints.push_back({std::move(files), true});
  });
  for (const fs::path& child : folders_in(folder)) {
    problems.collect([&] {
      if (auto files = from_component_folder(child)) {
        found.checkpoints.push_back({std::move(*files), true});
      } else {
        add_tokenizers(child, found.tokenizers);
      }
    });
  }
  problems.throw_if_any();
  if (found.checkpoints.size() + found.tokenizers.size() == before)
    throw Error(ErrorCode::kNotFound,
                display_path(folder.string()) + ": the folder holds no safetensors file",
                "pass a model folder, a component folder or a file", "FOLDER_EMPTY");
}

void from_file(const std::string& path, FoundFiles& found) {
  const std::string file_name = fs::path(path).filename().string();
  if (file_name == "tokenizer.json" || file_name == "vocab.json" || path.ends_with(".model")) {
    found.tokenizers.push_back(path);
    return;
  }
  if (path.ends_with(".json")) {
    found.checkpoints.push_back({from_index(path, path), false});
    return;
  }
  check_complete(path, {path});
  found.checkpoints.push_back({CheckpointFiles{path, {path}, {}, config_beside(path)}, false});
}

// Files that were named together: the shards of one checkpoint.
void from_list(const std::string& name, const std::vector<std::string>& paths, FoundFiles& found) {
  std::vector<std::string> files, indices;
  for (const std::string& path : paths) {
    if (path.ends_with(kIndexSuffix)) {
      indices.push_back(path);
    } else {
      files.push_back(path);
    }
  }
  if (indices.size() == 1) {
    // The shards may be named beside their index.
    CheckpointFiles from = from_index(name, indices.front());
    for (const std::string& file : files) {
      if (std::find(from.files.begin(), from.files.end(), file) == from.files.end())
        throw Error(
            ErrorCode::kInvalidArgument,
            display_path(file) + ": is not among the shards of " + display_path(indices.front()),
            "pass it as a checkpoint of its own", "SHARD_UNKNOWN");
    }
    found.checkpoints.push_back({std::move(from), false});
    return;
  }
  check_complete(name, files);
  std::sort(files.begin(), files.end());
  const std::string config = files.empty() ? std::string() : config_beside(files.front());
  found.checkpoints.push_back({CheckpointFiles{name, std::move(files), {}, config}, false});
}

// Keeps the model files of what a glob gives: a folder of a published model holds others beside
// them.
std::vector<std::string> model_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (is_file(path) && (path.ends_with(".safetensors") || path.ends_with(kIndexSuffix)))
      files.push_back(path);
  }
  if (!files.empty()) return files;
  for (const std::string& path : paths) {
    if (is_file(path)) files.push_back(path);
  }
  return files;
}

std::vector<std::string> glob_path(const std::string& pattern) {
  return pattern.starts_with("/") ? expand_glob("/", pattern.substr(1)) : expand_glob("", pattern);
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

void find_entry(const nlohmann::json& entry, FoundFiles& found) {
  if (entry.is_string()) {
    find_at_path(entry.get<std::string>(), found);
    return;
  }
  std::vector<std::string> patterns, paths;
  flatten_list(entry, patterns);
  for (const std::string& pattern : patterns) {
    if (!formats::has_glob(pattern) || is_file(pattern)) {
      if (is_folder(pattern)) {
        CheckpointFiles files;
        if (auto inside = from_component_folder(pattern)) files = std::move(*inside);
        paths.insert(paths.end(), files.files.begin(), files.files.end());
      } else {
        paths.push_back(pattern);
      }
      continue;
    }
    const std::vector<std::string> matches = model_files(glob_path(pattern));
    if (matches.empty())
      throw Error(ErrorCode::kNotFound, display_path(pattern) + ": no file matches",
                  "check the pattern", "FILE_OPEN");
    paths.insert(paths.end(), matches.begin(), matches.end());
  }
  if (paths.empty())
    throw Error(ErrorCode::kInvalidArgument, "--model_paths: an empty list of shards",
                "name its files", "MODEL_PATHS");
  for (const std::string& path : paths) FileReader reader(path);
  from_list(paths.front(), paths, found);
}

struct PublishedFiles {
  std::string id, pattern;
};

std::vector<PublishedFiles> parse_model_ids(const std::string& text, report::Problems& problems) {
  std::vector<PublishedFiles> entries;
  std::vector<std::string> texts;
  try {
    texts = formats::parse_list(text);
  } catch (const formats::ParseError& error) {
    problems.add(std::string("--model_id_with_origin_paths: ") + error.what(), error.hint);
  }
  for (const std::string_view entry : texts) {
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
    entries.push_back({std::string(id), std::string(pattern)});
  }
  return entries;
}

// Finds one entry in the first of its places that has it. Returns false when none has.
bool find_published(const PublishedFiles& entry, FoundFiles& found) {
  for (const std::string& folder : published_folders(entry.id)) {
    if (!is_folder(folder)) continue;
    std::string pattern = entry.pattern;
    while (pattern.ends_with('/')) pattern.pop_back();
    if (pattern.empty() || pattern == ".") {
      from_folder(folder, found);
      return true;
    }
    const std::vector<std::string> paths = expand_glob(folder, pattern);
    if (paths.empty()) continue;
    if (paths.size() == 1) {
      if (is_folder(paths.front()) && holds_tokenizer(paths.front()) &&
          !from_component_folder(paths.front())) {
        found.tokenizers.push_back(paths.front());
      } else {
        find_at_path(paths.front(), found);
      }
      return true;
    }
    const std::vector<std::string> files = model_files(paths);
    if (!files.empty()) {
      from_list(folder + "/" + pattern, files, found);
      return true;
    }
    for (const std::string& path : paths) from_folder(path, found);
    return true;
  }
  return false;
}

void report_missing(const std::vector<PublishedFiles>& missing, report::Problems& problems) {
  std::string files, places, commands;
  std::map<std::string, std::vector<std::string>> by_id;
  for (const PublishedFiles& entry : missing) by_id[entry.id].push_back(entry.pattern);
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

}  // namespace

std::string config_beside(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path(), config = folder / "config.json";
  // Original repositories keep other components beside the weights that the config is of.
  const auto is_safetensors = [](const std::string& name) {
    return name.ends_with(".safetensors");
  };
  if (file.ends_with(".pth") &&
      std::ranges::any_of(names_in(folder.empty() ? "." : folder), is_safetensors))
    return {};
  return is_file(config) ? config.string() : std::string();
}

std::vector<std::string> tokenizers_below(const std::string& folder) {
  std::vector<std::string> found;
  for (const fs::path& child : folders_in(folder)) add_tokenizers(child, found);
  return found;
}

bool holds_tokenizer(const std::string& folder) {
  constexpr const char* kNames[] = {"tokenizer.json", "tokenizer.model", "spiece.model",
                                    "vocab.json"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return is_file(fs::path(folder) / name); });
}

std::vector<std::string> expand_glob(const std::string& folder, const std::string& pattern) {
  std::vector<fs::path> bases = {folder};
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string part(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (part.empty() || part == ".") continue;
    std::vector<fs::path> next;
    for (const fs::path& base : bases) {
      if (!formats::has_glob(part)) {
        std::error_code failure;
        if (fs::exists(base / part, failure)) next.push_back(base / part);
        continue;
      }
      for (const std::string& name : names_in(base.empty() ? fs::path(".") : base)) {
        if (name.starts_with(".") && !part.starts_with(".")) continue;
        if (formats::glob_match(part, name) && (rest.empty() || is_folder(base / name)))
          next.push_back(base / name);
      }
    }
    bases = std::move(next);
  }
  std::vector<std::string> paths;
  for (const fs::path& path : bases) paths.push_back(path.string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

namespace {

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
  if (path.empty())
    throw Error(ErrorCode::kInvalidArgument, "--model_paths: an empty path",
                "name a file or folder", "MODEL_PATHS");
  std::error_code failure;
  if (!fs::exists(path, failure) && formats::has_glob(path)) {
    const std::vector<std::string> files = model_files(glob_path(path));
    if (files.empty())
      throw Error(ErrorCode::kNotFound, display_path(path) + ": no file matches",
                  "check the pattern", "FILE_OPEN");
    from_list(path, files, found);
    return;
  }
  if (is_folder(path)) {
    from_folder(path, found);
  } else {
    const FileReader reader(path);  // says what is wrong with the path
    from_file(path, found);
  }
}

namespace {

// The entries of --model_paths: JSON, one plain path, or several between commas where no file is
// called so.
nlohmann::json model_path_entries(const std::string& text) {
  std::error_code failure;
  if (fs::exists(text, failure)) return nlohmann::json::array({text});
  if (!text.starts_with('[') && !text.starts_with('"')) return formats::parse_list(text);
  try {
    const nlohmann::json entries = formats::parse_json(text);
    return entries.is_array() ? entries : nlohmann::json::array({entries});
  } catch (const formats::ParseError& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string("--model_paths: ") + error.what(),
                "pass a JSON list of paths, or one plain path", error.tag);
  }
}

}  // namespace

FoundFiles find_model_files(const std::string& model_paths,
                            const std::string& model_id_with_origin_paths,
                            report::Problems& problems) {
  FoundFiles found;
  const auto name_new = [&](size_t before, const std::vector<std::string>& entry) {
    for (size_t i = before; i < found.checkpoints.size(); ++i) found.checkpoints[i].entry = entry;
  };
  if (!model_paths.empty()) {
    nlohmann::json entries = nlohmann::json::array();
    problems.collect([&] { entries = model_path_entries(model_paths); });
    for (const auto& entry : entries) {
      const size_t before = found.checkpoints.size();
      problems.collect([&] {
        std::vector<std::string> words;
        flatten_list(entry, words);
        found.entries.insert(found.entries.end(), words.begin(), words.end());
        find_entry(entry, found);
        name_new(before, words);
      });
    }
  }
  std::vector<PublishedFiles> missing;
  for (const PublishedFiles& entry : parse_model_ids(model_id_with_origin_paths, problems)) {
    const size_t before = found.checkpoints.size();
    const std::string word = entry.id + ":" + entry.pattern;
    found.entries.push_back(word);
    problems.collect([&] {
      if (!find_published(entry, found)) missing.push_back(entry);
      name_new(before, {word});
    });
  }
  if (!missing.empty()) report_missing(missing, problems);
  return found;
}

}  // namespace atelier::files
