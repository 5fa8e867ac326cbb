// atelier plan: what a run needs, without running it.
#include "host/cli/plan.h"

#include <cstdio>
#include <optional>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/files/safetensors_writer.h"
#include "host/order/generation.h"
#include "host/order/serving.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "memory/device_profile.h"
#include "memory/link_profile.h"

namespace atelier::cli {
namespace {

struct PlanCommand {
  const char* name;
  const char* help;
  int (*run)(std::span<const std::string>, const PlanOnly&);
};
constexpr PlanCommand kPlanCommands[] = {
    {"generate", "making images", plan_generate},
    {"serve", "serving a model, and how many images it denoises together", plan_serve},
    {"train", "training", plan_train},
};

void print_plan_help() {
  std::puts(
      "atelier plan COMMAND [flags]\nSays what a run of that command would hold where, how long it "
      "would take and why,\nwithout running it.\n");
  for (const PlanCommand& command : kPlanCommands)
    std::printf("  %-14s %s\n", command.name, command.help);
  std::puts("\natelier plan COMMAND --help lists the flags beside those of atelier COMMAND.");
}

// Flags beside those of the command, as they are written.
struct Own {
  PlanOnly only;
  std::vector<std::string> ranks;
  std::string network = "infiniband";
};

flags::Table own_table(const PlanCommand& command, Own& own) {
  PlanOnly& only = own.only;
  flags::Table table;
  table
      .add({.name = "device_profile",
            .help = "plan for another device: " + c10::Join(", ", memory::profile_names()) +
                    ", or a JSON file with its numbers",
            .preset = "",
            .value_name = "NAME|FILE"},
           [&only](const flags::ParsedFlags& given) {
             if (const std::string name = given.text("device_profile"); !name.empty())
               only.device_profile = plan::profile_named(name);
           })
      .text("json", only.json, "file for the plan as JSON", "FILE")
      .text("curve", only.curve,
            "file for the time of the run over the memory of the device, .csv or .svg", "FILE");
  if (command.run != plan_train) return table;
  table
      .list("ranks", own.ranks,
            "plan for so many processes, each with a device, and every way to share the training: "
            "8,64,512")
      .text("network", own.network,
            "how fast they exchange what they hold: infiniband, ethernet, or a file of "
            "`atelier doctor --comm --json`",
            "infiniband|ethernet|FILE");
  return table;
}

flags::CommandSpec own_flags(const PlanCommand& command) {
  Own presets;
  return {.name = std::string("plan ") + command.name,
          .summary = "Takes the flags of atelier " + std::string(command.name) +
                     " and prints a plan in place of the run. Beside them:",
          .flags = own_table(command, presets).specs()};
}

// Takes the flags of `own` and their values out of `arguments`.
std::vector<std::string> take(std::vector<std::string>& arguments, const flags::CommandSpec& own) {
  std::vector<std::string> taken, rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const size_t equals = word.find('=');
    const bool is_own =
        word.starts_with("--") && flags::find_flag(own, word.substr(2, equals - 2)) != nullptr;
    (is_own ? taken : rest).push_back(word);
    if (is_own && equals == std::string::npos && i + 1 < arguments.size())
      taken.push_back(arguments[++i]);
  }
  arguments = std::move(rest);
  return taken;
}

// What --ranks and --network say.
plan::RanksOrder asked_ranks(const Own& own, report::Problems& problems) {
  constexpr int64_t kMostRanks = 1 << 16;
  plan::RanksOrder asked;
  for (const std::string& text : own.ranks) {
    const auto count = report::parse_number<int64_t>(text);
    if (!count || *count < 1 || *count > kMostRanks)
      problems.add("--ranks " + formats::quote_and_escape(text) + " is no number of processes",
                   "--ranks 8,64,512");
    asked.counts.push_back(count.value_or(1));
  }
  if (!own.ranks.empty() && !own.only.curve.empty())
    problems.add("--curve is of one process", "leave it or --ranks out");
  problems.collect([&] {
    const auto known = memory::known_links(own.network);
    asked.links =
        known ? *known : memory::parse_links(files::read_text_file(own.network), own.network);
  });
  return asked;
}

PlanOnly take_own_flags(const PlanCommand& command, std::vector<std::string>& arguments) {
  Own own;
  const flags::CommandSpec spec = own_flags(command);
  report::Problems problems;
  own_table(command, own).read(flags::parse_flags(spec, take(arguments, spec)), problems);
  PlanOnly& only = own.only;
  if (!only.curve.empty() && !only.curve.ends_with(".csv") && !only.curve.ends_with(".svg"))
    problems.add("--curve " + formats::quote_and_escape(only.curve) + ": it is no table or image",
                 "end it in .csv or .svg");
  if (command.run == plan_train) only.ranks = asked_ranks(own, problems);
  problems.throw_if_any();
  return only;
}

}  // namespace

std::vector<flags::CommandSpec> plan_commands(const ModelFamily* family) {
  std::vector<flags::CommandSpec> specs;
  for (const PlanCommand& command : kPlanCommands) {
    specs.push_back(own_flags(command));
    const flags::CommandSpec run = command.run == plan_train   ? train_command(family)
                                   : command.run == plan_serve ? order::serve_command(family)
                                                               : order::generate_command(family);
    specs.back().flags.insert(specs.back().flags.end(), run.flags.begin(), run.flags.end());
  }
  return specs;
}

int run_plan(std::span<const std::string> arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    print_plan_help();
    return arguments.empty() ? 2 : 0;
  }
  std::vector<std::string> names;
  for (const PlanCommand& command : kPlanCommands) {
    names.emplace_back(command.name);
    if (arguments[0] != command.name) continue;
    std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    if (flags::wants_help(rest)) return print_help(own_flags(command));
    const PlanOnly only = take_own_flags(command, rest);
    return command.run(rest, only);
  }
  const std::string nearest = report::nearest_name(arguments[0], names);
  throw Error(ErrorCode::kInvalidArgument,
              "plan " + formats::quote_and_escape(arguments[0]) + " is not known; there are " +
                  report::list_names(names),
              nearest.empty() ? "atelier plan train …" : "did you mean " + nearest + "?");
}

namespace {

// Prints a table, and writes what it tells into the file of --json.
void write_plan(const std::string& table, const nlohmann::json& json, const PlanOnly& only) {
  std::fputs(table.c_str(), stdout);
  const std::string note = files::replaced_note(std::vector<std::string>{only.json, only.curve});
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  if (!only.json.empty()) files::write_file(only.json, json.dump(2) + "\n");
}

}  // namespace

int print_ranks(const plan::PlannedRanks& planned, const PlanOnly& only) {
  write_plan(plan::rank_table(planned), plan::rank_json(planned), only);
  return 0;
}

int print_plan(const plan::Outcome& outcome, const PlanOnly& only) {
  if (outcome.unplanned) throw outcome.unplanned->at("no plan");
  if (!outcome.planned)
    throw Error(ErrorCode::kUnsupported, "on the CPU nothing has to be planned",
                "say a limit with --vram, or a device with --device_profile");
  const plan::Planned& planned = *outcome.planned;
  write_plan(plan::plan_table(planned), plan::plan_json(planned), only);
  if (only.curve.empty()) return 0;
  const std::vector<memory::CurvePoint> curve = planned.curve();
  files::write_file(only.curve,
                    only.curve.ends_with(".csv")
                        ? plan::curve_csv(curve)
                        : plan::curve_svg(curve, "time of the run over the device's memory"));
  return 0;
}

}  // namespace atelier::cli
