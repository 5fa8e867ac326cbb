// Writes the tiny model of a plugin with random weights:
//
//   write_model PLUGIN FOLDER
//
// makes FOLDER/<component>/model.safetensors with the config.json that belongs to it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/conformance/config_probe.h"
#include "host/plugins/plugin_loader.h"
#include "host/weights/component_writer.h"

namespace fs = std::filesystem;
using namespace atelier;

namespace {

void fill(nn::Module& module) {
  module.visit_weights([](const std::string& path, Weight& weight) {
    const at::IntArrayRef sizes = weight.sizes();
    const at::Tensor noise = at::randn(sizes, at::kFloat);
    if (path.ends_with("gamma")) {
      weight.set(1 + 0.1 * noise);
    } else if (sizes.size() == 1) {
      weight.set(0.1 * noise);
    } else {
      weight.set(noise / std::sqrt(static_cast<double>(weight.numel() / sizes[0])));
    }
  });
}

nlohmann::json to_json(const TensorIndex::Config& config) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, value] : config)
    std::visit([&, name = key](const auto& held) { object[name] = held; }, value);
  return object;
}

void write_model(const std::string& plugin, const fs::path& folder) {
  const ModelFamily& family = *plugins::open_plugin(plugin, "").family;
  const std::vector<Detection> parts = family.tiny_parts();
  const std::unique_ptr<Model> model = family.make_model(parts, {});
  at::manual_seed(5);
  for (const Detection& part : parts) {
    nn::Module& module = model->component(part.component);
    fill(module);
    fs::create_directories(folder / part.component);
    weights::save_component(module, family.weight_map(part), part.prefix,
                            (folder / part.component / "model.safetensors").string(), {});
    std::ofstream(folder / part.component / "config.json")
        << to_json(conformance::told_config(family, part)).dump(1);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    write_model(arguments[1], arguments[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
