// Opens datasets for dataset_images_test.py and dataset_faults_test.py: one JSON request a line
// on stdin, one JSON answer a line on stdout. Tensors are given back as files of raw float32.
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/dataset.h"

namespace {

using nlohmann::json;
using namespace atelier;  // NOLINT(google-build-using-namespace)

const InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .role = InputRole::kTarget},
    {.name = "edit_image", .kind = InputKind::kImage, .max_count = 3, .fit = InputFit::kAsIs},
    {.name = "steps", .kind = InputKind::kInteger},
    {.name = "scale", .kind = InputKind::kReal},
    {.name = "tiled", .kind = InputKind::kFlag},
};

data::DatasetOptions read_options(const json& given) {
  data::DatasetOptions options;
  options.dataset_base_path = given.at("base");
  options.dataset_metadata_path = given.value("metadata", "");
  options.extra_inputs = given.value("extra_inputs", std::vector<std::string>());
  options.max_pixels = given.value("max_pixels", options.max_pixels);
  options.max_errors = given.value("max_errors", options.max_errors);
  options.decode_all = given.value("decode_all", false);
  options.alpha_mask = given.value("alpha_mask", false);
  options.enable_bucket = given.value("enable_bucket", false);
  options.min_bucket_reso = given.value("min_bucket_reso", options.min_bucket_reso);
  if (given.contains("height")) options.height = given.at("height").get<int64_t>();
  if (given.contains("width")) options.width = given.at("width").get<int64_t>();
  return options;
}

// The lines of all problems.
std::vector<std::string> lines_of(const report::Problems& problems) {
  std::vector<std::string> lines;
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    std::istringstream text(error.what());
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    if (lines.size() > 1) lines.erase(lines.begin());
  }
  return lines;
}

json write_tensor(const at::Tensor& tensor, const std::string& path) {
  if (!tensor.defined()) return nullptr;
  const at::Tensor values = tensor.contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
  return {{"path", path}, {"shape", values.sizes().vec()}};
}

json answer(const json& request) {
  const auto begin = std::chrono::steady_clock::now();
  report::Problems problems;
  const auto dataset = data::Dataset::open(read_options(request), kInputs, LatentSpec{}, problems);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  json result = {{"problems", lines_of(problems)},
                 {"warnings", dataset.warnings()},
                 {"items", dataset.items().size()},
                 {"seconds", seconds.count()}};
  if (!request.contains("out")) return result;
  const std::string out = request.at("out");
  result["samples"] = json::array();
  for (size_t i = 0; i < dataset.items().size(); ++i) {
    const data::Sample sample = dataset.load(i);
    const std::string number = out + std::to_string(i);
    result["samples"].push_back(
        {{"file", dataset.items()[i].files.at("image").front()},
         {"image",
          write_tensor(std::get<at::Tensor>(sample.inputs.at("image")), number + ".image")},
         {"mask", write_tensor(sample.mask, number + ".mask")}});
  }
  return result;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json result;
    try {
      result = answer(json::parse(line));
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
  }
}
