// Times one part of a model in a steady state and prints a JSON object on stdout, for the
// comparison scripts.
//
//   atelier-bench dit|vae|load|COMPONENT --plugin NAME --model_paths … [--inputs F] [--runs 5]
//   [--warmup 1]
//   [--dtype float32] [--lora_mode hot] [--prepare_levels] [--cuda_graphs] [--beside COMPONENT,…]
//
// dit: one denoising step with guidance, both halves in one batch. Tensors of --inputs: latents [1,
// C, T, H, W],
//      sigma [1], and the conditioning with a batch axis of 1: NAME for the prompt, negative_NAME
//      for the other. --beside names components that a step runs with it: a control.
// vae: one decode of latents [B, C, T, H, W], or one encoding of "clip" [B, 3, T, H, W].
// COMPONENT: one run of another one, on the tensors that `atelier probe` takes.
// load: every component given, from headers to weights in memory; one run a process.
// Without --pipe all runs follow each other; with it each line on stdin starts one run and prints
// one object, so that two programs can take turns. Some lines are JSON objects: {"output": FILE}
// also writes what the run gave, {"inputs": FILE} runs with other inputs from then on, and
// {"loras": [PATH:STRENGTH, …]} runs nothing, but makes these the LoRAs of the runs that follow and
// says how long that took, until all weights are there.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/device_graph.h"

#include "host/device/cpu_memory.h"
#include "host/device/cuda.h"
#include "host/files/safetensors_writer.h"
#include "host/flags/flags.h"
#include "host/flags/process_flags.h"
#include "host/flags/table.h"
#include "host/lora/registry.h"
#include "host/model/graphs.h"
#include "host/model/model_flags.h"
#include "host/model/model_loader.h"
#include "host/model/stages.h"
#include "host/plugins/plugin_loader.h"

namespace {

using namespace atelier;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

flags::Table table_of(flags::ProcessSettings& settings) {
  flags::Table table;
  flags::add_process_flags(table, settings);
  return table;
}

flags::CommandSpec command() {
  flags::ProcessSettings settings;
  flags::CommandSpec spec{.name = "bench",
                          .summary = "Times one part of a model",
                          .flags = model::model_flags("float32"),
                          .positional = "dit|vae|load|COMPONENT",
                          .min_positional = 1,
                          .max_positional = 1};
  spec.flags.push_back({.name = "inputs", .help = "safetensors file with the tensors of the run"});
  spec.flags.push_back(
      {.name = "runs", .kind = flags::FlagKind::kInteger, .help = "measured runs", .preset = "5"});
  spec.flags.push_back(
      {.name = "warmup", .kind = flags::FlagKind::kInteger, .help = "runs before", .preset = "1"});
  std::ranges::move(table_of(settings).specs(), std::back_inserter(spec.flags));
  spec.flags.push_back(
      {.name = "pipe", .kind = flags::FlagKind::kFlag, .help = "one run per line on stdin"});
  spec.flags.push_back(
      {.name = "prepare_levels",
       .kind = flags::FlagKind::kFlag,
       .help = "what depends only on the noise level is computed before the runs"});
  spec.flags.push_back({.name = "cuda_graphs",
                        .kind = flags::FlagKind::kFlag,
                        .help = "blocks are CUDA graphs from the third run of a size on"});
  spec.flags.push_back(
      {.name = "beside", .help = "components that a step of dit runs, too", .preset = ""});
  spec.flags.push_back({.name = "lora_mode",
                        .help = "of the LoRAs that lines on stdin name",
                        .preset = "hot",
                        .choices = {"hot", "merge"}});
  return spec;
}

// What is repeated, and what it needs.
class Workload {
 public:
  Workload(std::string what, model::LoadedModel& loaded, bool prepares_levels)
      : what_(std::move(what)), loaded_(loaded), prepares_levels_(prepares_levels) {}

