// Runs optimizers and schedules for parity_test.py.
//
//   optim_tool steps CONFIG.json IN.safetensors OUT.safetensors
//   optim_tool schedule CONFIG.json        one factor a line
//
// IN holds "param/NAME", "grad/STEP/NAME" and, to resume, "state/NAME". OUT holds "param/NAME",
// "state/NAME" and "norm/STEP".
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>

#include "host/files/checkpoint.h"
#include "host/files/safetensors_writer.h"
#include "host/optim/lr_schedule.h"
#include "host/optim/optimizer.h"

namespace {

using atelier::NamedTensors;
using nlohmann::json;
namespace optim = atelier::optim;

optim::Options options_of(const json& config) {
  const std::map<std::string, optim::Kind> kinds = {{"adamw", optim::Kind::kAdamW},
                                                    {"adamw8bit", optim::Kind::kAdamW8bit},
                                                    {"adafactor", optim::Kind::kAdafactor},
                                                    {"prodigy", optim::Kind::kProdigy}};
  optim::Options options;
  options.kind = kinds.at(config.at("kind"));
  options.beta1 = config.value("beta1", options.beta1);
  options.beta2 = config.value("beta2", options.beta2);
  options.eps = config.value("eps", options.eps);
  options.seed = config.value("seed", options.seed);
  if (config.value("stochastic", false)) {
    options.master_weights = optim::MasterWeights::kStochastic;
  }
  options.clip_threshold = config.value("clip_threshold", options.clip_threshold);
  options.scale_parameter = config.value("scale_parameter", options.scale_parameter);
  options.prodigy_d0 = config.value("d0", options.prodigy_d0);
  options.prodigy_d_coef = config.value("d_coef", options.prodigy_d_coef);
  options.prodigy_use_bias_correction = config.value("use_bias_correction", false);
  options.prodigy_safeguard_warmup = config.value("safeguard_warmup", false);
  if (config.contains("beta3")) options.prodigy_beta3 = config.at("beta3").get<double>();
  return options;
}

// Tensors of the file whose names begin with `prefix`, without it.
NamedTensors read(const std::string& path, const std::string& prefix) {
  const auto file = atelier::files::Checkpoint::open(path, {path});
  NamedTensors tensors;
  for (const auto& [name, shape] : file.index().tensors()) {
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = file.read(name);
  }
  return tensors;
}

std::vector<optim::Group> groups_of(const json& config, const NamedTensors& parameters) {
  std::vector<optim::Group> groups;
  for (const json& entry : config.at("groups")) {
    optim::Group& group = groups.emplace_back();
    group.lr_scale = entry.value("lr_scale", 1.0);
    group.weight_decay = entry.value("weight_decay", 0.0);
    for (const std::string name : entry.at("names")) {
      group.parameters.push_back({name, parameters.at(name)});
    }
  }
  return groups;
}

void run_steps(const json& config, const std::string& in, const std::string& out) {
  const NamedTensors parameters = read(in, "param/");
  const auto groups = groups_of(config, parameters);
  const auto optimizer = optim::make_optimizer(groups, options_of(config));
  if (const NamedTensors state = read(in, "state/"); !state.empty()) optimizer->load_state(state);
  NamedTensors results;
  for (size_t step = 0; step < config.at("lrs").size(); ++step) {
    const std::string number = std::to_string(step);
    const NamedTensors gradients = read(in, "grad/" + number + "/");
    for (auto& [name, leaf] : parameters) {
      const auto found = gradients.find(name);
      at::Tensor(leaf).mutable_grad() = found == gradients.end() ? at::Tensor() : found->second;
    }
    const auto norm = optim::measure_gradients(groups, {}, config.value("max_norm", 0.0));
    optimizer->step(config["lrs"][step], norm.grad_scale, norm.is_skipped);
    results["norm/" + number] = norm.norm;
  }
  for (const auto& [name, value] : parameters) results["param/" + name] = value;
  for (const auto& [name, value] : optimizer->state()) results["state/" + name] = value;
  atelier::files::write_safetensors(out, results);
  for (const auto& [name, value] : optimizer->metrics()) {
    std::cout << name << " " << std::setprecision(17) << value << "\n";
  }
}

void print_schedule(const json& config) {
  optim::LrSchedule schedule;
  schedule.kind = config.at("kind");
  schedule.warmup_steps = config.at("warmup_steps");
  schedule.total_steps = config.at("total_steps");
  schedule.num_cycles = config.value("num_cycles", schedule.num_cycles);
  schedule.power = config.value("power", schedule.power);
  schedule.end_factor = config.value("end_factor", schedule.end_factor);
  optim::check_lr_schedule(schedule);
  for (int64_t step = 0; step <= schedule.total_steps; ++step) {
    std::cout << std::setprecision(17) << schedule.factor(step) << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const json config = json::parse(std::ifstream(words.at(1)));
    if (words.at(0) == "schedule") {
      print_schedule(config);
    } else {
      run_steps(config, words.at(2), words.at(3));
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
