// What a file or a folder is, told by what it holds.
#include "host/inspect/inspect.h"

#include <algorithm>
#include <filesystem>

#include "atelier/error.h"
#include "atelier/text/tokenizer.h"

#include "formats/csv.h"
#include "formats/json.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/files/model_paths.h"
#include "host/inspect/run.h"
#include "host/media/clip.h"
#include "host/media/decode.h"
#include "host/media/sound.h"
#include "host/media/text.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_loader.h"

namespace atelier::inspect {

namespace fs = std::filesystem;

namespace {

using files::display_path;

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

Thing inspect_tokenizer(const std::string& path) {
  // How a text is split does not change how many tokens there are.
  const int64_t tokens = plugins::guard(
      "tokenizer", [&] { return text::Tokenizer::load(path, text::ByteLevelRules{})->size(); });
  return {{"path", path}, {"kind", "tokenizer"}, {"tokens", tokens}};
}

// How many frames a clip has, and when they are shown.
void add_times(const media::ClipInfo& clip, Thing& out) {
  out["frames"] = clip.frames();
  if (clip.fps == 0) return;  // a folder's frames have no times
  out["fps"] = clip.fps;
  out["duration_s"] = clip.duration_s;
  if (clip.is_variable_rate) out["variable_rate"] = true;
}

Thing inspect_clip(const std::string& path) {
  const auto reader = media::open_clip(path);
  const media::ClipInfo& clip = reader->info();
  Thing out = {{"path", path}, {"kind", "clip"}, {"format", clip.format}};
  if (!clip.codec.empty()) out["codec"] = clip.codec;
  out["width"] = clip.width;
  out["height"] = clip.height;
  add_times(clip, out);
  if (clip.rotation != 0) out["rotation"] = clip.rotation;
  if (clip.has_alpha) out["alpha"] = true;
  if (clip.has_sound) out["sound"] = true;
  for (const auto& [key, value] : clip.metadata) {
    if (key == "comment") {
      for (const auto& [keyword, text] : media::from_comment(value)) out["text"][keyword] = text;
    } else {
      out["text"][key] = value;
    }
  }
  return out;
}

Thing inspect_sound(const std::string& path) {
  const media::SoundInfo sound = media::probe_sound(path);
  return {{"path", path},
          {"kind", "sound"},
          {"format", sound.format},
          {"codec", sound.codec},
          {"channels", sound.channels},
          {"sample_rate", sound.sample_rate},
          {"duration_s", static_cast<double>(sound.samples) / sound.sample_rate}};
}

Thing inspect_image(const std::string& path) {
  const media::ImageInfo info = media::probe_image(path);
  Thing out = {{"path", path},        {"kind", "image"},       {"format", info.format},
               {"width", info.width}, {"height", info.height}, {"channels", info.channels},
               {"bits", info.bits}};
  if (info.is_animated) {
    out["animated"] = true;
    const media::ClipInfo clip = media::open_clip(path)->info();
    if (clip.frames() > 1) add_times(clip, out);  // of some formats the first frame alone is read
  }
  for (const auto& [key, value] : media::read_text(path)) out["text"][key] = value;
  return out;
}

Thing table_summary(const std::string& path, const std::string& format,
                    const std::vector<std::string>& columns, size_t rows) {
  return {{"path", path},
          {"kind", "dataset metadata"},
          {"format", format},
          {"rows", rows},
          {"columns", columns}};
}

// Columns of rows that are objects, in order of appearance. Throws when a row is none.
std::vector<std::string> columns_of(
    const std::string& path, const std::vector<std::pair<uint64_t, const nlohmann::json*>>& rows,
    const char* unit) {
  std::vector<std::string> columns;
  for (const auto& [number, row] : rows) {
    if (!row->is_object())
      throw Error(ErrorCode::kInvalidArgument,
                  display_path(path) + ":" + unit + std::to_string(number) + ": is no object",
                  "every row is an object of columns", "DATASET_FORM");
    for (const auto& [key, value] : row->items()) {
      if (std::find(columns.begin(), columns.end(), key) == columns.end()) columns.push_back(key);
    }
  }
  return columns;
}

Thing inspect_csv(const std::string& path) {
  const std::vector<formats::CsvRow> rows =
      formats::parse_csv(files::read_text_file(path, kMaxTextBytes));
  if (rows.empty())
    throw Error(ErrorCode::kInvalidArgument, display_path(path) + ": is empty",
                "a header line is expected", "DATASET_FORM");
  const std::vector<std::string>& columns = rows.front().fields;
  if (is_metrics(columns)) return inspect_metrics(path);
  for (const formats::CsvRow& row : rows) {
    if (row.fields.size() != columns.size())
      throw Error(ErrorCode::kInvalidArgument,
                  display_path(path) + ":" + std::to_string(row.line) + ": has " +
                      std::to_string(row.fields.size()) + " fields, the header has " +
                      std::to_string(columns.size()),
                  "quote fields that hold commas", "DATASET_FORM");
  }
  return table_summary(path, "csv", columns, rows.size() - 1);
}

Thing inspect_jsonl(const std::string& path) {
  const auto lines = formats::parse_jsonl(files::read_text_file(path, kMaxTextBytes));
  std::vector<std::pair<uint64_t, const nlohmann::json*>> rows;
  for (const formats::JsonLine& line : lines) rows.emplace_back(line.line, &line.value);
  return table_summary(path, "jsonl", columns_of(path, rows, ""), rows.size());
}

// One file, with the config.json beside it.
files::CheckpointFiles file_alone(const std::string& path) {
  return {path, {path}, {}, files::config_beside(path)};
}

// A safetensors file begins with the length of its header: zeros are among its first eight bytes.
bool is_text(const std::string& first) {
  return !first.empty() && std::all_of(first.begin(), first.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 || (byte >= '\t' && byte <= '\r');
  });
}

Thing inspect_plugin(const std::string& path) {
  const plugins::PluginFile plugin = plugins::describe_plugin(path);
  if (!plugin.problem.empty())
    throw Error(ErrorCode::kIncompatible, display_path(path) + ": " + plugin.problem,
                "atelier check-plugin", "PLUGIN");
  return {
      {"path", path}, {"kind", "plugin"}, {"family", plugin.family}, {"version", plugin.version}};
}

bool is_named_as_video(const std::string& extension) {
  for (const char* video : {".mp4", ".mkv", ".mov", ".webm", ".avi"}) {
    if (extension == video) return true;
  }
  return false;
}

}  // namespace

