// atelier probe: one component on named tensors, to compare its numbers with another
// implementation.
#include "host/inspect/probe.h"

#include <algorithm>
#include <filesystem>
#include <spdlog/spdlog.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/cli/commands.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/files/safetensors_writer.h"
#include "host/model/components.h"
#include "host/model/model_flags.h"
#include "host/model/model_loader.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::cli {

namespace {

using model::LoadedModel;
using model::LoadProgress;

}  // namespace

flags::CommandSpec probe_command() {
  flags::CommandSpec command{
      "probe", "Runs one component on the tensors of a file and writes what it gives."};
  command.flags = model::model_flags("float32");
  command.flags.front() = model::plugin_flag();
  const std::vector<flags::FlagSpec> own = {
      {.name = "component", .help = "a component of the family, or schedule", .required = true},
      {.name = "inputs",
       .help = "safetensors; tokenizer: JSON lines; schedule: JSON",
       .required = true,
       .value_name = "FILE"},
      {.name = "output",
       .help = "written in the same format",
       .required = true,
       .value_name = "FILE"},
      {.name = "gradients",
       .kind = flags::FlagKind::kFlag,
       .help = "also the gradients of half the sum of all squared outputs: grad.<input>",
       .preset = "false"},
      {.name = "trainable",
       .help = "with --gradients: glob over published tensor names, grad.<name> for each",
       .preset = ""},
  };
  command.flags.insert(command.flags.end(), own.begin(), own.end());
  return command;
}

namespace {

void report_load(const LoadProgress& progress) {
  if (!progress.done) return;
  spdlog::info("loaded {}: {} in {:.1f} s ({:.2f} GB/s)", progress.component,
               report::bytes_text(progress.bytes_total), progress.seconds,
               static_cast<double>(progress.bytes_total) / 1e9 / std::max(progress.seconds, 1e-9));
}

void probe_tokenizer(LoadedModel& model, const std::string& input_path,
                     const std::string& output_path) {
  const std::string text = files::read_text_file(input_path, uint64_t{1} << 30);
  std::string out;
  try {
    for (const formats::JsonLine& line : formats::parse_jsonl(text)) {
      if (!line.value.is_string())
        throw Error(
            ErrorCode::kInvalidArgument,
            files::display_path(input_path) + ":" + std::to_string(line.line) + ": is no string",
            "one JSON string a line is expected");
      const std::vector<int64_t> ids =
          model.model().tokenize(line.value.get_ref<const std::string&>());
      out += nlohmann::json(ids).dump() + "\n";
    }
  } catch (const formats::ParseError& error) {
    throw files::at_file(input_path, error, ErrorCode::kInvalidArgument);
  }
  files::write_file(output_path, out);
}

void probe_schedule(LoadedModel& model, const std::string& input_path,
                    const std::string& output_path) {
  nlohmann::json request;
  try {
    request = formats::parse_json(files::read_text_file(input_path, 1'000'000));
  } catch (const formats::ParseError& error) {
    throw files::at_file(input_path, error, ErrorCode::kInvalidArgument);
  }
  const std::vector<float> sigmas =
      inspect::probe_schedule(model, request, files::display_path(input_path));
  const nlohmann::json out = {{"sigmas", std::vector<double>(sigmas.begin(), sigmas.end())}};
  files::write_file(output_path, out.dump() + "\n");
}

// What of the flags can be wrong before anything is opened. `spec`: null for the schedule, and
// where the family has no such component.
void check_flags(const flags::ParsedFlags& flags, const ModelFamily& family,
                 const ComponentSpec* spec, bool offloads, report::Problems& problems) {
  const std::string component = flags.text("component");
  std::vector<std::string> known = model::component_names(family);
  known.insert(known.begin(), "schedule");
  if (spec == nullptr && component != "schedule") {
    const std::string nearest = report::nearest_name(component, known);
    problems.add("--component " + formats::quote_and_escape(component) + ": " +
                     std::string(family.name()) + " has " + report::list_names(known),
                 nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
  }
  if (!flags.text("trainable").empty() && !flags.flag("gradients"))
    problems.add("--trainable is given without --gradients", "add --gradients");
  if (!flags.text("trainable").empty() && offloads)
    problems.add("--trainable: weights of offloaded blocks have no gradients here",
                 "leave out --offload");
  const std::string output = flags.text("output");
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  std::error_code failure;
  if (!folder.empty() && !std::filesystem::is_directory(folder, failure))
    problems.add("--output " + files::display_path(output) + ": its folder does not exist",
                 "make it first", ErrorCode::kEnvironment);
}

// Inputs are read before anything is loaded.
NamedTensors read_inputs(const std::string& path) {
  NamedTensors inputs;
  const auto file = files::Checkpoint::open({path, {path}});
  for (const auto& [name, meta] : file.index().tensors()) inputs.emplace(name, file.read(name));
  return inputs;
}

void probe_tensors(LoadedModel& model, const NamedTensors& inputs,
                   const flags::ParsedFlags& flags) {
  for (const std::string& note : model.notes()) spdlog::info("note: {}", note);
  const std::string component = flags.text("component");
  model.load_component(component, report_load);
  files::write_safetensors(
      flags.text("output"),
      flags.flag("gradients")
          ? inspect::probe_gradients(model, component, inputs, flags.text("trainable"))
          : inspect::probe_component(model, component, inputs));
}

}  // namespace

int run_probe(std::span<const std::string> arguments) {
  const flags::CommandSpec command = probe_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const ModelFamily& family =
      *plugins::open_plugin(flags.text("plugin"), flags.text("plugin_path")).family;
  const std::string component = flags.text("component");
  const std::string input = flags.text("inputs"), output = flags.text("output");
  report::Problems problems;
  model::LoadOptions request = model::load_request(flags, problems);
  const ComponentSpec* const spec = model::find_component(family, component);
  const bool is_tokenizer = spec != nullptr && spec->role == Role::kTokenizer;

  check_flags(flags, family, spec, !request.placement.offload.empty(), problems);
  NamedTensors inputs;
  problems.collect([&] {
    if (spec != nullptr && !is_tokenizer) {
      inputs = read_inputs(input);
    } else {
      files::FileReader reader(input);
    }
  });
  problems.throw_if_any();
  const std::string note = files::replaced_note(std::vector<std::string>{output});
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());

  request.components = {component};
  // Sigmas depend on sizes only: no file is needed, whatever was named.
  const std::unique_ptr<LoadedModel> model =
      spec == nullptr ? LoadedModel::open_empty(family) : LoadedModel::open(family, request);
  if (spec == nullptr) {
    probe_schedule(*model, input, output);
  } else if (is_tokenizer) {
    probe_tokenizer(*model, input, output);
  } else {
    probe_tensors(*model, inputs, flags);
  }
  return 0;
}

}  // namespace atelier::cli
