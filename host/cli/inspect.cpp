// atelier inspect: what a file is, who takes it, and what that one wants.
#include "host/cli/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/text/tokenizer.h"

#include "formats/csv.h"
#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "formats/lora_names.h"
#include "host/cli/commands.h"
#include "host/cli/error_line.h"
#include "host/files/file_reader.h"
#include "host/files/model_paths.h"
#include "host/media/decode.h"
#include "host/media/png.h"
#include "host/model/components.h"
#include "host/model/model_flags.h"
#include "host/model/model_loader.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace fs = std::filesystem;

namespace {

using files::Checkpoint;
using files::display_path;
using Json = InspectedThing;

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

}  // namespace

flags::CommandSpec inspect_command() {
  flags::CommandSpec command{
      "inspect", "Says what files are: tensors, dtypes, sizes, and which family takes them."};
  command.flags = {
      {.name = "plugin", .help = "ask this family only", .preset = "", .value_name = "FAMILY|FILE"},
      model::plugin_path_flag(),
      {.name = "model_hints",
       .kind = flags::FlagKind::kJson,
       .help = "what a file is, where its tensors cannot tell: '{\"*glob*\": {\"component\": "
               "\"dit\"}}'",
       .preset = "{}"},
      {.name = "tensors",
       .kind = flags::FlagKind::kFlag,
       .help = "list every tensor",
       .preset = "false"},
      {.name = "json",
       .kind = flags::FlagKind::kFlag,
       .help = "one JSON object a line for each thing found",
       .preset = "false"},
  };
  command.positional = "FILE|FOLDER...";
  command.min_positional = 1;
  return command;
}

namespace {

struct Context {
  std::vector<const ModelFamily*> families;
  std::map<std::string, DetectHint> hints;
  // What was found so far and has a config, for files without one.
  std::vector<model::LoadedPart> lenders;
  bool lists_tensors = false;
};

// Whole numbers of a list are shown as such.
Json config_json(const ConfigValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::vector<double>>) {
          Json out = Json::array();
          for (const double number : held) {
            if (number == std::floor(number) && std::abs(number) < 1e15) {
              out.push_back(static_cast<int64_t>(number));
            } else {
              out.push_back(number);
            }
          }
          return out;
        } else {
          return held;
        }
      },
      value);
}

std::string dtype_text(at::ScalarType type) {
  return std::string(formats::dtype_name(files::file_dtype(type)));
}

Json tensor_summary(const TensorIndex& index, bool lists_tensors) {
  Json out;
  std::map<std::string, std::pair<int64_t, uint64_t>> dtypes;
  uint64_t elements = 0, bytes = 0;
  for (const auto& [name, meta] : index.tensors()) {
    const auto count = static_cast<uint64_t>(c10::multiply_integers(meta.shape));
    const uint64_t size = count * c10::elementSize(meta.dtype);
    auto& [tensors, held] = dtypes[dtype_text(meta.dtype)];
    ++tensors;
    held += size;
    elements += count;
    bytes += size;
    if (lists_tensors)
      out["list"].push_back(
          {{"name", name}, {"dtype", dtype_text(meta.dtype)}, {"shape", meta.shape}});
  }
  out["count"] = index.tensors().size();
  out["elements"] = elements;
  out["bytes"] = bytes;
  for (const auto& [name, counts] : dtypes)
    out["dtypes"][name] = {{"tensors", counts.first}, {"bytes", counts.second}};
  return out;
}

// What a family makes of one component of a checkpoint.
Json describe_part(const ModelFamily& family, const model::LoadedPart& part, std::string& refusal) {
  const Detection* const detection = &part.detection;
  const Checkpoint& file = part.checkpoint;
  Json out;
  out["family"] = family.name();
  out["component"] = detection->component;
  out["variant"] = detection->variant;
  out["spelling"] = detection->spelling;
  out["prefix"] = detection->prefix;
  for (const auto& [key, value] : detection->config) out["config"][key] = config_json(value);
  if (file.config()) out["config_place"] = file.config()->place;
  const ComponentSpec* spec = model::find_component(family, detection->component);
  if (spec != nullptr && spec->role != Role::kVae) {
    for (const InputSpec& input : family.inputs()) {
      if (spec->role == Role::kDenoiser && !formats::glob_match(input.variants, detection->variant))
        continue;
      if (spec->role == Role::kTextEncoder && input.kind != InputKind::kText) continue;
      out["inputs"].push_back({{"name", input.name},
                               {"required", input.required},
                               {"use", input.use == InputUse::kTrain      ? "train"
                                       : input.use == InputUse::kGenerate ? "generate"
                                                                          : "both"},
                               {"help", input.help}});
    }
  }
  try {
    const std::vector<Detection> parts = {*detection};
    plugins::guard(family.name(), [&] {
      const std::unique_ptr<Model> model = family.make_model(parts, ModelOptions{});
      weights::bind_weights(family.weight_map(*detection), detection->prefix, file.index(),
                            model->component(detection->component))
          .throw_unless_complete(file.name(), detection->component);
    });
  } catch (const Error& error) {
    refusal = error_line(error);
  }
  return out;
}

