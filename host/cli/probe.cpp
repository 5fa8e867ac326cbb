// atelier probe: one component on named tensors, to compare its numbers with another
// implementation.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <spdlog/spdlog.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "host/cli/commands.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/files/safetensors_writer.h"
#include "host/generate/sigma_schedule.h"
#include "host/model/components.h"
#include "host/model/model_flags.h"
#include "host/model/model_loader.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"
#include "host/weights/published_tensors.h"
#include "memory/recompute.h"

namespace atelier::cli {

namespace {

using model::LoadedModel;
using model::LoadProgress;

}  // namespace

flags::CommandSpec probe_command() {
  flags::CommandSpec command{
      "probe", "Runs one component on the tensors of a file and writes what it gives."};
  command.flags = model::model_flags("float32");
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

// Floating tensors of two axes and more take part in products and get the component's dtype;
// vectors (noise levels) stay as they are.
at::Tensor to_compute(const at::Tensor& value, const LoadedModel& model,
                      const std::string& component) {
  if (!c10::isFloatingType(value.scalar_type()) || value.dim() < 2) return value.to(model.device());
  return value.to(model.device(), model.dtype(component));
}

void report_load(const LoadProgress& progress) {
  if (!progress.done) return;
  spdlog::info("loaded {}: {} in {:.1f} s ({:.2f} GB/s)", progress.component,
               report::format_bytes(static_cast<uint64_t>(progress.bytes_total)), progress.seconds,
               static_cast<double>(progress.bytes_total) / 1e9 / std::max(progress.seconds, 1e-9));
}

// The published tensors that `glob` names, with or without the file's prefix, as trained weights.
std::vector<weights::PublishedTensor> train(LoadedModel& model, const std::string& component,
                                            const std::string& glob) {
  const model::LoadedPart& part = *model.find_part(component);
  const std::string& prefix = part.detection.prefix;
  std::vector<weights::PublishedTensor> tensors = plugins::guard(model.family().name(), [&] {
    return weights::published_tensors(model.model().component(component),
                                      model.family().weight_map(part.detection), prefix,
                                      &part.checkpoint.index());
  });
  std::erase_if(tensors, [&](const weights::PublishedTensor& tensor) {
    return !formats::glob_match(glob, tensor.name) &&
           !formats::glob_match(glob, tensor.name.substr(prefix.size()));
  });
  if (tensors.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--trainable " + formats::quote_and_escape(glob) + ": no tensor of " + component +
                    " matches",
                "atelier inspect lists the names");
  for (const weights::PublishedTensor& tensor : tensors) {
    for (const auto& source : tensor.sources) source.weight->state().set_trainable(true);
  }
  return tensors;
}

// Joins the gradients of a published tensor's weights the way its values are joined.
at::Tensor published_gradient(const weights::PublishedTensor& tensor,
                              const std::map<Weight*, at::Tensor>& gradients) {
  std::vector<at::Tensor> parts;
  for (const auto& source : tensor.sources) {
    at::Tensor part = gradients.at(source.weight);
    if (source.length >= 0) part = part.narrow(tensor.axis, source.start, source.length);
    parts.push_back(std::move(part));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, tensor.axis);
}

NamedTensors run_component(LoadedModel& model, const std::string& component,
                           const NamedTensors& inputs, bool with_gradients,
                           const std::string& trainable) {
  // Blocks whose weights come and go are computed again in the backward pass.
  memory::RecomputeRunner recompute(model.runner());
  const bool recomputes = with_gradients && model.is_streamed(component);
  BlockRunner& runner = recomputes ? static_cast<BlockRunner&>(recompute) : model.runner();
  const std::string where = std::string(model.family().name()) + ".probe";
  NamedTensors outputs;
  if (!with_gradients) {
    const at::NoGradGuard no_grad;
    NamedTensors given;
    for (const auto& [name, value] : inputs)
      given.emplace(name, to_compute(value, model, component));
    return plugins::guard(where, [&] { return model.model().probe(component, given, runner); });
  }

  std::vector<weights::PublishedTensor> trained;
  if (!trainable.empty()) trained = train(model, component, trainable);
  NamedTensors given;
  std::vector<std::string> names;
  std::vector<Weight*> weights;
  std::vector<at::Tensor> leaves;
  for (const auto& [name, value] : inputs) {
    at::Tensor leaf = value.detach().clone();
    if (c10::isFloatingType(leaf.scalar_type())) {
      leaf.set_requires_grad(true);
      names.push_back(name);
      leaves.push_back(leaf);
    }
    given.emplace(name, to_compute(leaf, model, component));
  }
  for (const auto& tensor : trained) {
    for (const auto& source : tensor.sources) {
      if (std::find(weights.begin(), weights.end(), source.weight) != weights.end()) continue;
      weights.push_back(source.weight);
      leaves.push_back(source.weight->state().leaf());
    }
  }
  return plugins::guard(where, [&] {
    NamedTensors result = model.model().probe(component, given, runner);
    std::vector<at::Tensor> roots, seeds;
    for (const auto& [name, value] : result) {
      if (!value.requires_grad()) continue;
      roots.push_back(value);
      seeds.push_back(value.detach());  // of half the sum of squares
    }
    std::vector<at::Tensor> gradients(leaves.size());
    if (!roots.empty() && !leaves.empty()) {
      gradients = torch::autograd::grad(roots, leaves, seeds, /*retain_graph=*/false,
                                        /*create_graph=*/false,
                                        /*allow_unused=*/true);
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
    }
    for (auto& [name, value] : result) value = value.detach();
    for (size_t i = 0; i < names.size(); ++i) result["grad." + names[i]] = gradients[i];
    std::map<Weight*, at::Tensor> by_weight;
    for (size_t i = 0; i < weights.size(); ++i) by_weight[weights[i]] = gradients[names.size() + i];
    for (const auto& tensor : trained)
      result["grad." + tensor.name] = published_gradient(tensor, by_weight);
    return result;
  });
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
      const std::vector<int64_t> ids = plugins::guard(
          std::string(model.family().name()) + ".tokenize",
          [&] { return model.model().tokenize(line.value.get_ref<const std::string&>()); });
      out += nlohmann::json(ids).dump() + "\n";
    }
  } catch (const formats::ParseError& error) {
    throw files::at_file(input_path, error, ErrorCode::kInvalidArgument);
  }
  files::write_file(output_path, out);
}

