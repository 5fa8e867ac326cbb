// atelier lora extract: what training changed in a model, as a LoRA.
#include <cmath>
#include <cstdio>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/cli/lora.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/lora/extract.h"
#include "host/model/model_flags.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace {

using files::display_path;
using lora::ExtractReport;

}  // namespace

flags::CommandSpec lora_extract_command() {
  flags::CommandSpec command{
      "lora extract",
      "Makes a LoRA of what differs between a model and a tuned one, by singular "
      "values."};
  command.flags = {
      model::plugin_flag(),
      model::plugin_path_flag(),
      {.name = "base_model_paths",
       .help = "of the model before: files, folders or globs, as --model_paths elsewhere",
       .required = true,
       .value_name = "FILE|FOLDER"},
      {.name = "tuned_model_paths",
       .help = "of the model after",
       .required = true,
       .value_name = "FILE|FOLDER"},
      model::model_hints_flag(),
      {.name = "lora_rank",
       .kind = flags::FlagKind::kInteger,
       .help = "of every layer",
       .preset = "32"},
      {.name = "lora_target_modules",
       .kind = flags::FlagKind::kList,
       .help = "ends of layers' names, or globs: to_q,to_k; without it every linear layer",
       .preset = ""},
      {.name = "output",
       .help = "the file to write; where several denoisers differ, one for each component, with "
               "_COMPONENT before its ending",
       .required = true,
       .value_name = "FILE"},
      lora_format_flag("diffusers"),
      lora_dtype_flag("float32", "of the LoRA; auto is float32"),
      {.name = "quiet", .kind = flags::FlagKind::kFlag, .help = "no progress", .preset = "false"},
  };
  return command;
}

namespace {

void print(const ExtractReport& report) {
  std::string files;
  for (const std::string& file : report.files)
    files += (files.empty() ? "" : ", ") + display_path(file);
  std::printf("%s: %s, relative error %.3g\n", files.c_str(),
              count_text(report.total.layers, "layer").c_str(), report.total.relative_error());
  for (const ExtractReport::Kind& kind : report.kinds)
    std::printf("  %s: %s, relative error %.3g\n", report::printable(kind.name).c_str(),
                count_text(kind.layers, "layer").c_str(), kind.relative_error());
  if (report.left_out.empty()) return;
  const double all = report.total.squared_change + report.squared_left_out;
  std::printf("  left out: %s, %.3g of the change: %s\n",
              count_text(report.left_out.size(), "weight").c_str(),
              std::sqrt(report.squared_left_out / all),
              report::list_names(report.left_out, 3).c_str());
}

}  // namespace

int run_lora_extract(std::span<const std::string> arguments) {
  const flags::CommandSpec command = lora_extract_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const ModelFamily& family =
      *plugins::open_plugin(flags.text("plugin"), flags.text("plugin_path")).family;
  std::unique_ptr<model::LoadedModel> base, tuned;
  report::Problems problems;
  problems.collect([&] {
    base = open_headers(family, flags.text("base_model_paths"), "", flags.json("model_hints"));
  });
  problems.collect([&] {
    tuned = open_headers(family, flags.text("tuned_model_paths"), "", flags.json("model_hints"),
                         base ? base->parts() : std::vector<model::LoadedPart>());
  });
  problems.throw_if_any();

  const lora::ExtractOptions options = {.rank = flags.integer("lora_rank"),
                                        .target_modules = flags.list("lora_target_modules"),
                                        .format = lora::parse_format(flags.text("lora_format")),
                                        .dtype = lora_dtype(flags).value_or(at::kFloat)};
  files::refuse_to_replace("--output", flags.text("output"));
  progress::Progress progress(progress::stderr_options(flags.flag("quiet")));
  progress::Step step(progress, "extract", 0, progress::Unit::kParts);
  const ExtractReport report = lora::extract(
      *base, *tuned, flags.text("output"), options, [&](const lora::ExtractProgress& state) {
        step.set(static_cast<int64_t>(state.done), static_cast<int64_t>(state.total));
      });
  step.finish();
  warn_of_format(progress, options.format);
  print(report);
  return 0;
}

}  // namespace atelier::cli