// What a family makes of a checkpoint; null when it is none of its. A file of several components
// is described as the first of them, with all the others in "others".
Json ask_family(const ModelFamily& family, const Checkpoint& file, Context& context,
                std::string& refusal) {
  Json out;
  for (const auto& part : model::detect_parts(family, file, context.hints, context.lenders)) {
    if (part.checkpoint.config()) context.lenders.push_back(part);
    Json described = describe_part(family, part, refusal);
    if (out.is_null()) {
      out = std::move(described);
    } else {
      out["others"].push_back(std::move(described));
    }
  }
  return out;
}

// Globs over the names of a denoiser's layers, in every spelling of its family.
std::vector<std::string> layer_globs(const ModelFamily& family, Detection part) {
  std::vector<std::string> globs = family.lora_targets(part).include;
  for (const std::string& spelling : family.spellings(part)) {
    part.spelling = spelling;
    for (const WeightRule& rule : family.weight_map(part)) {
      constexpr std::string_view kWeight = ".weight";
      if (rule.to.empty() || !rule.from.ends_with(kWeight)) continue;
      std::string glob = rule.from.substr(0, rule.from.size() - kWeight.size());
      for (size_t hole = glob.find("{}"); hole != std::string::npos; hole = glob.find("{}"))
        glob.replace(hole, 2, 1, '*');
      globs.push_back(std::move(glob));
    }
  }
  return globs;
}

// A layer's name without what files put before it; underscores stand for dots where it is flat.
struct BareName {
  std::string text;
  bool is_flat = false;
};
BareName bare_name(std::string_view layer, const std::string& family_prefix) {
  while (true) {
    if (!family_prefix.empty() && layer.starts_with(family_prefix)) {
      layer.remove_prefix(family_prefix.size());
    } else if (const auto prefix = formats::without_lora_prefix(layer)) {
      layer = prefix->path;
      if (prefix->is_flat) return {std::string(layer), /*is_flat=*/true};
    } else {
      return {std::string(layer)};
    }
  }
}

// How many of a LoRA's layers a denoiser of the family has.
size_t count_known(const ModelFamily& family, const Detection& part,
                   const std::set<std::string>& layers) {
  const std::string prefix = family.lora_targets(part).file_prefix;
  const std::vector<std::string> globs = layer_globs(family, part);
  return std::ranges::count_if(layers, [&](const std::string& layer) {
    const BareName name = bare_name(layer, prefix);
    return std::ranges::any_of(globs, [&](const std::string& glob) {
      return formats::glob_match(name.is_flat ? formats::flat_lora_name(glob) : glob, name.text);
    });
  });
}

// The layers of a LoRA file and their ranks.
Json lora_summary(const TensorIndex& index, Context& context) {
  using formats::LoraRole;
  std::set<std::string> layers;
  std::set<int64_t> ranks;
  for (const auto& [tensor, meta] : index.tensors()) {
    const formats::LoraTensorName name = formats::parse_lora_tensor(tensor);
    if (name.role != LoraRole::kDown && name.role != LoraRole::kHada1Down &&
        name.role != LoraRole::kKron1 && name.role != LoraRole::kKron1Left)
      continue;
    layers.insert(name.layer);
    if (meta.shape.size() >= 2) ranks.insert(std::min(meta.shape[0], meta.shape[1]));
  }
  Json out;
  out["layers"] = layers.size();
  out["ranks"] = ranks;
  // The family whose layers have most of these names.
  size_t best = 0;
  for (const ModelFamily* family : context.families) {
    plugins::guard(family->name(), [&] {
      for (const Detection& part : family->tiny_parts()) {
        if (!model::has_role(*family, part.component, Role::kDenoiser)) continue;
        const size_t known = count_known(*family, part, layers);
        if (known <= best) continue;
        best = known;
        out["family"] = family->name();
        out["component"] = family->lora_targets(part).component;
        out["known_layers"] = known;
      }
    });
  }
  return out;
}

