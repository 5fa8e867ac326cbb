// What a written image says about how it was made.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "host/generate/image_request.h"
#include "host/media/png.h"
#include "host/order/settings.h"

namespace atelier::generate {

// What is the same for every image of a run.
struct ModelRecord {
  std::string version;  // of the program
  std::string family, plugin_version, variant;
  std::span<const InputSpec> inputs = {};  // of the family
  std::string dtype, device;
  // Component to files; each file is its name and its folder's.
  nlohmann::json files = nlohmann::json::object();
  // Component to its dtype; those that compute in `dtype` are left out.
  nlohmann::json dtypes = nlohmann::json::object();
  // Component to "fp8", "int8" or "published"; those that rest in `dtype` are left out.
  nlohmann::json storage = nlohmann::json::object();
  // Component to "w8a8"; those that are multiplied in `dtype` are left out.
  nlohmann::json compute = nlohmann::json::object();
};

// Two text chunks: "parameters" in the form that other tools read and show, and "atelier", a JSON
// object with every setting. `request` is the one that was run, `index` the image's place in it.
media::Text metadata_of(const ModelRecord& model, const order::Settings& settings,
                        const Request& request, size_t index);

// The last two parts of a path: "transformer/model.safetensors". Whole paths tell more than a
// image should.
std::string short_path(const std::string& path);

}  // namespace atelier::generate
