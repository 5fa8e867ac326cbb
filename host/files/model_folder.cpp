#include "host/files/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "formats/json.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/report/problems.h"

namespace atelier::files {

namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexSuffix = ".safetensors.index.json";
// Beside the components of a published model; each of its files is added with --lora.
constexpr const char* kLoraFolder = "lora";
constexpr std::string_view kUsualStems[] = {"diffusion_pytorch_model", "model"};

Error fault(ErrorCode code, const std::string& path, const std::string& what, const char* hint,
            const char* tag) {
  return {code, display_path(path) + ": " + what, hint, tag};
}

// The names in a folder, read once and sorted.
struct Listing {
  fs::path folder;
  std::vector<std::string> files = {}, folders = {};  // hidden folders aside

  bool has(const std::string& file) const { return std::ranges::binary_search(files, file); }
  std::string path_of(const std::string& name) const { return (folder / name).string(); }
  std::vector<std::string> files_with(std::initializer_list<std::string_view> endings) const {
    std::vector<std::string> names;
    std::ranges::copy_if(files, std::back_inserter(names), [&](const std::string& file) {
      return std::ranges::any_of(endings, [&](auto ending) { return file.ends_with(ending); });
    });
    return names;
  }
};

Listing list(const fs::path& folder) {
  Listing all{folder};
  for (const std::string& name : names_in(folder)) {
    if (!is_folder(folder / name)) {
      all.files.push_back(name);
    } else if (!name.starts_with(".")) {
      all.folders.push_back(name);
    }
  }
  return all;
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

Error shards_missing(const std::string& path, const std::vector<std::string>& missing, size_t count,
                     const char* hint) {
  return fault(ErrorCode::kNotFound, path,
               std::to_string(missing.size()) + " of " + std::to_string(count) +
                   " shards are missing: " + report::list_names(missing, 3),
               hint, "SHARD_MISSING");
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
      throw shards_missing(name, missing, static_cast<size_t>(stem.second),
                           "pass the folder or the index, and download what is missing");
  }
}

// Files that together are one checkpoint, with the config beside the first one.
CheckpointFiles from_files(const std::string& name, std::vector<std::string> files) {
  check_complete(name, files);
  const std::string config = files.empty() ? std::string() : config_beside(files.front());
  return {name, std::move(files), {}, config};
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
    throw shards_missing(index_path.string(), missing, index.shards.size(),
                         "download them into the same folder");
  return files;
}

// Names with that ending, or the usual one alone where it is among several.
std::vector<std::string> preferred(std::vector<std::string> names, const std::string& ending) {
  for (const std::string_view stem : kUsualStems) {
    const std::string usual = std::string(stem) + ending;
    if (names.size() > 1 && std::ranges::find(names, usual) != names.end()) return {usual};
  }
  return names;
}

Error several_checkpoints(const std::string& folder, const std::vector<std::string>& names,
                          const char* hint) {
  return fault(ErrorCode::kInvalidArgument, folder,
               "holds several checkpoints: " + report::list_names(names, 4), hint,
               "FOLDER_AMBIGUOUS");
}

// The one archive of a component folder without safetensors; nullopt when there is none.
std::optional<CheckpointFiles> archive_of(const Listing& in) {
  const std::vector<std::string> archives =
      in.files_with({".bin", ".pt", ".pth", ".ckpt", ".gguf"});
  if (archives.empty()) return std::nullopt;
  const std::string file = in.path_of(archives.front());
  read_tensors(FileReader(file));  // says by its bytes and name what it is instead
  if (archives.size() > 1) return std::nullopt;
  return CheckpointFiles{in.folder.string(), {file}, {}, config_beside(file)};
}

// The one checkpoint of a component folder; nullopt when it holds none.
std::optional<CheckpointFiles> component_of(const Listing& in) {
  const std::string name = in.folder.string();
  const std::vector<std::string> indices = preferred(in.files_with({kIndexSuffix}), kIndexSuffix);
  if (indices.size() == 1) return from_index(name, in.folder / indices.front());
  if (indices.size() > 1)
    throw several_checkpoints(name, indices, "pass the index of the one you want");
  std::vector<std::string> tensors = in.files_with({".safetensors"});
  if (tensors.empty()) return archive_of(in);
  const bool are_shards = std::ranges::all_of(
      tensors, [](const std::string& file) { return parse_shard_name(file).has_value(); });
  if (!are_shards) tensors = preferred(std::move(tensors), ".safetensors");
  if (!are_shards && tensors.size() > 1)
    throw several_checkpoints(name, tensors, "pass the file you want");
  for (std::string& file : tensors) file = in.path_of(file);
  return from_files(name, std::move(tensors));
}

// Whether the folder is that of a whole model. Throws for a model_index.json that is none.
bool is_model_folder(const Listing& in) {
  if (!in.has("model_index.json")) return false;
  const std::string index = in.path_of("model_index.json");
  try {
    if (formats::parse_json(read_text_file(index)).is_object()) return true;
  } catch (const formats::ParseError& error) {
    throw at_file(index, error, ErrorCode::kDataLoss);
  }
  throw fault(ErrorCode::kDataLoss, index, "is no JSON object",
              "download it again, or pass the component folders", "INDEX_FORM");
}

bool holds_tokenizer(const Listing& in) {
  constexpr const char* kNames[] = {"tokenizer.json", "tokenizer.model", "spiece.model",
                                    "vocab.json"};
  return std::ranges::any_of(kNames, [&](const char* name) { return in.has(name); });
}

// A folder that holds a tokenizer, or those in it that do: google/umt5-xxl.
void add_tokenizers(const Listing& in, std::vector<std::string>& found) {
  if (holds_tokenizer(in)) {
    found.push_back(in.folder.string());
    return;
  }
  for (const std::string& child : in.folders) {
    if (holds_tokenizer(list(in.folder / child))) found.push_back(in.path_of(child));
  }
}

std::vector<std::string> tokenizers_in(const Listing& in) {
  std::vector<std::string> found;
  for (const std::string& child : in.folders) add_tokenizers(list(in.folder / child), found);
  return found;
}

// Whether a folder holds more than one component: archives of torch.save(), or a tokenizer in a
// folder of its own, beside other checkpoints.
bool is_repository(const Listing& in) {
  const size_t archives = in.files_with({".pth"}).size();
  const size_t tensors = in.files_with({".safetensors"}).size();
  if (archives > 0) return archives + tensors > 1;
  return tensors > 0 && !tokenizers_in(in).empty();
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
std::vector<CheckpointFiles> from_repository(const Listing& in) {
  std::map<std::string, std::vector<std::string>> checkpoints;  // paths by stem
  std::vector<CheckpointFiles> all;
  for (const std::string& name : in.files_with({".safetensors", ".pth"})) {
    const std::string path = in.path_of(name);
    if (const auto shard = parse_shard_name(name)) {
      checkpoints[shard->stem].push_back(path);
    } else if (name.ends_with(".safetensors")) {
      checkpoints[fs::path(name).stem().string()].push_back(path);
    } else if (!is_foreign_archive(path)) {
      all.push_back(from_files(path, {path}));
    }
  }
  for (const auto& [stem, files] : checkpoints) {
    const bool is_variant = std::ranges::any_of(
        checkpoints, [&](const auto& other) { return stem.starts_with(other.first + "."); });
    if (is_variant) continue;
    if (in.has(stem + kIndexSuffix)) {
      all.push_back(from_index(in.folder.string(), in.folder / (stem + kIndexSuffix)));
      continue;
    }
    CheckpointFiles& last = all.emplace_back(from_files(in.folder.string(), files));
    last.name = files.front();
    const bool is_usual = std::ranges::find(kUsualStems, stem) != std::end(kUsualStems);
    if (!is_usual && checkpoints.size() > 1) last.config_path.clear();
  }
  return all;
}

// A component folder, a repository, or a model folder: its component folders, whether or not all of
// them were downloaded.
void from_folder(const fs::path& folder, FoundFiles& found) {
  const Listing in = list(folder);
  const bool is_model = is_model_folder(in);
  const bool has_root = !is_model && is_repository(in);
  const auto add = [&](CheckpointFiles files, bool in_model_folder) {
    found.checkpoints.push_back({std::move(files), in_model_folder});
  };
  if (!is_model && !has_root) {
    if (auto files = component_of(in)) return add(std::move(*files), false);
  }
  const size_t before = found.checkpoints.size() + found.tokenizers.size();
  if (holds_tokenizer(in)) found.tokenizers.push_back(folder.string());
  report::Problems problems;
  const auto add_child = [&](const Listing& child) {
    if (auto files = component_of(child)) return add(std::move(*files), true);
    add_tokenizers(child, found.tokenizers);
  };
  problems.collect([&] {
    if (!has_root) return;
    for (CheckpointFiles& files : from_repository(in)) add(std::move(files), true);
  });
  for (const std::string& child : in.folders) {
    if (child != kLoraFolder) problems.collect([&] { add_child(list(folder / child)); });
  }
  problems.throw_if_any();
  if (found.checkpoints.size() + found.tokenizers.size() == before)
    throw fault(ErrorCode::kNotFound, folder.string(), "the folder holds no safetensors file",
                "pass a model folder, a component folder or a file", "FOLDER_EMPTY");
}

void from_file(const std::string& path, FoundFiles& found) {
  const FileReader reader(path);  // says what is wrong with the path
  const std::string file_name = fs::path(path).filename().string();
  if (file_name == "tokenizer.json" || file_name == "vocab.json" || path.ends_with(".model")) {
    found.tokenizers.push_back(path);
  } else if (path.ends_with(".json")) {
    found.checkpoints.push_back({from_index(path, path)});
  } else {
    found.checkpoints.push_back({from_files(path, {path})});
  }
}

// The files that are named together; a folder stands for those of its one checkpoint.
std::vector<std::string> files_of(const NamedPaths& named) {
  std::vector<std::string> files;
  for (const std::string& path : named.paths) {
    if (!is_folder(path)) {
      files.push_back(path);
    } else if (const auto inside = component_of(list(path))) {
      files.insert(files.end(), inside->files.begin(), inside->files.end());
    }
  }
  if (files.empty())
    throw Error(ErrorCode::kInvalidArgument, "--model_paths: an empty list of shards",
                "name its files", "MODEL_PATHS");
  for (const std::string& file : files) FileReader reader(file);
  return files;
}

CheckpointFiles from_shards(const NamedPaths& named) {
  std::vector<std::string> files = files_of(named);
  const std::string name = named.name.empty() ? files.front() : named.name;
  const auto indices = std::ranges::stable_partition(
      files, [](const std::string& file) { return !file.ends_with(kIndexSuffix); });
  if (indices.size() != 1) {
    files.erase(indices.begin(), indices.end());
    std::ranges::sort(files);
    return from_files(name, std::move(files));
  }
  // The shards may be named beside their index.
  CheckpointFiles from = from_index(name, files.back());
  for (const std::string& file : std::span(files).first(files.size() - 1)) {
    if (std::ranges::find(from.files, file) == from.files.end())
      throw fault(ErrorCode::kInvalidArgument, file,
                  "is not among the shards of " + display_path(files.back()),
                  "pass it as a checkpoint of its own", "SHARD_UNKNOWN");
  }
  return from;
}

}  // namespace

void add_files(const NamedPaths& named, FoundFiles& found) {
  if (named.are_shards) {
    found.checkpoints.push_back({from_shards(named)});
  } else if (is_folder(named.paths.front())) {
    from_folder(named.paths.front(), found);
  } else {
    from_file(named.paths.front(), found);
  }
}

std::string config_beside(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path(), config = folder / "config.json";
  // Original repositories keep other components beside the weights that the config is of.
  if (file.ends_with(".pth") &&
      !list(folder.empty() ? "." : folder).files_with({".safetensors"}).empty())
    return {};
  return is_file(config) ? config.string() : std::string();
}

std::vector<std::string> tokenizers_below(const std::string& folder) {
  return tokenizers_in(list(folder));
}

bool holds_tokenizer(const std::string& folder) {
  return holds_tokenizer(list(folder));
}

}  // namespace atelier::files
