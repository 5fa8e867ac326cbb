#include "host/plan/run_basis.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "host/data/dataset.h"
#include "host/generate/request.h"
#include "host/inputs/parse.h"
#include "host/lora/targets.h"
#include "host/model/stages.h"
#include "host/samples/cache_manifest.h"
#include "host/samples/encoding_store.h"
#include "host/train/objective.h"

namespace atelier::plan {
namespace {

using model::LoadedModel;
using order::Job;
using order::Settings;

// Whether images lead what is made, and do not say where texts hold.
bool is_leading_image(const InputSpec& input) {
  return input.kind == InputKind::kImage && input.role == InputRole::kCondition &&
         input.paired_with.empty();
}

bool has_controls(const LoadedModel& model) {
  return std::ranges::any_of(model.stages().components, [](const model::PresentComponent& one) {
    return one.spec.role == Role::kControl;
  });
}

// Pixels of what is made and of the images that lead it, which count as much: families bring them
// to about its size.
double pixels_with(const MediaTarget& target, size_t images) {
  return static_cast<double>(target.frames) * static_cast<double>(target.height) *
         static_cast<double>(target.width) * static_cast<double>(1 + images);
}

// Pixels that settings ask for. Images of controls that do nothing count for nothing.
double asked_pixels(const Settings& settings, const LoadedModel& model) {
  size_t images = 0;
  std::optional<generate::Request> request;  // which reads images' headers: where it may matter
  for (const InputSpec& input : model.family().inputs()) {
    const auto given = settings.family_inputs.find(input.name);
    if (!is_leading_image(input) || given == settings.family_inputs.end()) continue;
    if (!request && has_controls(model)) request = generate::blank_request(settings, model);
    if (!request || request->idle_controls.empty() || request->inputs.contains(input.name))
      images += inputs::texts_of(*given).size();
  }
  return pixels_with(order::target_of(settings), images);
}

// Pixels that a sample stands for.
double sample_pixels(const data::Item& item, std::span<const InputSpec> inputs) {
  size_t images = 0;
  for (const InputSpec& input : inputs) {
    if (is_leading_image(input) && item.files.contains(input.name))
      images += item.files.at(std::string(input.name)).size();
  }
  return pixels_with(item.target, images);
}

// Pixels that are denoised at once.
double area_of(const Settings& settings, const LoadedModel& model) {
  const bool is_guided =
      generate::cfg_scales_of(settings, model.family(), model.stages().variant).is_guided();
  return (is_guided ? 2.0 : 1.0) * asked_pixels(settings, model) *
         static_cast<double>(
             std::min(settings.batch_size, std::max<int64_t>(1, settings.num_images)));
}

int64_t lora_bytes(const LoadedModel& model, std::span<const Job> jobs) {
  int64_t most = 0;
  for (const Job& job : jobs) {
    int64_t bytes = 0;
    for (const lora::LoraRef& use : job.settings.loras) {
      std::error_code failure;
      const auto size = std::filesystem::file_size(use.path, failure);
      const size_t copies =
          use.component == lora::kEveryDenoiser ? model.stages().denoisers.size() : size_t{1};
      if (!failure) bytes += static_cast<int64_t>(size * copies);
    }
    // Several are stacked for the layers that share them, beside each one's own.
    most = std::max(most, job.settings.loras.size() > 1 ? 2 * bytes : bytes);
  }
  return most;
}

// The caption of a row; null: it has none.
const std::string* caption_of(const data::Item& item) {
  if (!item.values.contains("prompt")) return nullptr;
  return item.values.at("prompt").get_ptr<const std::string*>();
}

// The largest image, the longest text and how many there are.
void take_dataset(TrainingBasis& basis, const data::Dataset& dataset, const LoadedModel& model) {
  double most = 0;
  std::optional<size_t> largest;
  const std::string* text = nullptr;
  for (size_t i = 0; i < dataset.items().size(); ++i) {
    const data::Item& item = dataset.items()[i];
    basis.distillation_steps =
        std::max(basis.distillation_steps, train::distillation_steps(item.values));
    if (const double pixels = sample_pixels(item, dataset.inputs()); pixels > most) {
      most = pixels;
      basis.target = item.target;
      largest = i;
    }
    const std::string* const caption = caption_of(item);
    if (caption != nullptr && (text == nullptr || caption->size() > text->size())) text = caption;
  }
  if (largest) basis.inputs = dataset.shapes(*largest);
  basis.samples = std::max<int64_t>(1, dataset.samples());
  const bool has_encoder =
      std::ranges::any_of(model.family().components(), [&](const ComponentSpec& spec) {
        return model::only_encodes(spec) && model.find_part(spec.name) != nullptr;
      });
  if (!has_encoder) {
    basis.inputs.erase("prompt");
  } else if (text != nullptr) {
    basis.inputs.insert_or_assign("prompt", *text);
  }
}

// What a stage has made of a sample, without values; empty: nothing, or it cannot be read, which
// training tells.
Conditioning cached_shapes(const samples::EncodingStore& store, const EncodeStage& stage,
                           const samples::CacheItem& item, at::ScalarType dtype) {
  Conditioning made;
  const auto key = item.keys.find(stage.name);
  if (key == item.keys.end()) return made;
  const auto shapes = store.find(stage.name, key->second);
  if (!shapes) return made;
  for (const auto& [name, shape] : *shapes)
    made.emplace(name, at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype)));
  return made;
}