Thing Inspector::inspect_json(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name == "tokenizer.json" || name == "vocab.json")
    return inspect_tokenizer(name == "vocab.json" ? fs::path(path).parent_path().string() : path);
  const nlohmann::json json = formats::parse_json(files::read_text_file(path, kMaxTextBytes));
  if (name.ends_with(".index.json") || (json.is_object() && json.contains("weight_map"))) {
    files::FoundFiles found;
    files::find_at_path(path, found);
    return inspect_checkpoint(found.checkpoints.front().files);
  }
  if (json.is_array()) {
    std::vector<std::pair<uint64_t, const nlohmann::json*>> rows;
    for (const auto& row : json) rows.emplace_back(rows.size() + 1, &row);
    return table_summary(path, "json", columns_of(path, rows, "row "), rows.size());
  }
  throw Error(
      ErrorCode::kUnsupported,
      display_path(path) + ": is JSON, and neither a shard index, a tokenizer nor dataset metadata",
      "pass the file or folder that holds tensors", "FILE_KIND");
}

Thing Inspector::inspect_file(const std::string& path) {
  const files::FileReader reader(path);
  std::string first(std::min<uint64_t>(64, reader.size()), '\0');
  reader.read(first.data(), 0, first.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(first.data());
  if (media::looks_like_image({bytes, first.size()})) return inspect_image(path);
  if (media::looks_like_sound(first)) return inspect_sound(path);
  if (media::looks_like_clip(path)) return inspect_clip(path);
  const std::string extension = fs::path(path).extension().string();
  try {
    if (extension == ".json") return inspect_json(path);
    if (extension == ".jsonl") return inspect_jsonl(path);
    if (extension == ".model") return inspect_tokenizer(path);
    if (extension == ".csv") return inspect_csv(path);
    if (extension == ".toml") return inspect_settings(path);
  } catch (const formats::ParseError& error) {
    throw files::at_file(path, error, ErrorCode::kDataLoss);
  }
  if (is_named_as_video(extension))
    throw Error(ErrorCode::kUnsupported,
                display_path(path) + ": is named as a video, and is none of a kind that is known",
                "get it again, or convert it to MP4 (H.264)", "FILE_KIND");
  constexpr std::string_view kElf =
      "\x7f"
      "ELF";
  if (first.starts_with(kElf)) return inspect_plugin(path);
  if (is_text(first))
    throw Error(ErrorCode::kUnsupported, display_path(path) + ": is text of no kind that is known",
                "text is told by its ending: .json, .jsonl, .csv, .toml", "FILE_KIND");
  return inspect_checkpoint(file_alone(path));
}

void Inspector::inspect_folder(const std::string& path) {
  if (is_state_folder(path)) return show_(inspect_state(path));
  if (is_cache_folder(path)) return show_(inspect_cache(path));
  bool has_metadata = is_run_folder(path);
  if (has_metadata) show_(inspect_run(path));
  for (const char* name : {"metadata.csv", "metadata.json", "metadata.jsonl"}) {
    const std::string file = (fs::path(path) / name).string();
    if (!files::is_file(file)) continue;
    has_metadata = true;
    attempt([&] { show_(inspect_file(file)); });
  }
  files::FoundFiles found;
  try {
    files::find_at_path(path, found);
  } catch (const Error& error) {
    if (error.tag() == "FOLDER_AMBIGUOUS") {  // not one model, but files of which each is something
      found.checkpoints.clear();
      for (const std::string& file : files::expand_glob(path, "*.safetensors"))
        found.checkpoints.push_back({file_alone(file)});
    } else if (media::looks_like_clip(path)) {
      attempt([&] { show_(inspect_clip(path)); });
    } else if (!has_metadata) {
      refuse_(error);
    }
  }
  for (const auto& item : found.checkpoints)
    attempt([&] { show_(inspect_checkpoint(item.files)); });
  for (const std::string& tokenizer : found.tokenizers)
    attempt([&] { show_(inspect_tokenizer(tokenizer)); });
}

void Inspector::attempt(const std::function<void()>& inspect) {
  try {
    inspect();
  } catch (const Error& error) {
    refuse_(error);
  }
}

void Inspector::run(const std::string& path, const Refuse& refuse) {
  refuse_ = refuse;
  attempt([&] {
    std::error_code failure;
    if (fs::is_directory(path, failure)) return inspect_folder(path);
    show_(inspect_file(path));
  });
}

}  // namespace atelier::inspect
