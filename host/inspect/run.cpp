// What a training run left: its folder, states to resume from, encoded samples, settings, metrics.
#include "host/inspect/run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "atelier/error.h"

#include "formats/csv.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/media/clip_writer.h"
#include "host/order/config_file.h"
#include "host/order/training.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/run/manifest.h"
#include "host/run/run_folder.h"
#include "host/samples/cache_manifest.h"

namespace atelier::inspect {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{1} << 30;

// The settings that say what a run does, where they are set.
constexpr std::string_view kTold[] = {
    "plugin",           "task",          "lora_base_model", "lora_rank",
    "trainable_models", "learning_rate", "optimizer",       "dataset_base_path"};

const ModelFamily* family_of(const std::vector<flags::GivenValue>& values) {
  std::map<std::string, std::string> named;
  for (const flags::GivenValue& value : values) named[value.name] = value.text;
  if (!named.contains("plugin")) return nullptr;
  return plugins::open_plugin(named["plugin"], named["plugin_path"]).family;
}

}  // namespace

bool is_state_folder(const std::string& path) {
  return files::is_file(fs::path(path) / run::kManifestName);
}

bool is_cache_folder(const std::string& path) {
  return files::is_file(samples::Manifest::path(path));
}

bool is_run_folder(const std::string& path) {
  std::error_code failure;
  return files::is_file(fs::path(path) / "config.toml") ||
         fs::is_directory(fs::path(path) / "checkpoints", failure);
}

Thing inspect_state(const std::string& path) {
  Thing out = {{"path", path}, {"kind", "state"}};
  try {
    const run::SavedState state = run::open_state(path);
    out["step"] = state.step;
    uint64_t bytes = 0;
    for (const auto& [name, file] : state.files) bytes += file.bytes;
    out["bytes"] = bytes;
    out["files"] = state.files.size();
    out["facts"] = state.facts;
  } catch (const Error& error) {
    out["refused"] = report::error_line(error);
  }
  return out;
}

Thing inspect_run(const std::string& path) {
  Thing out = {{"path", path}, {"kind", "run"}};
  if (const std::string file = (fs::path(path) / "config.toml").string(); files::is_file(file)) {
    try {
      out["settings"] = inspect_settings(file)["settings"];
    } catch (const Error& error) {
      out["refused"] = report::error_line(error);
    }
  }
  out["states"] = Thing::array();
  const fs::path states = fs::path(path) / "checkpoints";
  for (const std::string& name : files::names_in(states)) {
    if (!run::step_of(name)) continue;
    Thing state = inspect_state((states / name).string());
    state.erase("facts");
    out["states"].push_back(std::move(state));
  }
  out["weights"] = Thing::array();
  for (const std::string& name : files::names_in(path)) {
    if (name.ends_with(".safetensors")) out["weights"].push_back(name);
  }
  out["previews"] = Thing::array();
  for (const std::string& name : files::names_in(fs::path(path) / "samples")) {
    if (name.ends_with(".png") || media::find_clip_format(name))
      out["previews"].push_back("samples/" + name);
  }
  if (const std::string file = (fs::path(path) / "loss.csv").string(); files::is_file(file)) {
    try {
      out["metrics"] = inspect_metrics(file);
    } catch (const Error& error) {
      out["refused"] = report::error_line(error);
    }
  }
  return out;
}

Thing inspect_cache(const std::string& path) {
  Thing out = {{"path", path}, {"kind", "encoded samples"}};
  try {
    const samples::Manifest manifest = samples::Manifest::read(path);
    out["family"] = manifest.family;
    out["samples"] = manifest.items.size();
    for (const auto& [stage, is_cached] : manifest.cached)
      out[stage == "text" ? "texts" : stage] = is_cached;
    out["complete"] = manifest.is_complete;
    std::set<MediaTarget> targets;
    for (const samples::CacheItem& item : manifest.items) targets.insert(item.target);
    out["sizes"] = Thing::array();
    for (const auto& [frames, height, width] : targets) {
      out["sizes"].push_back({height, width});
      if (frames != 1) out["sizes"].back() = {frames, height, width};
    }
  } catch (const Error& error) {
    out["refused"] = report::error_line(error);
  }
  return out;
}

Thing inspect_settings(const std::string& path) {
  report::Problems unknown;  // without the family, its own flags are among them
  const std::string text = files::read_text_file(path);
  std::vector<flags::GivenValue> values =
      order::parse_config_text(text, path, order::train_command(nullptr), unknown);
  Thing out = {{"path", path}, {"kind", "settings"}};
  report::Problems problems;
  problems.collect([&] {
    if (const ModelFamily* family = family_of(values))
      values = order::parse_config_text(text, path, order::train_command(family), problems);
  });
  out["count"] = values.size();
  out["settings"] = Thing::object();
  for (const std::string_view name : kTold) {
    const auto value = std::ranges::find(values, name, &flags::GivenValue::name);
    if (value != values.end() && !value->text.empty())
      out["settings"][std::string(name)] = value->text;
  }
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    out["refused"] = report::error_line(error);
  }
  return out;
}

bool is_metrics(const std::vector<std::string>& columns) {
  return columns == std::vector<std::string>{"step", "key", "value"};
}

Thing inspect_metrics(const std::string& path) {
  const std::vector<formats::CsvRow> rows =
      formats::parse_csv(files::read_text_file(path, kMaxTableBytes));
  Thing out = {{"path", path}, {"kind", "metrics"}, {"last", Thing::object()}};
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string>& fields = rows[i].fields;
    if (fields.size() != 3)
      throw Error(ErrorCode::kInvalidArgument,
                  files::display_path(path) + ":" + std::to_string(rows[i].line) + ": has " +
                      std::to_string(fields.size()) + " fields and not step, key and value",
                  "cut the file off there", "DATASET_FORM");
    if (i == 1) out["first_step"] = fields[0];
    out["last_step"] = fields[0];
    out["last"][fields[1]] = fields[2];
  }
  return out;
}

}  // namespace atelier::inspect