  // The tensors of the runs that follow.
  void read(const std::string& inputs_path) {
    cond_.clear(), uncond_.clear(), probed_.clear();
    const auto file = files::Checkpoint::open(inputs_path, {inputs_path});
    if (is_probed()) {
      for (const auto& [name, meta] : file.index().tensors())
        probed_[name] = file.read(name).to(loaded_.device());
      return;
    }
    for (const auto& [name, meta] : file.index().tensors()) {
      at::Tensor tensor = file.read(name).to(loaded_.device());
      if (name != "sigma" && tensor.is_floating_point()) tensor = tensor.to(loaded_.dtype());
      if (name == "latents")
        latents_ = tensor;
      else if (name == "clip")
        clip_ = tensor;
      else if (name == "sigma")
        sigma_ = tensor.to(at::kFloat);
      else if (name.starts_with("negative_"))
        uncond_[name.substr(9)] = tensor.squeeze(0);
      else
        cond_[name] = tensor.squeeze(0);
    }
    if (!(latents_.defined() || clip_.defined()) || (what_ == "dit" && !sigma_.defined()))
      throw Error(ErrorCode::kInvalidArgument,
                  inputs_path + ": latents" + (what_ == "dit" ? " or sigma" : "") + " is missing");
    prepare();
  }

  // Returns the pixels, or the velocity of both halves.
  at::Tensor run() {
    at::NoGradGuard no_grad;
    at::Tensor output;
    if (is_probed()) {
      output = loaded_.model().probe(what_, probed_, loaded_.runner()).begin()->second;
    } else if (clip_.defined()) {
      output = loaded_.model().probe("vae", {{"clip", clip_}}, loaded_.runner()).at("latents");
    } else if (what_ == "vae") {
      output = model::decode_whole(loaded_.model(), latents_, loaded_.runner(), latents_.device());
    } else {
      const Conditioning* conditions[] = {&cond_, &uncond_};
      const DenoiseInputs step = {
          .x_BCTHW = at::cat({latents_, latents_}),
          .sigma_B = sigma_.expand({2}),
          .cond = conditions,
          .level = prepares_levels_ ? std::optional<int64_t>(0) : std::nullopt};
      output = loaded_.model().denoise(step, loaded_.runner());
      loaded_.model().guide({output.narrow(0, 0, 1), output.narrow(0, 1, 1), 4.0, step},
                            loaded_.runner());
    }
    synchronize();
    return output;
  }

  // Makes the weights that LoRAs are added to.
  void draw_weights() {
    loaded_.model().component(what_).visit_weights(
        [](const std::string&, Weight& weight) { weight.draw(); });
    prepare();
    synchronize();
  }

 private:
  // Again when LoRAs or inputs change.
  void prepare() {
    if (!prepares_levels_) return;
    const at::NoGradGuard no_grad;
    const std::vector<float> sigmas = {sigma_.item<float>()};
    loaded_.model().prepare_levels(what_, sigmas, loaded_.runner());
  }

  bool is_probed() const { return what_ != "dit" && what_ != "vae"; }

  void synchronize() {
    if (loaded_.device().is_cuda()) at::accelerator::synchronizeDevice(loaded_.device().index());
  }

  std::string what_;
  model::LoadedModel& loaded_;
  bool prepares_levels_;
  at::Tensor latents_, clip_, sigma_;
  Conditioning cond_, uncond_;
  NamedTensors probed_;
};

// The most that LibTorch's allocator held on a GPU; 0 on the CPU.
int64_t peak_reserved_bytes(at::Device device) {
  if (device.is_cpu()) return 0;
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).reserved_bytes[all].peak;
}

nlohmann::json report(const std::string& what, const std::string& dtype,
                      std::vector<double> runs_ms) {
  std::vector<double> sorted = runs_ms;
  std::sort(sorted.begin(), sorted.end());
  return {{"what", what},
          {"dtype", dtype},
          {"median_ms", sorted[sorted.size() / 2]},
          {"runs_ms", runs_ms},
          {"threads", at::get_num_threads()},
          {"peak_rss_bytes", peak_rss_bytes()}};
}