Json inspect_checkpoint(const files::CheckpointFiles& files, Context& context) {
  const Checkpoint file = Checkpoint::open(files);
  Json out;
  out["path"] = files.name;
  out["kind"] = model::is_lora(file.index()) ? "lora" : "checkpoint";
  out["files"] = file.files();
  out["tensors"] = tensor_summary(file.index(), context.lists_tensors);
  for (const auto& [key, value] : file.metadata()) {
    if (key != files::kConfigKey) out["metadata"][key] = value;
  }
  if (out["kind"] == "lora") {
    out["lora"] = lora_summary(file.index(), context);
    return out;
  }
  std::vector<std::string> asked;
  for (const ModelFamily* family : context.families) {
    asked.emplace_back(family->name());
    std::string refusal;
    try {
      Json taken = ask_family(*family, file, context, refusal);
      if (taken.is_null()) continue;
      out["taken_by"] = std::move(taken);
    } catch (const Error& error) {
      refusal = error_line(error);
    }
    if (!refusal.empty()) out["refused"] = refusal;
    return out;
  }
  out["refused"] = error_line(Error(
      ErrorCode::kUnsupported,
      display_path(files.name) + ": no family takes it (asked " +
          (asked.empty() ? std::string("none: no plugin was found") : report::list_names(asked)) +
          ")",
      "is it a whole checkpoint, in safetensors?", "CHECKPOINT_UNKNOWN"));
  return out;
}

Json inspect_tokenizer(const std::string& path) {
  Json out;
  out["path"] = path;
  out["kind"] = "tokenizer";
  // How a text is split does not change how many tokens there are.
  out["tokens"] = plugins::guard(
      "tokenizer", [&] { return text::Tokenizer::load(path, text::ByteLevelRules{})->size(); });
  return out;
}

Json inspect_picture(const std::string& path) {
  const media::PictureInfo info = media::probe_picture(path);
  Json out;
  out["path"] = path;
  out["kind"] = "image";
  out["format"] = info.format;
  out["width"] = info.width;
  out["height"] = info.height;
  out["channels"] = info.channels;
  out["bits"] = info.bits;
  if (info.is_animated) out["animated"] = true;
  if (info.format == "png") {
    for (const auto& [key, value] : media::png_text(path)) out["text"][key] = value;
  }
  return out;
}

