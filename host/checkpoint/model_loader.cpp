#include "host/checkpoint/model_loader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/checkpoint/file_reader.h"
#include "host/checkpoint/model_paths.h"
#include "host/device/cpu_memory.h"
#include "host/device/cuda.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"

namespace atelier::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTokenizerRole = "tokenizer";

const ComponentSpec* find_spec(const ModelFamily& family, std::string_view component) {
  for (const ComponentSpec& spec : family.components()) {
    if (spec.name == component) return &spec;
  }
  return nullptr;
}

std::vector<std::string> component_names(const ModelFamily& family) {
  std::vector<std::string> names;
  for (const ComponentSpec& spec : family.components()) names.emplace_back(spec.name);
  return names;
}

std::string where(const ModelFamily& family, std::string_view call) {
  return std::string(family.name()) + "." + std::string(call);
}

// What a checkpoint that no component takes comes nearest to: the component whose table knows most
// of its names.
std::string nearest_component(const ModelFamily& family, const TensorIndex& index) {
  std::string best;
  int64_t best_count = 0;
  for (const Detection& tiny : family.tiny_parts()) {
    const WeightMap rules = family.weight_map(tiny);
    for (const std::string& prefix :
         {tiny.prefix, std::string(), std::string("model.diffusion_model."), std::string("model."),
          std::string("transformer.")}) {
      const int64_t count = count_known_tensors(rules, prefix, index);
      if (count > best_count) {
        best_count = count;
        best = tiny.component;
      }
    }
  }
  const auto total = static_cast<int64_t>(index.tensors().size());
  if (best_count * 2 < total) return {};
  return "nearest is " + best + ": " + std::to_string(best_count) + " of its " +
         std::to_string(total) + " names are known there";
}

Error unknown_checkpoint(const ModelFamily& family, const Checkpoint& checkpoint) {
  const TensorIndex& index = checkpoint.index();
  std::vector<std::string> names;
  for (const auto& [name, meta] : index.tensors()) {
    names.push_back(name);
    if (names.size() == 2) break;
  }
  std::string message = display_path(checkpoint.name()) + ": is no component of " +
                        std::string(family.name()) + " (" + std::to_string(index.tensors().size()) +
                        " tensors";
  if (!names.empty()) message += ", the first " + report::list_names(names);
  message += ")";
  const std::string nearest = nearest_component(family, index);
  if (!nearest.empty()) message += "; " + nearest;
  return Error(ErrorCode::kUnsupported, message, "atelier inspect says which family takes it",
               "CHECKPOINT_UNKNOWN");
}

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw Error(ErrorCode::kInvalidArgument,
              "--dtype " + formats::quote_and_escape(name) + " is not known",
              "use auto, float32, bfloat16 or float16");
}

// The floating dtype that most bytes of a checkpoint have; 8-bit ones are storage and compute as
// bfloat16.
at::ScalarType published_dtype(const TensorIndex& index) {
  std::map<at::ScalarType, int64_t> bytes;
  for (const auto& [name, meta] : index.tensors()) {
    if (c10::isFloatingType(meta.dtype))
      bytes[meta.dtype] +=
          c10::multiply_integers(meta.shape) * static_cast<int64_t>(c10::elementSize(meta.dtype));
  }
  at::ScalarType most = at::kFloat;
  int64_t most_bytes = -1;
  for (const auto& [type, count] : bytes) {
    if (count > most_bytes) {
      most = type;
      most_bytes = count;
    }
  }
  if (c10::elementSize(most) == 1) return at::kBFloat16;
  return most == at::kDouble ? at::kFloat : most;
}

}  // namespace

bool is_lora(const TensorIndex& index) {
  static constexpr std::string_view kMarks[] = {
      ".lora_A.",   ".lora_B.",   ".lora_down.", ".lora_up.",  ".lora.down.",
      ".lora.up.",  "lora_unet_", ".lokr_w",     ".hada_w",    "_lora.down.",
      ".lora_mid.", ".lora_A",    ".lora_B",     ".dora_scale"};
  for (const auto& [name, meta] : index.tensors()) {
    for (const std::string_view mark : kMarks) {
      if (name.find(mark) != std::string::npos) return true;
    }
  }
  return false;
}

