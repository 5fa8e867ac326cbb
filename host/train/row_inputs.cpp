#include "host/train/row_inputs.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "host/data/columns.h"
#include "host/files/content_hash.h"
#include "host/model/stages.h"

namespace atelier::train {
namespace {

using files::ContentHash;

constexpr const char* kPrompt = "prompt";

// What the dataset gives for a stage.
std::vector<InputSpec> read_inputs(const data::Dataset& dataset, std::span<const InputSpec> specs,
                                   const EncodeStage& stage) {
  const std::vector<std::string>& extra = dataset.options().extra_inputs;
  std::vector<InputSpec> read;
  for (const InputSpec& spec : specs) {
    if (spec.use == InputUse::kGenerate || !model::reads(stage, spec.name)) continue;
    if (spec.required || std::find(extra.begin(), extra.end(), spec.name) != extra.end() ||
        dataset.options().texts_of_all.contains(spec.name))
      read.push_back(spec);
  }
  return read;
}

InputValue value_of(const InputSpec& input, const nlohmann::json& value) {
  if (input.kind == InputKind::kInteger) return value.get<int64_t>();
  if (input.kind == InputKind::kReal) return value.get<double>();
  if (input.kind == InputKind::kFlag) return value.get<bool>();
  return value.get<std::string>();
}

// What decides the sizes of pictures that are not learnt.
void add_sizes(ContentHash& hash, const data::Item& item, const data::DatasetOptions& options) {
  hash.add(item.height).add(item.width).add(options.height.value_or(0));
  hash.add(options.width.value_or(0)).add(options.max_pixels);
  hash.add(int64_t{options.enable_bucket}).add(options.bucket_reso_steps);
  hash.add(options.min_bucket_reso).add(options.max_bucket_reso);
  hash.add(int64_t{options.bucket_no_upscale});
}

void add_files(ContentHash& hash, const std::vector<std::string>& paths, const SourceFiles& files) {
  hash.add(static_cast<int64_t>(paths.size()));
  for (const std::string& path : paths)
    hash.add(std::string_view(files.find(absolute_path(path))->second.hash));
}

void add_value(ContentHash& hash, const nlohmann::json& value) {
  hash.add(std::string_view(value.type_name()));
  hash.add(value.is_string()
               ? value.get_ref<const std::string&>()
               : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

bool has_inputs(const data::Dataset& dataset, std::span<const InputSpec> specs,
                const EncodeStage& stage) {
  return !read_inputs(dataset, specs, stage).empty();
}

Inputs value_inputs(const data::Dataset& dataset, size_t index, std::span<const InputSpec> specs,
                    const EncodeStage& stage, bool empty_caption) {
  Inputs inputs;
  for (const InputSpec& input : read_inputs(dataset, specs, stage)) {
    if (data::is_picture(input.kind)) continue;
    inputs.emplace(input.name,
                   value_of(input, dataset.items()[index].values.find(input.name)->second));
  }
  if (empty_caption && inputs.contains(kPrompt)) inputs.insert_or_assign(kPrompt, std::string());
  return inputs;
}

Inputs stage_inputs(const data::Dataset& dataset, size_t index, std::span<const InputSpec> specs,
                    const EncodeStage& stage, bool empty_caption) {
  Inputs inputs = value_inputs(dataset, index, specs, stage, empty_caption);
  const std::vector<InputSpec> read = read_inputs(dataset, specs, stage);
  const bool has_pictures = std::any_of(read.begin(), read.end(), [](const InputSpec& input) {
    return data::is_picture(input.kind);
  });
  if (!has_pictures) return inputs;
  inputs.merge(model::inputs_of(stage, dataset.load(index).inputs));
  return inputs;
}

std::string stage_content(const data::Dataset& dataset, size_t index,
                          std::span<const InputSpec> specs, const EncodeStage& stage,
                          bool empty_caption, const SourceFiles& files) {
  const data::Item& item = dataset.items()[index];
  ContentHash hash;
  bool has_pictures = false;
  for (const InputSpec& input : read_inputs(dataset, specs, stage)) {
    hash.add(input.name);
    if (data::is_picture(input.kind)) {
      add_files(hash, item.files.find(input.name)->second, files);
      has_pictures = true;
    } else {
      const bool is_dropped = empty_caption && input.name == kPrompt;
      add_value(hash, is_dropped ? nlohmann::json("") : item.values.find(input.name)->second);
    }
  }
  if (has_pictures || stage.sees_target) add_sizes(hash, item, dataset.options());
  return hash.hex();
}

std::string picture_content(const data::Dataset& dataset, size_t index, const SourceFiles& files) {
  const data::Item& item = dataset.items()[index];
  const data::DatasetOptions& options = dataset.options();
  ContentHash hash;
  hash.add(item.height).add(item.width).add(static_cast<int64_t>(options.alpha_mask));
  for (const std::string& name : {dataset.learnt(), options.mask_column}) {
    const auto paths = item.files.find(name);
    add_files(hash, paths == item.files.end() ? std::vector<std::string>() : paths->second, files);
  }
  return hash.hex();
}

std::vector<std::string> files_of(const data::Item& item) {
  std::vector<std::string> all;
  for (const auto& [name, paths] : item.files) all.insert(all.end(), paths.begin(), paths.end());
  return all;
}

at::Tensor mask_at(const at::Tensor& mask_1HW, int64_t height, int64_t width) {
  return at::adaptive_avg_pool2d(mask_1HW, {height, width}).unsqueeze(0);
}

}  // namespace atelier::train
