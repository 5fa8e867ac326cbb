// atelier inspect: what a file is, who takes it, and what that one wants.
#include "host/inspect/inspect.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/files/file_reader.h"
#include "host/model/model_flags.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"
#include "host/report/text.h"

namespace atelier::cli {

using files::display_path;
using Json = inspect::Thing;

flags::CommandSpec inspect_command() {
  flags::CommandSpec command{
      "inspect", "Says what files are: tensors, dtypes, sizes, and which family takes them."};
  command.flags = {
      {.name = "plugin", .help = "ask this family only", .preset = "", .value_name = "FAMILY|FILE"},
      model::plugin_path_flag(),
      model::model_hints_flag(),
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

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print(const std::string& text) {
  std::fputs(report::printable(text).c_str(), stdout);
}

// Texts and values of JSON one behind the other.
template <typename... Parts>
void print(const Parts&... parts) {
  (print(shown(parts)), ...);
}

std::string elements_text(uint64_t elements) {
  char text[32];
  const auto value = static_cast<double>(elements);
  if (elements >= 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.2f billion", value / 1e9);
  } else if (elements >= 1'000'000) {
    std::snprintf(text, sizeof(text), "%.2f million", value / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%llu", static_cast<unsigned long long>(elements));
  }
  return text;
}

// A value of foreign metadata on one line.
std::string one_line(const Json& value, size_t max_chars) {
  const std::string quoted = formats::quote_and_escape(shown(value), max_chars);
  return quoted.substr(1, quoted.size() - 2);
}

// What `text` says of each item, between commas.
template <typename Items, typename Text>
std::string joined(Items&& items, Text&& text) {
  std::string line;
  for (const auto& item : items) line += (line.empty() ? "" : ", ") + text(item);
  return line;
}

void print_component(const Json& by) {
  print("  family ", by["family"], ", component ", by["component"], ", variant ", by["variant"],
        ", spelling ", by["spelling"]);
  if (by["prefix"] != "") print(", prefix ", by["prefix"]);
  print("\n");
  if (by.contains("config"))
    print("  ",
          joined(by["config"].items(),
                 [](const auto& field) { return field.key() + " " + one_line(field.value(), 60); }),
          "\n");
  if (by.contains("config_place"))
    print("  config: ", display_path(shown(by["config_place"])), "\n");
  if (!by.contains("inputs")) return;
  print("  inputs: ",
        joined(by["inputs"],
               [](const Json& input) {
                 const char* required =
                     input["use"] == "train" ? " (required to train)" : " (required)";
                 return shown(input["name"]) + (input["required"] == true ? required : "");
               }),
        "\n");
}

void print_lora(const Json& lora) {
  print("  ", lora["layers"], " layers, rank ", lora["ranks"]);
  if (lora.contains("family"))
    print(", for ", lora["family"], " ", lora["component"], " (", lora["known_layers"],
          " layers known there)");
  print("\n");
}

// The pairs of an object, a line each.
void print_pairs(const Json& pairs, size_t longest_key, size_t longest_value) {
  for (const auto& [key, value] : pairs.items())
    print("  ", one_line(key, longest_key), " = ", one_line(value, longest_value), "\n");
}

void print_tensors(const Json& item) {
  const Json& tensors = item["tensors"];
  if (const size_t files = item["files"].size(); files > 1)
    print(", ", std::to_string(files), " shards");
  print(", ", tensors["count"], " tensors, ", elements_text(tensors["elements"].get<uint64_t>()),
        " values, ", report::bytes_text(tensors["bytes"].get<int64_t>()));
  if (tensors.contains("dtypes")) {
    for (const auto& [name, counts] : tensors["dtypes"].items())
      print(", ", name, " ", counts["tensors"]);
  }
  print("\n");
  if (item.contains("taken_by")) {
    print_component(item["taken_by"]);
    if (item["taken_by"].contains("others")) {
      for (const Json& other : item["taken_by"]["others"]) print_component(other);
    }
  }
  if (item.contains("lora")) print_lora(item["lora"]);
  if (item.contains("metadata")) print_pairs(item["metadata"], 60, 120);
  if (!tensors.contains("list")) return;
  for (const Json& tensor : tensors["list"])
    print("  ", one_line(tensor["name"], 200), " ", tensor["dtype"], " ", tensor["shape"], "\n");
}

// ", 12 frames, 24 a second, 0.500 s"
std::string times_text(const Json& item) {
  std::string text = ", " + shown(item["frames"]) + " frames";
  if (!item.contains("fps")) return text;
  char times[64];
  std::snprintf(times, sizeof(times), ", %.5g a second%s, %.3f s", item["fps"].get<double>(),
                item.contains("variable_rate") ? " on average" : "",
                item["duration_s"].get<double>());
  return text + times;
}

void print_clip(const Json& item) {
  print(", ", item["format"]);
  if (item.contains("codec")) print(", ", item["codec"]);
  print(", ", item["width"], "x", item["height"], times_text(item));
  if (item.contains("rotation")) print(", turned by ", item["rotation"], " degrees");
  if (item.contains("alpha")) print(", transparent");
  print(item.contains("sound") ? ", with sound\n" : "\n");
  if (item.contains("text")) print_pairs(item["text"], 80, 4000);
}

void print_sound(const Json& item) {
  const auto channels = item["channels"].get<int64_t>();
  print(", ", item["format"], ", ", item["codec"], ", ", channels,
        channels == 1 ? " channel, " : " channels, ", item["sample_rate"], " samples a second, ",
        report::number_text(item["duration_s"].get<double>()), " s\n");
}

void print_image(const Json& item) {
  print(", ", item["format"], ", ", item["width"], "x", item["height"], ", ", item["channels"],
        " channels of ", item["bits"], " bits");
  if (item.contains("animated")) print(", animated", times_text(item));
  print("\n");
  if (item.contains("text")) print_pairs(item["text"], 80, 4000);
}

void print_table(const Json& item) {
  const auto column = [](const Json& name) { return one_line(name, 60); };
  print(", ", item["format"], ", ", item["rows"], " rows, columns ",
        joined(item["columns"], column), "\n");
}

std::string state_text(const Json& state) {
  if (state.contains("refused")) return "damaged";
  return "step " + shown(state["step"]) + ", " + report::bytes_text(state["bytes"].get<int64_t>());
}

void print_state(const Json& item) {
  if (item.contains("refused")) return print("\n");
  print(" of a run to resume from, ", state_text(item), " in ", item["files"], " files\n");
  print_pairs(item["facts"], 60, 120);
}

void print_metrics(const Json& item) {
  if (!item.contains("last_step")) return print(", no rows\n");
  print(", steps ", item["first_step"], " to ", item["last_step"], "; the last values:\n");
  print_pairs(item["last"], 60, 60);
}

void print_run(const Json& item) {
  print(" of training\n");
  if (item.contains("settings")) print_pairs(item["settings"], 60, 120);
  for (const Json& state : item["states"])
    print("  to resume from: ", display_path(shown(state["path"])), ": ", state_text(state), "\n");
  if (item["states"].empty()) print("  nothing to resume from\n");
  if (const Json& previews = item["previews"]; !previews.empty())
    print("  ", std::to_string(previews.size()), " sample images, the last ",
          one_line(previews.back(), 120), "\n");
  if (!item.contains("metrics") || !item["metrics"].contains("last_step")) return;
  const Json& last = item["metrics"]["last"];
  print("  metrics to step ", item["metrics"]["last_step"]);
  if (last.contains("train/loss")) print(", train/loss ", one_line(last["train/loss"], 40));
  print("\n");
}

void print_cache(const Json& item) {
  if (!item.contains("samples")) return print("\n");
  print(", ", item["samples"], " samples for ", one_line(item["family"], 60),
        item["complete"] == true ? "" : ", interrupted before the end", "\n");
  std::string sizes;
  const Json& all = item["sizes"];
  for (size_t i = 0; i < all.size() && i < 8; ++i)
    sizes += (i == 0 ? "" : ", ") + shown(all[i][0]) + "x" + shown(all[i][1]);
  if (all.size() > 8) sizes += " and " + std::to_string(all.size() - 8) + " more";
  print("  heights x widths: ", sizes, "\n");
}

void print_settings(const Json& item) {
  print(" of train, ", item["count"], " of them\n");
  print_pairs(item["settings"], 60, 120);
}

void print_tokenizer(const Json& item) {
  print(", ", item["tokens"], " ids\n");
}

void print_plugin(const Json& item) {
  print(", family ", item["family"], ", version ", item["version"], "\n");
}

void print_lines(const Json& thing) {
  static const std::map<std::string, void (*)(const Json&)> kPrinters = {
      {"checkpoint", print_tensors},  {"lora", print_tensors},
      {"image", print_image},         {"clip", print_clip},
      {"sound", print_sound},         {"dataset metadata", print_table},
      {"tokenizer", print_tokenizer}, {"run", print_run},
      {"state", print_state},         {"encoded samples", print_cache},
      {"settings", print_settings},   {"metrics", print_metrics},
      {"plugin", print_plugin}};
  print(display_path(shown(thing["path"])), ": ", thing["kind"]);
  kPrinters.at(shown(thing["kind"]))(thing);
}

// The family that was asked for, or all that can be opened.
std::vector<const ModelFamily*> families_of(const flags::ParsedFlags& flags) {
  const std::string plugin_path = flags.text("plugin_path");
  if (const std::string name = flags.text("plugin"); !name.empty())
    return {plugins::open_plugin(name, plugin_path).family};
  std::vector<const ModelFamily*> families;
  const auto warn = [](const Error& error) {
    std::fputs(report::error_line(error, "warning").c_str(), stderr);
  };
  for (const plugins::Plugin* plugin : plugins::open_plugins(plugin_path, warn))
    families.push_back(plugin->family);
  return families;
}

void print_json(const Json& thing) {
  const std::string line = thing.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::puts(report::printable_json(line).c_str());
}

void print_refusal(const std::string& line) {
  std::fflush(stdout);
  std::fputs(line.c_str(), stderr);
}

}  // namespace

int run_inspect(std::span<const std::string> arguments) {
  const flags::CommandSpec command = inspect_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const bool as_json = flags.flag("json");
  int code = 0;
  const auto show = [&](const Json& thing) {
    as_json ? print_json(thing) : print_lines(thing);
    if (!thing.contains("refused")) return;
    code = std::max(code, 2);
    if (!as_json) print_refusal(thing["refused"].get<std::string>());
  };
  auto hints = model::parse_hints(flags.json("model_hints"));
  inspect::Inspector inspector({families_of(flags), std::move(hints), flags.flag("tensors")}, show);
  for (const std::string& path : flags.positional()) {
    inspector.run(path, [&](const Error& error) {
      code = std::max(code, exit_code(error.code()));
      const std::string line = report::error_line(error);
      as_json ? print_json({{"path", path}, {"kind", "unknown"}, {"refused", line}})
              : print_refusal(line);
    });
  }
  return code;
}

}  // namespace atelier::cli