std::optional<Detection> detect_checkpoint(const ModelFamily& family, const Checkpoint& checkpoint,
                                           const std::map<std::string, DetectHint>& hints) {
  if (is_lora(checkpoint.index()))
    throw Error(ErrorCode::kUnsupported,
                display_path(checkpoint.name()) + ": is a LoRA, not a model",
                "a LoRA is added to a model: take it out of the model's files", "CHECKPOINT_LORA");
  DetectHint hint;
  for (const auto& [pattern, said] : hints) {
    const bool matches_file =
        std::any_of(checkpoint.files().begin(), checkpoint.files().end(),
                    [&](const std::string& file) { return formats::glob_match(pattern, file); });
    if (matches_file || formats::glob_match(pattern, checkpoint.name())) hint = said;
  }
  try {
    return plugins::guard(where(family, "detect"),
                          [&] { return family.detect(checkpoint.index(), hint); });
  } catch (const Error& error) {
    throw error.at(display_path(checkpoint.name()));
  }
}

namespace {

void check_storage(const ModelFamily& family, const LoadRequest& request, Model& model,
                   const std::vector<LoadedPart>& parts, report::Problems& problems) {
  for (const auto& [component, storage] : request.storage) {
    const std::string place = "--storage: component " + formats::quote_and_escape(component) + ": ";
    if (find_spec(family, component) == nullptr) {
      const std::string nearest = report::nearest_name(component, component_names(family));
      problems.add(place + std::string(family.name()) + " has " +
                       report::list_names(component_names(family)),
                   nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
      continue;
    }
    const bool is_here = std::any_of(parts.begin(), parts.end(), [&](const LoadedPart& part) {
      return part.detection.component == component;
    });
    if (is_here && storage != Storage::kPlain && storable_weights(model, component).empty())
      problems.add(place + "it has no linear layers in blocks, whose weights could be stored so",
                   "leave it out");
  }
}

void check_fp8_models(const LoadRequest& request, const FoundFiles& found,
                      report::Problems& problems) {
  const std::vector<std::string>& entries = found.entries;
  for (const std::string& name : request.fp8_models) {
    if (std::find(entries.begin(), entries.end(), name) != entries.end()) continue;
    const std::string nearest = report::nearest_name(name, entries);
    problems.add("--fp8_models: " + formats::quote_and_escape(name) +
                     " is no entry of --model_paths or --model_id_with_origin_paths",
                 nearest.empty() ? "write it as it stands there" : "did you mean " + nearest + "?",
                 ErrorCode::kNotFound);
  }
}

bool is_fp8_model(const LoadRequest& request, const FoundCheckpoint& item) {
  return std::any_of(item.entry.begin(), item.entry.end(), [&](const std::string& entry) {
    return std::find(request.fp8_models.begin(), request.fp8_models.end(), entry) !=
           request.fp8_models.end();
  });
}

}  // namespace

std::unique_ptr<LoadedModel> LoadedModel::open(const ModelFamily& family,
                                               const LoadRequest& request) {
  report::Problems problems;
  auto model = std::unique_ptr<LoadedModel>(new LoadedModel(family));

  // What was asked for.
  for (const std::string& name : request.components) {
    if (find_spec(family, name) != nullptr) continue;
    const std::string nearest = report::nearest_name(name, component_names(family));
    problems.add("component " + formats::quote_and_escape(name) + ": " +
                     std::string(family.name()) + " has " +
                     report::list_names(component_names(family)),
                 nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
  }
  const auto is_needed = [&](const ComponentSpec& spec) {
    if (request.components.empty()) return spec.required;
    return std::find(request.components.begin(), request.components.end(), spec.name) !=
           request.components.end();
  };
  at::ScalarType dtype = at::kFloat;
  if (request.dtype != "auto") problems.collect([&] { dtype = parse_dtype(request.dtype); });
  problems.collect([&] { model->device_ = device::choose(request.device); });

  // What is there: headers only.
  const FoundFiles found =
      find_model_files(request.model_paths, request.model_id_with_origin_paths, problems);
  check_fp8_models(request, found, problems);
  std::map<std::string, bool> from_folder;  // by component: the part was not named by itself
  std::vector<std::string> unknown_in_folder;
  for (const FoundCheckpoint& item : found.checkpoints) {
    problems.collect([&] {
      Checkpoint checkpoint = Checkpoint::open(item.files);
      std::optional<Detection> detection = detect_checkpoint(family, checkpoint, request.hints);
      if (!detection) {
        if (!item.in_model_folder) throw unknown_checkpoint(family, checkpoint);
        unknown_in_folder.push_back(checkpoint.name());
        return;
      }
      const std::string component = detection->component;
      const auto other = std::find_if(
          model->parts_.begin(), model->parts_.end(),
          [&](const LoadedPart& part) { return part.detection.component == component; });
      if (other == model->parts_.end()) {
        from_folder[component] = item.in_model_folder;
        model->parts_.push_back({std::move(*detection), std::move(checkpoint)});
        if (is_fp8_model(request, item)) model->storage_[component] = Storage::kFp8;
      } else if (item.in_model_folder != from_folder[component]) {
        // A file that was named by itself takes the place of the one in the model folder.
        if (item.in_model_folder) return;
        from_folder[component] = false;
        *other = {std::move(*detection), std::move(checkpoint)};
        model->storage_[component] = is_fp8_model(request, item) ? Storage::kFp8 : Storage::kPlain;
      } else {
        throw Error(ErrorCode::kInvalidArgument,
                    display_path(other->checkpoint.name()) + " and " +
                        display_path(checkpoint.name()) + ": both are the component " + component,
                    "pass one of them", "CHECKPOINT_TWICE");
      }
    });
  }

  ModelOptions options;
  for (const ComponentSpec& spec : family.components()) {
    if (spec.role == kTokenizerRole) {
      std::vector<std::string> places;
      if (!request.tokenizer_path.empty()) {
        places.push_back(request.tokenizer_path);
      } else {
        for (const LoadedPart& part : model->parts_) {
          const ComponentSpec* of = find_spec(family, part.detection.component);
          if (of == nullptr || of->role != "text_encoder") continue;
          places.push_back(part.checkpoint.folder());
          places.push_back(
              (fs::path(part.checkpoint.folder()) / ".." / spec.name).lexically_normal().string());
          places.push_back((fs::path(part.checkpoint.folder()) / ".." / "tokenizer")
                               .lexically_normal()
                               .string());
        }
        places.insert(places.begin(), found.tokenizers.begin(), found.tokenizers.end());
      }
      for (const std::string& place : places) {
        std::error_code failure;
        if (!holds_tokenizer(place) && !fs::is_regular_file(place, failure)) continue;
        options.files.emplace(std::string(spec.name), place);
        break;
      }
      if (!options.files.contains(spec.name)) {
        if (!request.tokenizer_path.empty()) {
          problems.add("--tokenizer_path " + display_path(request.tokenizer_path) +
                           ": holds no tokenizer.json and no vocab.json",
                       "pass the tokenizer's folder", ErrorCode::kNotFound);
        } else if (is_needed(spec)) {
          std::string searched;
          for (const std::string& place : places)
            searched += (searched.empty() ? "" : ", ") + display_path(place);
          problems.add("component " + std::string(spec.name) + " is missing" +
                           (searched.empty() ? "" : "; searched " + searched),
                       "pass its folder with --tokenizer_path", ErrorCode::kNotFound);
        }
      }
      continue;
    }
    if (!is_needed(spec) || model->find_part(spec.name) != nullptr) continue;
    std::string message = "component " + std::string(spec.name) + " is missing";
    if (!spec.help.empty()) message += " (" + std::string(spec.help) + ")";
    if (!unknown_in_folder.empty())
      message += "; not recognised: " + report::list_names(unknown_in_folder, 4);
    problems.add(message, "pass its files with --model_paths or --model_id_with_origin_paths",
                 ErrorCode::kNotFound);
  }
  problems.throw_if_any();

  std::vector<Detection> detections;
  for (const LoadedPart& part : model->parts_) detections.push_back(part.detection);
  model->model_ = plugins::guard(where(family, "make_model"),
                                 [&] { return family.make_model(detections, options); });
  model->files_ = options.files;
  if (model->model_ == nullptr)
    throw Error(ErrorCode::kInternal, where(family, "make_model") + ": gave no model");
  check_storage(family, request, *model->model_, model->parts_, problems);
  for (const auto& [component, storage] : request.storage) model->storage_[component] = storage;

  for (const LoadedPart& part : model->parts_) {
    problems.collect([&] {
      const std::string& name = part.detection.component;
      WeightBinding binding = plugins::guard(where(family, "weight_map"), [&] {
        return bind_weights(family.weight_map(part.detection), part.detection.prefix,
                            part.checkpoint.index(), model->model_->component(name));
      });
      binding.throw_unless_complete(part.checkpoint.name(),
                                    name + " of " + std::string(family.name()));
      model->bindings_.emplace(name, std::move(binding));
    });
  }
  problems.throw_if_any();

  if (request.dtype == "auto") {
    if (!model->device_.is_cpu()) {
      dtype = at::kBFloat16;
    } else if (const LoadedPart* part = model->denoiser(); part != nullptr) {
      dtype = published_dtype(part->checkpoint.index());
    } else if (!model->parts_.empty()) {
      dtype = published_dtype(model->parts_.front().checkpoint.index());
    }
  }
  model->dtype_ = dtype;
  return model;
}

std::unique_ptr<LoadedModel> LoadedModel::open_empty(const ModelFamily& family) {
  auto model = std::unique_ptr<LoadedModel>(new LoadedModel(family));
  model->model_ =
      plugins::guard(where(family, "make_model"), [&] { return family.make_model({}, {}); });
  if (model->model_ == nullptr)
    throw Error(ErrorCode::kInternal, where(family, "make_model") + ": gave no model");
  return model;
}

LoadedModel::~LoadedModel() = default;

Storage LoadedModel::storage(std::string_view component) const {
  const auto found = storage_.find(component);
  return found == storage_.end() ? Storage::kPlain : found->second;
}

StoragePlan LoadedModel::storage_plan(std::string_view component) {
  const Storage storage = this->storage(component);
  if (storage == Storage::kPlain) return {};
  return {storage, storable_weights(*model_, component)};
}

const LoadedPart* LoadedModel::find_part(std::string_view component) const {
  for (const LoadedPart& part : parts_) {
    if (part.detection.component == component) return &part;
  }
  return nullptr;
}

const LoadedPart* LoadedModel::denoiser() const {
  for (const LoadedPart& part : parts_) {
    const ComponentSpec* spec = find_spec(family_, part.detection.component);
    if (spec != nullptr && spec->role == "dit") return &part;
  }
  return nullptr;
}

void LoadedModel::load_component(std::string_view name, const LoadProgressCallback& progress) {
  const LoadedPart* part = find_part(name);
  if (part == nullptr)
    throw Error(ErrorCode::kNotFound,
                "component " + formats::quote_and_escape(name) + " was not given",
                "pass its files with --model_paths or --model_id_with_origin_paths");
  if (is_loaded(name)) return;
  const WeightBinding& binding = bindings_.find(name)->second;
  const auto start = std::chrono::steady_clock::now();
  LoadProgress state;
  state.component = part->detection.component;
  state.bytes_total = bytes_to_read(binding, part->checkpoint);
  const auto report = [&](bool done) {
    state.done = done;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (progress) progress(state);
  };
  plugins::guard("loading " + std::string(name), [&] {
    load_weights(
        binding, part->checkpoint, dtype_, device_,
        [&](int64_t bytes) {
          state.bytes_done = bytes;
          report(/*done=*/false);
        },
        storage_plan(name));
  });
  report(/*done=*/true);
  loaded_[std::string(name)] = true;
  for (const auto& held : listeners_) {
    if (const auto listener = held.lock()) (*listener)(name);
  }
}

std::shared_ptr<const LoadedModel::Listener> LoadedModel::on_loaded(Listener listener) {
  std::erase_if(listeners_, [](const auto& held) { return held.expired(); });
  auto shared = std::make_shared<const Listener>(std::move(listener));
  listeners_.push_back(shared);
  return shared;
}

void LoadedModel::unload_component(std::string_view name) {
  const auto binding = bindings_.find(name);
  if (binding == bindings_.end()) return;
  for (const BoundWeight& bound : binding->second.weights) {
    bound.weight->set_store(nullptr);
    bound.weight->keep_derived({});
  }
  loaded_[std::string(name)] = false;
  device::release_freed_memory();
}

bool LoadedModel::is_loaded(std::string_view name) const {
  const auto it = loaded_.find(name);
  return it != loaded_.end() && it->second;
}

}  // namespace atelier::checkpoint
