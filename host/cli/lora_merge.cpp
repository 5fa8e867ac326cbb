// atelier lora merge: LoRAs into one, or into the weights of a model.
#include <cstdio>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/cli/lora.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/lora/convert.h"
#include "host/lora/merge.h"
#include "host/lora/selection.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace {

using files::display_path;

}  // namespace

flags::CommandSpec lora_merge_command() {
  flags::CommandSpec command{
      "lora merge", "Adds LoRAs up: into one LoRA, or with --plugin and a model into its weights."};
  command.flags = {
      {.name = "output", .help = "the file to write", .required = true, .value_name = "FILE"},
      {.name = "rank",
       .kind = flags::FlagKind::kInteger,
       .help = "of the LoRA at most; without it ranks add up, and nothing is lost"},
      lora_format_flag("diffusers"),
      lora_dtype_flag("float32", "of the LoRA; auto is float32"),
      {.name = "quiet", .kind = flags::FlagKind::kFlag, .help = "no progress", .preset = "false"},
  };
  for (flags::FlagSpec& flag : lora_model_flags()) command.flags.push_back(std::move(flag));
  command.positional = "FILE[:STRENGTH][@COMPONENT]...";
  command.min_positional = 1;
  return command;
}

namespace {

std::vector<lora::MergeSource> open_sources(const std::vector<std::string>& words) {
  std::vector<lora::MergeSource> sources;
  report::Problems problems;
  for (const lora::LoraRef& use : lora::parse_flags(words)) {
    problems.collect([&] {
      sources.push_back({lora::LoraFile::open(use.path), use.strength, use.component});
    });
  }
  problems.throw_if_any();
  return sources;
}

void refuse_flags_of_loras(const flags::ParsedFlags& flags) {
  report::Problems problems;
  for (const char* name : {"rank", "lora_format", "dtype"}) {
    if (flags.is_given(name))
      problems.add("--" + std::string(name) + ": a model keeps its names, shapes and dtypes",
                   "leave it out, or leave --model_paths out to write a LoRA");
  }
  problems.throw_if_any();
}

void merge_to_lora(const flags::ParsedFlags& flags, const std::vector<lora::MergeSource>& sources) {
  const std::string output = flags.text("output");
  const lora::Format format = lora::parse_format(flags.text("lora_format"));
  for (const lora::MergeSource& source : sources) lora::check_output(source.file, output);
  files::refuse_to_replace("--output", output);
  lora::LayerNames names(nullptr);
  const lora::MergeReport report =
      lora::merge_loras(sources, output, format, flags.find_integer("rank"),
                        lora_dtype(flags).value_or(at::kFloat), names);
  progress::Progress progress(progress::stderr_options(/*quiet=*/false));
  for (const lora::MergeSource& source : sources) warn_of_unknown(progress, source.file);
  warn_of_format(progress, format);
  std::printf("%s: %s of rank %lld%s", display_path(output).c_str(),
              count_text(report.layers, "layer").c_str(), static_cast<long long>(report.most_rank),
              report.relative_error == 0 ? ", nothing is lost\n" : "");
  if (report.relative_error != 0) std::printf(", relative error %.3g\n", report.relative_error);
}

void merge_to_model(const flags::ParsedFlags& flags, const std::vector<lora::MergeSource>& sources,
                    model::LoadedModel& model) {
  progress::Progress progress(progress::stderr_options(flags.flag("quiet")));
  std::optional<progress::Step> step;
  std::string component;
  const auto merged = lora::merge_into_model(
      sources, model, flags.text("output"), [&](const lora::MergeProgress& state) {
        if (component != state.component) {
          component = state.component;
          step.emplace(progress, "merge " + component, static_cast<int64_t>(state.total),
                       progress::Unit::kParts);
        }
        step->set(static_cast<int64_t>(state.done));
        if (state.done == state.total) step->finish();
      });
  for (const lora::MergedComponent& part : merged) {
    if (!part.unmatched.empty())
      progress.warn(
          count_text(part.unmatched.size(), "name") +
          " of the LoRAs are nothing in the model: " + report::list_names(part.unmatched, 3));
    std::printf("%s: %s with %s changed\n", display_path(part.path).c_str(), part.component.c_str(),
                count_text(part.changed, "tensor").c_str());
  }
}

}  // namespace

int run_lora_merge(std::span<const std::string> arguments) {
  const flags::CommandSpec command = lora_merge_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const std::vector<lora::MergeSource> sources = open_sources(flags.positional());
  const auto model = open_named_model(flags);
  if (model == nullptr) {
    merge_to_lora(flags, sources);
  } else {
    refuse_flags_of_loras(flags);
    merge_to_model(flags, sources, *model);
  }
  return 0;
}

}  // namespace atelier::cli
