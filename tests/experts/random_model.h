// The tiny model of a family with random weights, as files.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "host/conformance/config_probe.h"
#include "host/weights/component_writer.h"

namespace atelier::test {

inline void fill(nn::Module& module) {
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

inline nlohmann::json to_json(const TensorIndex::Config& config) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, value] : config)
    std::visit([&, name = key](const auto& held) { object[name] = held; }, value);
  return object;
}

// Makes FOLDER/<component>/model.safetensors of each part, with the config.json that belongs to it.
inline void write_model(const ModelFamily& family, const std::filesystem::path& folder,
                        const std::vector<Detection>& parts) {
  const std::unique_ptr<Model> model = family.make_model(parts, {});
  at::manual_seed(5);
  for (const Detection& part : parts) {
    nn::Module& module = model->component(part.component);
    fill(module);
    std::filesystem::create_directories(folder / part.component);
    weights::save_component(module, family.weight_map(part), part.prefix,
                            (folder / part.component / "model.safetensors").string(), {});
    std::ofstream(folder / part.component / "config.json")
        << to_json(conformance::told_config(family, part)).dump(1);
  }
}

inline void write_model(const ModelFamily& family, const std::filesystem::path& folder) {
  write_model(family, folder, family.tiny_parts());
}

}  // namespace atelier::test