void probe_schedule(LoadedModel& model, const std::string& input_path,
                    const std::string& output_path) {
  const std::string place = files::display_path(input_path);
  nlohmann::json request;
  try {
    request = formats::parse_json(files::read_text_file(input_path, 1'000'000));
  } catch (const formats::ParseError& error) {
    throw files::at_file(input_path, error, ErrorCode::kInvalidArgument);
  }
  if (!request.is_object()) throw Error(ErrorCode::kInvalidArgument, place + ": is no JSON object");
  report::Problems problems;
  const std::vector<std::string> known = {
      "height", "width",  "num_inference_steps", "schedule", "denoising_strength", "flow_shift",
      "sigmas", "variant"};
  for (const auto& [key, value] : request.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string nearest = report::nearest_name(key, known);
      problems.add(place + ": " + formats::quote_and_escape(key) + " is not known",
                   nearest.empty() ? "known are " + report::list_names(known)
                                   : "did you mean " + nearest + "?");
    } else if (key == "schedule" || key == "variant" ? !value.is_string()
               : key == "sigmas"                     ? !value.is_array()
                                                     : !value.is_number()) {
      problems.add(place + ": " + key + " is " + formats::quote_and_escape(value.dump()) +
                   ", which it cannot be");
    }
  }
  problems.throw_if_any();

  const ScheduleDefaults& defaults =
      generate::find_schedule(model.family().schedules(), request.value("schedule", std::string()),
                              request.value("variant", std::string()));
  const LatentSpec spec = plugins::guard(std::string(model.family().name()) + ".latent_spec",
                                         [&] { return model.model().latent_spec(); });
  generate::ScheduleRequest wanted;
  wanted.num_steps = request.value("num_inference_steps", defaults.num_inference_steps);
  const int64_t height = request.value("height", int64_t{1024}),
                width = request.value("width", int64_t{1024});
  wanted.tokens = (height / spec.token_stride) * (width / spec.token_stride);
  if (request.contains("flow_shift")) wanted.flow_shift = request["flow_shift"].get<double>();
  if (request.contains("sigmas")) wanted.sigmas = request["sigmas"].get<std::vector<double>>();
  std::vector<float> sigmas = generate::make_sigmas(defaults, wanted);
  sigmas = generate::keep_last_steps(std::move(sigmas), request.value("denoising_strength", 1.0));

  nlohmann::json out;
  out["sigmas"] = std::vector<double>(sigmas.begin(), sigmas.end());
  const std::string text = out.dump() + "\n";
  files::write_file(output_path, text);
}

}  // namespace

