// atelier plugins: which families there are, and what one of them takes.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/files/file_reader.h"
#include "host/generate/request.h"
#include "host/inputs/parse.h"
#include "host/model/model_flags.h"
#include "host/model/stages.h"
#include "host/plugins/own_process.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"

namespace atelier::cli {

flags::CommandSpec plugins_command() {
  flags::CommandSpec command{
      "plugins", "Lists the families found; \"show NAME\" says what one of them takes."};
  command.flags = {
      model::plugin_path_flag(),
      {.name = "json", .kind = flags::FlagKind::kFlag, .help = "as JSON", .preset = "false"},
  };
  command.positional = "[show FAMILY|FILE]";
  command.max_positional = 2;
  return command;
}

namespace {

constexpr auto kShowTime = std::chrono::seconds(12);  // more than opening may take

const char* use_name(InputUse use) {
  switch (use) {
    case InputUse::kTrain:
      return "train";
    case InputUse::kGenerate:
      return "generate";
    case InputUse::kBoth:
      return "both";
  }
  return "";
}

nlohmann::ordered_json describe(const plugins::Plugin& plugin) {
  const ModelFamily& family = *plugin.family;
  nlohmann::ordered_json out;
  out["family"] = family.name();
  out["version"] = plugin.file.version;
  out["path"] = plugin.file.path;
  out["help"] = family.help();
  for (const ComponentSpec& spec : family.components()) {
    std::string phases;
    for (const auto& [needed, name] :
         {std::pair(model::encodes(family, spec), "encode"),
          std::pair(spec.role == Role::kDenoiser || spec.role == Role::kControl, "denoise"),
          std::pair(spec.role == Role::kVae, "decode")}) {
      if (needed) phases += std::string(phases.empty() ? "" : ", ") + name;
    }
    out["components"].push_back({{"name", spec.name},
                                 {"role", role_name(spec.role)},
                                 {"phases", phases},
                                 {"required", spec.required},
                                 {"variants", spec.variants},
                                 {"help", spec.help}});
    if (spec.role != Role::kControl) continue;
    out["components"].back()["beside"] = spec.beside;
    out["components"].back()["max_count"] = spec.max_count;
  }
  for (const InputSpec& input : family.inputs()) {
    out["inputs"].push_back({{"name", input.name},
                             {"flag", "--" + std::string(input.name)},
                             {"kind", inputs::kind_name(input)},
                             {"required", input.required},
                             {"use", use_name(input.use)},
                             {"variants", input.variants},
                             {"help", input.help}});
    for (const std::string_view choice : input.choices)
      out["inputs"].back()["choices"].push_back(choice);
  }
  for (const ScheduleDefaults& schedule : family.schedules()) {
    out["schedules"].push_back({{"name", schedule.name},
                                {"variants", schedule.variants},
                                {"num_inference_steps", schedule.num_inference_steps},
                                {"cfg_scale", schedule.cfg_scale},
                                {"cfg_trunc", schedule.cfg_trunc},
                                {"cfg_renorm", generate::renorm_name(schedule.cfg_renorm)},
                                {"solver", schedule.solver},
                                {"help", schedule.help}});
    if (schedule.cfg_scale_2) out["schedules"].back()["cfg_scale_2"] = *schedule.cfg_scale_2;
  }
  return out;
}

// ", of edit*"; empty for what every variant has.
std::string variants_text(const nlohmann::ordered_json& item) {
  const auto variants = item["variants"].get<std::string>();
  return variants == "*" ? "" : ", of " + variants;
}

// " beside dit, 3 files at most"; empty for what is no control.
std::string control_text(const nlohmann::ordered_json& item) {
  if (!item.contains("beside")) return {};
  const auto count = item["max_count"].get<int64_t>();
  return " beside " + report::printable(item["beside"].get<std::string>()) +
         (count == 1 ? "" : ", " + std::to_string(count) + " files at most");
}

// ", cfg_scale_2 3, cfg_trunc 0.25, cfg_renorm clamp, solver unipc, of edit*"; empty for what is
// usual.
std::string schedule_text(const nlohmann::ordered_json& schedule) {
  std::string out;
  if (schedule.contains("cfg_scale_2")) out += ", cfg_scale_2 " + schedule["cfg_scale_2"].dump();
  if (schedule["cfg_trunc"].get<double>() < 1.0)
    out += ", cfg_trunc " + schedule["cfg_trunc"].dump();
  if (const auto renorm = schedule["cfg_renorm"].get<std::string>(); renorm != "none")
    out += ", cfg_renorm " + renorm;
  if (const auto solver = schedule["solver"].get<std::string>(); solver != "euler")
    out += ", solver " + solver;
  return out + variants_text(schedule);
}

// ", one of left, right"; empty where any text does.
std::string choices_text(const nlohmann::ordered_json& input) {
  std::string out;
  for (const auto& choice : input.value("choices", nlohmann::ordered_json::array()))
    out += (out.empty() ? ", one of " : ", ") + report::printable(choice.get<std::string>());
  return out;
}

void print_family(const nlohmann::ordered_json& family) {
  const auto text = [](const nlohmann::ordered_json& value) {
    return report::printable(value.get<std::string>());
  };
  std::printf("%s %s: %s\n  %s\n", text(family["family"]).c_str(), text(family["version"]).c_str(),
              text(family["help"]).c_str(), text(family["path"]).c_str());
  std::puts("\ncomponents");
  for (const auto& item : family.value("components", nlohmann::ordered_json::array()))
    std::printf("  %-16s %s%s%s%s%s\n", text(item["name"]).c_str(),
                item["required"].get<bool>() ? "required" : "optional",
                text(item["phases"]).empty() ? "" : (" to " + text(item["phases"])).c_str(),
                control_text(item).c_str(), variants_text(item).c_str(),
                text(item["help"]).empty() ? "" : ("; " + text(item["help"])).c_str());
  std::puts("\ninputs");
  for (const auto& item : family.value("inputs", nlohmann::ordered_json::array()))
    std::printf("  --%-20s %-8s %s%s%s; %s\n", text(item["name"]).c_str(),
                text(item["kind"]).c_str(),
                text(item["use"]) == "both" ? "train and generate" : text(item["use"]).c_str(),
                item["required"].get<bool>() ? ", required" : "", choices_text(item).c_str(),
                text(item["help"]).c_str());
  std::puts("\nschedules (--schedule)");
  for (const auto& item : family.value("schedules", nlohmann::ordered_json::array()))
    std::printf("  %-16s %d steps, cfg_scale %g%s%s\n", text(item["name"]).c_str(),
                item["num_inference_steps"].get<int>(), item["cfg_scale"].get<double>(),
                schedule_text(item).c_str(),
                text(item["help"]).empty() ? "" : ("; " + text(item["help"])).c_str());
}

}  // namespace

int run_plugins(std::span<const std::string> arguments) {
  const flags::CommandSpec command = plugins_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const std::vector<std::string>& words = flags.positional();
  const std::string path = flags.text("plugin_path");
  if (!words.empty()) {
    if (words.front() != "show" || words.size() != 2)
      throw Error(ErrorCode::kInvalidArgument, "plugins: only \"show NAME\" is known",
                  "atelier plugins show NAME");
    // Whatever it does when it is opened and asked, the answer is one of ours.
    const std::string answer =
        plugins::in_own_process(formats::quote_and_escape(words[1], 200), kShowTime, [&] {
          return describe(plugins::open_plugin(words[1], path))
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        });
    const auto family = nlohmann::ordered_json::parse(answer);
    if (flags.flag("json")) {
      std::puts(report::printable_json(family.dump(2)).c_str());
    } else {
      print_family(family);
    }
    return 0;
  }

  const std::vector<plugins::PluginFile> found = plugins::list_plugins(path);
  if (flags.flag("json")) {
    nlohmann::ordered_json out;
    out["searched"] = plugins::search_folders(path);
    out["plugins"] = nlohmann::ordered_json::array();
    for (const plugins::PluginFile& file : found)
      out["plugins"].push_back({{"family", file.family},
                                {"version", file.version},
                                {"path", file.path},
                                {"abi", file.abi},
                                {"problem", file.problem}});
    std::puts(
        report::printable_json(out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace))
            .c_str());
    return 0;
  }
  for (const plugins::PluginFile& file : found) {
    std::printf("%-16s %-8s %s\n",
                file.family.empty() ? "-" : report::printable(file.family).c_str(),
                report::printable(file.version).c_str(), files::display_path(file.path).c_str());
    if (!file.problem.empty())
      std::printf("  cannot be used: %s\n", report::printable(file.problem).c_str());
  }
  if (found.empty()) {
    std::puts("no plugin in");
    for (const std::string& folder : plugins::search_folders(path))
      std::printf("  %s\n", files::display_path(folder).c_str());
  }
  return 0;
}

}  // namespace atelier::cli
