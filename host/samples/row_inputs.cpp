#include "host/samples/row_inputs.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "host/files/content_hash.h"
#include "host/inputs/parse.h"
#include "host/model/stages.h"

namespace atelier::samples {
namespace {

using files::ContentHash;

constexpr const char* kPrompt = "prompt";

// What the dataset gives for a stage.
std::vector<InputSpec> read_inputs(const data::Dataset& dataset, const EncodeStage& stage) {
  std::vector<InputSpec> read;
  for (const InputSpec& input : dataset.inputs()) {
    if (model::reads(stage, input.name)) read.push_back(input);
  }
  return read;
}

// What of the target is learnt; of an image nothing is added, so that entries stay those of
// images.
void add_frames(ContentHash& hash, const std::vector<int64_t>& frames) {
  if (frames.empty()) return;
  hash.add("frames").add(static_cast<int64_t>(frames.size()));
  for (const int64_t frame : frames) hash.add(frame);
}

// Where what runs beside an item is read.
void add_place(ContentHash& hash, const data::Item& item) {
  hash.add("place").add(item.first).add(&item.fps, sizeof item.fps).add(item.target.frames);
}

void add_files(ContentHash& hash, const std::vector<std::string>& paths, const SourceFiles& files) {
  hash.add(static_cast<int64_t>(paths.size()));
  for (const std::string& path : paths)
    hash.add(std::string_view(files.find(absolute_path(path))->second.hash));
}

}  // namespace

bool has_inputs(const data::Dataset& dataset, const EncodeStage& stage) {
  return !read_inputs(dataset, stage).empty();
}

bool reads_files(const data::Dataset& dataset, const EncodeStage& stage) {
  return std::ranges::any_of(read_inputs(dataset, stage),
                             [](const InputSpec& input) { return inputs::is_file(input.kind); });
}

Inputs value_inputs(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                    bool empty_caption) {
  Inputs values = model::inputs_of(stage, dataset.values(index));
  if (empty_caption && values.contains(kPrompt)) values.insert_or_assign(kPrompt, std::string());
  return values;
}

std::string stage_content(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                          bool empty_caption, const SourceFiles& files) {
  const data::Item& item = dataset.items()[index];
  ContentHash hash;
  bool has_files = false;
  for (const InputSpec& input : read_inputs(dataset, stage)) {
    hash.add(input.name);
    if (!inputs::is_file(input.kind)) {
      const bool is_dropped = empty_caption && input.name == kPrompt;
      inputs::add_value(hash,
                        is_dropped ? nlohmann::json("") : item.values.at(std::string(input.name)));
      continue;
    }
    has_files = true;
    const auto paths = item.files.find(input.name);
    if (paths != item.files.end()) {
      add_files(hash, paths->second, files);
      const bool is_target = input.name == dataset.target_input();
      if (inputs::is_clip(input.kind) && (is_target || input.along_clip))
        add_frames(hash, item.frames);
      if (!is_target && input.along_clip) add_place(hash, item);
      continue;
    }
    hash.add(static_cast<int64_t>(input.when_absent));
    if (input.when_absent == WhenAbsent::kLeftOut) continue;
    add_files(hash, item.files.at(dataset.target_input()), files);
    if (item.frames.empty()) continue;
    const bool is_first = input.when_absent == WhenAbsent::kFirstFrame;
    add_frames(hash, {is_first ? item.frames.front() : item.frames.back()});
  }
  if (has_files || stage.sees_target) data::add_target(hash, item.target);
  return hash.hex();
}

std::string image_content(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                          const SourceFiles& files) {
  const data::Item& item = dataset.items()[index];
  const data::DatasetOptions& options = dataset.options();
  ContentHash hash;
  data::add_target(hash, item.target);
  hash.add(static_cast<int64_t>(options.alpha_mask));
  for (const std::string& name : {dataset.target_input(), options.mask_column}) {
    const auto paths = item.files.find(name);
    add_files(hash, paths == item.files.end() ? std::vector<std::string>() : paths->second, files);
  }
  add_frames(hash, item.frames);
  for (const InputSpec& input : read_inputs(dataset, stage)) {
    if (input.name == dataset.target_input() || !inputs::is_file(input.kind)) continue;
    const auto paths = item.files.find(input.name);
    hash.add(input.name).add(static_cast<int64_t>(input.when_absent));
    if (paths != item.files.end()) add_files(hash, paths->second, files);
  }
  return hash.hex();
}

int64_t pixel_bytes(const data::Dataset& dataset, const data::Item& item) {
  const MediaTarget& size = item.target;
  const int64_t bytes = item.frames.empty() ? int64_t{sizeof(float)} : 1;
  int64_t values = 0;  // of each pixel
  for (const InputSpec& input : dataset.inputs()) {
    const auto paths = item.files.find(input.name);
    if (input.name == dataset.target_input()) {
      values += input.channels * bytes * size.frames;
    } else if (inputs::is_image(input.kind) && input.fit != InputFit::kAsIs &&
               paths != item.files.end()) {
      values += input.channels * int64_t{sizeof(float)} * std::ssize(paths->second);
    }
  }
  return values * size.height * size.width;
}

std::vector<std::string> files_of(const data::Item& item) {
  std::vector<std::string> all;
  for (const auto& [name, paths] : item.files) all.insert(all.end(), paths.begin(), paths.end());
  return all;
}

at::Tensor mask_at(const at::Tensor& mask, const LatentSpec& spec, const MediaTarget& target) {
  const at::Tensor cells = at::adaptive_avg_pool2d(
      mask, {target.height / spec.spatial_stride, target.width / spec.spatial_stride});
  if (mask.dim() == 3) return cells.unsqueeze(0);
  const at::Tensor first = cells.narrow(1, 0, 1), later = cells.narrow(1, 1, target.frames - 1);
  if (target.frames == 1) return first;
  return at::cat({first, later.unflatten(1, {-1, spec.temporal_stride}).mean(2)}, 1);
}

}  // namespace atelier::samples