Json table_summary(const std::string& path, const std::string& format,
                   const std::vector<std::string>& columns, size_t rows) {
  Json out;
  out["path"] = path;
  out["kind"] = "dataset metadata";
  out["format"] = format;
  out["rows"] = rows;
  out["columns"] = columns;
  return out;
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

Json inspect_csv(const std::string& path) {
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

Json inspect_jsonl(const std::string& path) {
  const auto lines = formats::parse_jsonl(files::read_text_file(path, kMaxTextBytes));
  std::vector<std::pair<uint64_t, const nlohmann::json*>> rows;
  for (const formats::JsonLine& line : lines) rows.emplace_back(line.line, &line.value);
  return table_summary(path, "jsonl", columns_of(path, rows, ""), rows.size());
}

Json inspect_json(const std::string& path, Context& context) {
  const std::string name = fs::path(path).filename().string();
  if (name == "tokenizer.json" || name == "vocab.json")
    return inspect_tokenizer(name == "vocab.json" ? fs::path(path).parent_path().string() : path);
  const nlohmann::json json = formats::parse_json(files::read_text_file(path, kMaxTextBytes));
  if (json.is_object() && json.contains("weight_map")) {
    files::FoundFiles found;
    files::find_at_path(path, found);
    return inspect_checkpoint(found.checkpoints.front().files, context);
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

Json inspect_file(const std::string& path, Context& context) {
  const files::FileReader reader(path);
  std::string first(std::min<uint64_t>(64, reader.size()), '\0');
  reader.read(first.data(), 0, first.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(first.data());
  if (media::looks_like_picture({bytes, first.size()})) return inspect_picture(path);
  const std::string extension = fs::path(path).extension().string();
  try {
    if (extension == ".json") return inspect_json(path, context);
    if (extension == ".jsonl") return inspect_jsonl(path);
    if (extension == ".model") return inspect_tokenizer(path);
    if (extension == ".csv") return inspect_csv(path);
    if (extension == ".toml") return inspect_settings(path);
  } catch (const formats::ParseError& error) {
    throw files::at_file(path, error, ErrorCode::kDataLoss);
  }
  for (const char* video : {".mp4", ".mkv", ".mov", ".webm", ".avi"}) {
    if (extension == video)
      throw Error(ErrorCode::kUnsupported,
                  display_path(path) + ": is a video, and this build reads stills only",
                  "extract its frames", "FILE_KIND");
  }
  if (first.starts_with("\x7f"
                        "ELF")) {
    const plugins::PluginFile plugin = plugins::describe_plugin(path);
    if (!plugin.problem.empty())
      throw Error(ErrorCode::kIncompatible, display_path(path) + ": " + plugin.problem,
                  "atelier check-plugin", "PLUGIN");
    return Json{
        {"path", path}, {"kind", "plugin"}, {"family", plugin.family}, {"version", plugin.version}};
  }
  if (is_text(first))
    throw Error(ErrorCode::kUnsupported, display_path(path) + ": is text of no kind that is known",
                "text is told by its ending: .json, .jsonl, .csv, .toml", "FILE_KIND");
  return inspect_checkpoint(file_alone(path), context);
}

void inspect_folder(const std::string& path, Context& context,
                    const std::function<void(Json)>& show,
                    const std::function<void(const Error&)>& refuse) {
  if (is_state_folder(path)) return show(inspect_state(path));
  if (is_cache_folder(path)) return show(inspect_cache(path));
  const bool is_run = is_run_folder(path);
  if (is_run) show(inspect_run(path));
  bool has_metadata = is_run;
  for (const char* name : {"metadata.csv", "metadata.json", "metadata.jsonl"}) {
    const std::string file = (fs::path(path) / name).string();
    std::error_code failure;
    if (!fs::is_regular_file(file, failure)) continue;
    has_metadata = true;
    try {
      show(inspect_file(file, context));
    } catch (const Error& error) {
      refuse(error);
    }
  }
  files::FoundFiles found;
  try {
    files::find_at_path(path, found);
  } catch (const Error& error) {
    if (error.tag() == "FOLDER_AMBIGUOUS") {  // not one model, but files of which each is something
      found.checkpoints.clear();
      for (const std::string& file : files::expand_glob(path, "*.safetensors"))
        found.checkpoints.push_back({file_alone(file)});
    } else if (!has_metadata) {
      refuse(error);
    }
  }
  for (const auto& item : found.checkpoints) {
    try {
      show(inspect_checkpoint(item.files, context));
    } catch (const Error& error) {
      refuse(error);
    }
  }
  for (const std::string& tokenizer : found.tokenizers) {
    try {
      show(inspect_tokenizer(tokenizer));
    } catch (const Error& error) {
      refuse(error);
    }
  }
}

}  // namespace

int run_inspect(std::span<const std::string> arguments) {
  const flags::CommandSpec command = inspect_command();
  if (flags::wants_help(arguments)) {
    std::fputs(flags::help_text(command).c_str(), stdout);
    return 0;
  }
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  Context context;
  context.lists_tensors = flags.flag("tensors");
  context.hints = model::parse_hints(flags.json("model_hints"));
  const std::string plugin_path = flags.text("plugin_path");
  if (const std::string name = flags.text("plugin"); !name.empty()) {
    context.families.push_back(plugins::open_plugin(name, plugin_path).family);
  } else {
    for (const plugins::PluginFile& file : plugins::list_plugins(plugin_path)) {
      if (!file.problem.empty()) continue;
      const bool is_known =
          std::any_of(context.families.begin(), context.families.end(),
                      [&](const ModelFamily* family) { return family->name() == file.family; });
      try {
        if (!is_known)
          context.families.push_back(plugins::open_plugin(file.path, plugin_path).family);
      } catch (const Error& error) {
        std::fputs(error_line(error, "warning").c_str(), stderr);
      }
    }
  }

  const bool as_json = flags.flag("json");
  int code = 0;
  const auto refuse_line = [&](const std::string& line) {
    std::fflush(stdout);
    std::fputs(line.c_str(), stderr);
  };
  const auto show = [&](const Json& item) {
    if (as_json) {
      std::puts(item.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      print_inspected(item);
    }
    if (item.contains("refused")) {
      code = std::max(code, 2);
      if (!as_json) refuse_line(item["refused"].get<std::string>());
    }
  };
  for (const std::string& path : flags.positional()) {
    const auto refuse = [&](const Error& error) {
      code = std::max(code, exit_code(error.code()));
      if (as_json) {
        std::puts(Json{{"path", path}, {"kind", "unknown"}, {"refused", error_line(error)}}
                      .dump(-1, ' ', false, Json::error_handler_t::replace)
                      .c_str());
      } else {
        refuse_line(error_line(error));
      }
    };
    try {
      std::error_code failure;
      if (fs::is_directory(path, failure)) {
        inspect_folder(path, context, show, refuse);
      } else {
        show(inspect_file(path, context));
      }
    } catch (const Error& error) {
      refuse(error);
    }
  }
  return code;
}

}  // namespace atelier::cli