int run_probe(std::span<const std::string> arguments) {
  const flags::CommandSpec command = probe_command();
  if (flags::wants_help(arguments)) {
    std::fputs(flags::help_text(command).c_str(), stdout);
    return 0;
  }
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const ModelFamily& family =
      *plugins::open_plugin(flags.text("plugin"), flags.text("plugin_path")).family;
  const std::string component = flags.text("component");
  const std::string output = flags.text("output");

  model::LoadRequest request = model::load_request(flags);
  const ComponentSpec* spec = model::find_component(family, component);
  const bool is_schedule = component == "schedule" && spec == nullptr;
  const bool is_tokenizer = spec != nullptr && spec->role == Role::kTokenizer;
  std::vector<std::string> known = model::component_names(family);
  known.insert(known.begin(), "schedule");

  report::Problems problems;
  if (spec == nullptr && !is_schedule) {
    const std::string nearest = report::nearest_name(component, known);
    problems.add("--component " + formats::quote_and_escape(component) + ": " +
                     std::string(family.name()) + " has " + report::list_names(known),
                 nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
  }
  if (!flags.text("trainable").empty() && !flags.flag("gradients"))
    problems.add("--trainable is given without --gradients", "add --gradients");
  if (!flags.text("trainable").empty() && !request.placement.offload.empty())
    problems.add("--trainable: weights of offloaded blocks have no gradients here",
                 "leave out --offload");
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  std::error_code failure;
  if (!folder.empty() && !std::filesystem::is_directory(folder, failure))
    problems.add("--output " + files::display_path(output) + ": its folder does not exist",
                 "make it first", ErrorCode::kEnvironment);

  // Inputs are read before anything is loaded.
  NamedTensors inputs;
  if (spec != nullptr && !is_tokenizer) {
    problems.collect([&] {
      const auto file = files::Checkpoint::open({flags.text("inputs"), {flags.text("inputs")}});
      for (const auto& [name, meta] : file.index().tensors()) inputs.emplace(name, file.read(name));
    });
  } else {
    problems.collect([&] { files::FileReader reader(flags.text("inputs")); });
  }
  problems.throw_if_any();
  const std::string note = files::replaced_note(std::vector<std::string>{output});
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());

  request.components = {component};
  // Sigmas depend on sizes only: no file is needed, whatever was named.
  const std::unique_ptr<LoadedModel> model =
      is_schedule ? LoadedModel::open_empty(family) : LoadedModel::open(family, request);
  if (is_schedule) {
    probe_schedule(*model, flags.text("inputs"), output);
  } else if (is_tokenizer) {
    probe_tokenizer(*model, flags.text("inputs"), output);
  } else {
    for (const std::string& note : model->notes()) spdlog::info("note: {}", note);
    model->load_component(component, report_load);
    const NamedTensors result =
        run_component(*model, component, inputs, flags.flag("gradients"), flags.text("trainable"));
    files::write_safetensors(output, result);
  }
  return 0;
}

}  // namespace atelier::cli