double numbers_of(const Conditioning& made) {
  double numbers = 0;
  for (const auto& [name, tensor] : made) numbers += static_cast<double>(tensor.numel());
  return numbers;
}

// Numbers of what is made of pictures, [C, T, H, W]: texts have far more for each of their tokens.
double numbers_of_pictures(const Conditioning& made) {
  double numbers = 0;
  for (const auto& [name, tensor] : made)
    if (tensor.dim() == 4) numbers += static_cast<double>(tensor.numel());
  return numbers;
}

// The largest of the samples that are there already, with the longest text of each stage that reads
// one, and how many.
void take_cache(TrainingBasis& basis, const std::string& folder, const LoadedModel& model) {
  const samples::Manifest manifest = samples::Manifest::read(folder);
  const samples::EncodingStore store(folder);
  double most = 0;
  std::map<std::string_view, Conditioning> texts;  // by stage
  Conditioning others;
  for (const samples::CacheItem& item : manifest.items) {
    basis.distillation_steps =
        std::max(basis.distillation_steps, train::distillation_steps(item.values));
    Conditioning made;
    for (const EncodeStage& stage : model.stages().encoding) {
      if (model.stages().is_target(stage)) continue;
      Conditioning part = cached_shapes(store, stage, item, model.dtype());
      if (!model::is_prompted(stage)) {
        made.merge(part);
      } else if (Conditioning& text = texts[stage.name]; numbers_of(part) > numbers_of(text)) {
        text = std::move(part);
      }
    }
    const double latents = item.latents_shape.empty()
                               ? pixels_with(item.target, /*images=*/0)
                               : static_cast<double>(c10::multiply_integers(item.latents_shape));
    if (latents + numbers_of_pictures(made) <= most) continue;
    most = latents + numbers_of_pictures(made);
    basis.target = item.target;
    others = std::move(made);
  }
  for (auto& [stage, text] : texts) basis.encoded.merge(text);
  if (!basis.encoded.empty()) basis.encoded.merge(others);
  basis.samples = std::max<int64_t>(
      1, std::ranges::count(manifest.items, false, &samples::CacheItem::is_alternative));
}

}  // namespace

const Job& largest_job(const LoadedModel& model, std::span<const Job> jobs) {
  return *std::ranges::max_element(jobs, {},
                                   [&](const Job& job) { return area_of(job.settings, model); });
}

const Settings& largest_prompt(const LoadedModel& model, std::span<const Settings> prompts) {
  return *std::ranges::max_element(
      prompts, {}, [&](const Settings& prompt) { return asked_pixels(prompt, model); });
}

GenerationBasis generation_basis(LoadedModel& model, const order::Generation& order,
                                 std::span<const Job> jobs) {
  const Job& largest = largest_job(model, jobs);
  const Job& longest = *std::ranges::max_element(
      jobs, {}, [](const Job& job) { return job.settings.prompt.value_or("").size(); });
  GenerationBasis basis{.order = &order,
                        .request = generate::blank_request(largest.settings, model),
                        .images = 0,
                        .lora_bytes = lora_bytes(model, jobs),
                        .layout = generate::unplanned_layout(order, model)};
  basis.request.inputs["prompt"] = longest.settings.prompt.value_or("");
  basis.request.tiling = order.tiling();
  for (const Job& job : jobs) basis.images += std::max<int64_t>(1, job.settings.num_images);
  return basis;
}

TrainingBasis training_basis(const train::PreparedRun& run) {
  TrainingBasis basis{.config = &run.config,
                      .selection = &run.selection,
                      .prompts = run.prompts,
                      .on_host = run.config.offload.optimizer};
  if (run.dataset != nullptr) {
    take_dataset(basis, *run.dataset, *run.model);
  } else {
    take_cache(basis, run.config.cache_path, *run.model);
  }
  return basis;
}

}  // namespace atelier::plan