// Answers the lines on stdin.
void run_pipe(Workload& workload, model::LoadedModel& loaded, const flags::ParsedFlags& flags) {
  const bool merges = flags.text("lora_mode") == "merge";
  lora::Registry registry(loaded, {.mode = merges ? lora::Mode::kMerge : lora::Mode::kHot});
  for (std::string line; std::getline(std::cin, line);) {
    const auto order = line.empty() ? nlohmann::json::object() : nlohmann::json::parse(line);
    std::vector<lora::LoraRef> loras;
    if (order.contains("inputs")) workload.read(order["inputs"].get<std::string>());
    if (order.contains("loras"))
      loras = lora::parse_flags(order["loras"].get<std::vector<std::string>>());
    const auto begin = std::chrono::steady_clock::now();
    if (order.contains("loras")) {
      registry.use(loras);
      workload.draw_weights();
      std::cout << nlohmann::json{{"lora_ms", 1e3 * seconds_since(begin)},
                                  {"lora_bytes", registry.bytes()}}
                       .dump()
                << std::endl;
      continue;
    }
    const at::Tensor output = workload.run();
    const double elapsed_ms = 1e3 * seconds_since(begin);
    if (order.contains("output"))
      files::write_safetensors(order["output"].get<std::string>(), {{"output", output}});
    auto result = report(flags.positional()[0], flags.text("dtype"), {elapsed_ms});
    result["peak_reserved_bytes"] = peak_reserved_bytes(loaded.device());
    std::cout << result.dump() << std::endl;
  }
}

void make_graphs(model::LoadedModel& model) {
  auto recorder = ops::make_graph_recorder(model.device());
  if (recorder == nullptr)
    throw Error(ErrorCode::kUnsupported, "--cuda_graphs: this device has none");
  model::graphs_of(model).begin(
      {.recorder = std::move(recorder), .warn = [](const std::string& what) {
         throw Error(ErrorCode::kUnsupported, what);  // times would be those without
       }});
}

// What is loaded: what is timed, and what that runs.
std::vector<std::string> components_of(const flags::ParsedFlags& flags) {
  std::vector<std::string> names = {flags.positional()[0]};
  std::istringstream beside(flags.text("beside"));
  for (std::string name; std::getline(beside, name, ',');) names.push_back(name);
  return names;
}

int run(std::span<const std::string> arguments) {
  const auto flags = flags::parse_flags(command(), arguments);
  const std::string what = flags.positional()[0];
  report::Problems problems;
  flags::ProcessSettings settings;
  table_of(settings).read(flags, problems);
  problems.throw_if_any();
  flags::apply(settings);
  const auto& plugin =
      plugins::open_plugin(flags.text("plugin"), flags.find_text("plugin_path").value_or(""));
  auto request = model::load_request(flags, problems);
  problems.throw_if_any();
  if (what != "load") request.components = components_of(flags);
  request.prepares_levels = flags.flag("prepare_levels");

  const auto begin = std::chrono::steady_clock::now();
  if (what == "load") {
    for (const auto& component : plugin.family->components())
      if (component.role == Role::kDenoiser) request.components = {std::string(component.name)};
    const auto loaded = model::LoadedModel::open(*plugin.family, request);
    uint64_t bytes = 0;
    for (const auto& part : loaded->parts()) {
      loaded->load_component(part.detection.component);
      bytes += part.checkpoint.bytes();
    }
    auto result = report(what, flags.text("dtype"), {1e3 * seconds_since(begin)});
    result["file_bytes"] = bytes;
    std::cout << result.dump() << std::endl;
    return 0;
  }

  const auto loaded = model::LoadedModel::open(*plugin.family, request);
  for (const std::string& name : request.components) loaded->load_component(name);
  if (flags.flag("cuda_graphs")) make_graphs(*loaded);
  Workload workload(what, *loaded, flags.flag("prepare_levels"));
  workload.read(flags.text("inputs"));
  for (int64_t i = 0; i < flags.integer("warmup"); ++i) workload.run();
  const auto timed = [&] {
    const auto start = std::chrono::steady_clock::now();
    workload.run();
    return 1e3 * seconds_since(start);
  };
  if (flags.flag("pipe")) {
    run_pipe(workload, *loaded, flags);
    return 0;
  }
  std::vector<double> runs_ms;
  for (int64_t i = 0; i < flags.integer("runs"); ++i) runs_ms.push_back(timed());
  std::cout << report(what, flags.text("dtype"), runs_ms).dump() << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  device::keep_freed_memory();
  try {
    device::open_cuda();
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return run(arguments);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return exit_code(error.code());
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 70;
  }
}
