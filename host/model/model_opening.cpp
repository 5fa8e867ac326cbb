// From what the user named to a model without weights: LoadedModel::open(), step by step.
#include <algorithm>
#include <filesystem>
#include <set>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/device/cuda.h"
#include "host/device/simulated_device.h"
#include "host/files/file_reader.h"
#include "host/files/model_paths.h"
#include "host/model/components.h"
#include "host/model/config_check.h"
#include "host/model/model_loader.h"
#include "host/model/request_checks.h"
#include "host/model/stages.h"
#include "host/report/problems.h"

namespace atelier::model {

namespace fs = std::filesystem;

namespace {

std::string where(const ModelFamily& family, std::string_view call) {
  return std::string(family.name()) + "." + std::string(call);
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

bool is_fp8_model(const LoadOptions& request, const files::FoundCheckpoint& item) {
  return std::any_of(item.entry.begin(), item.entry.end(), [&](const std::string& entry) {
    return std::find(request.fp8_models.begin(), request.fp8_models.end(), entry) !=
           request.fp8_models.end();
  });
}

const QuantOption* quant_option_of(const LoadOptions& request, const files::FoundCheckpoint& item) {
  const auto is_of_item = [&](const QuantOption& option) {
    return std::ranges::find(item.entry, option.entry) != item.entry.end();
  };
  const auto found = std::ranges::find_if(request.quant_options, is_of_item);
  return found == request.quant_options.end() ? nullptr : &*found;
}

// Where the tokenizer of these parts may be, if the user did not say it.
std::vector<std::string> tokenizer_places(const ModelFamily& family,
                                          const std::vector<LoadedPart>& parts,
                                          const ComponentSpec& tokenizer) {
  std::vector<std::string> places;
  for (const LoadedPart& part : parts) {
    if (!has_role(family, part.detection.component, Role::kTextEncoder)) continue;
    const fs::path folder(part.checkpoint.folder());
    places.push_back(folder.string());
    for (const std::string_view name : {tokenizer.name, std::string_view("tokenizer")})
      places.push_back((folder / ".." / name).lexically_normal().string());
    for (const std::string& below : files::tokenizers_below(folder.string())) {
      if (is_called(tokenizer, fs::path(below).filename().string())) places.push_back(below);
    }
  }
  return places;
}

}  // namespace

class LoadedModel::Opening {
 public:
  Opening(const ModelFamily& family, const LoadOptions& request)
      : family_(family), request_(request), model_(new LoadedModel(family)) {}

  std::unique_ptr<LoadedModel> open() {
    check_names();
    choose_device();
    find_parts();
    for (const ComponentSpec& spec : family_.components()) {
      if (!may_have(spec)) continue;
      if (spec.role == Role::kTokenizer) {
        find_tokenizer(spec);
      } else {
        check_found(spec);
      }
    }
    problems_.throw_if_any();
    model_->stages_ = stages_of(family_, model_->parts_);
    make_model();
    arrange();
    for (const LoadedPart& part : model_->parts_) problems_.collect([&] { bind(part); });
    problems_.throw_if_any();
    model_->dtype_ = choose_dtype();
    for (RangedDenoiser& denoiser : model_->stages_.denoisers)
      denoiser.dtype = model_->dtype(denoiser.name());
    check_compute(*model_, request_, problems_);
    problems_.throw_if_any();
    model_->place_blocks();
    make_transfer_device();
    return std::move(model_);
  }

 private:
  // What was asked for, before any file is looked at.
  void check_names() {
    for (const std::string& name : request_.components) {
      if (find_component(family_, name) != nullptr) continue;
      const std::vector<std::string> known = component_names(family_);
      const std::string nearest = report::nearest_name(name, known);
      problems_.add("component " + formats::quote_and_escape(name) + ": " +
                        std::string(family_.name()) + " has " + report::list_names(known),
                    nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
    }
    if (request_.dtype != "auto")
      problems_.collect([&] { asked_dtype_ = weights::dtype_named(request_.dtype); });
    for (const auto& [component, dtype] : request_.dtypes)
      check_component(family_, component, "--dtype", problems_);
    model_->dtypes_ = request_.dtypes;
    for (const std::string& name : component_names(family_)) {
      if (find_component(family_, name)->is_float32) model_->dtypes_.try_emplace(name, at::kFloat);
    }
  }

  void choose_device() {
    problems_.collect([&] {
      model_->simulated_ = device::parse_simulated_device(request_.device);
      model_->device_ =
          model_->is_simulated() ? at::Device(at::kCPU) : device::choose(request_.device);
    });
  }

  // What is there: headers only.
  void find_parts() {
    const size_t before = problems_.size();
    found_ = files::find_model_files(request_.model_paths, request_.model_id_with_origin_paths,
                                     problems_);
    check_entries(request_, found_, problems_);
    for (RecognisedCheckpoint& checkpoint :
         recognise(family_, found_.checkpoints, request_.hints, request_.lenders, problems_))
      take_parts(checkpoint);
    leave_out_other_variants();
    check_folder();
    are_files_right_ = problems_.size() == before;
  }

  static int rank_of(const RecognisedCheckpoint& item) {
    if (item.found.in_model_folder) return item.checkpoint.name().ends_with(".pth") ? -1 : 0;
    return item.parts.size() > 1 ? 1 : kNamedAlone;
  }

  // Chooses one part for each component. In a model folder safetensors go before archives. A file
  // of several components takes the place of what a model folder has, and a file of one component
  // that is named by itself the place of both.
  void take_parts(RecognisedCheckpoint& item) {
    if (item.parts.empty()) unknown_.push_back(item.checkpoint.name());
    const int rank = rank_of(item);
    const QuantOption* option = quant_option_of(request_, item.found);
    const weights::Storage storage = option != nullptr ? option->storage
                                     : is_fp8_model(request_, item.found)
                                         ? weights::Storage::kFp8
                                         : weights::Storage::kPlain;
    for (LoadedPart& part : item.parts) {
      const std::string component = part.detection.component;
      const auto other = std::ranges::find_if(model_->parts_, [&](const LoadedPart& taken) {
        return taken.detection.component == component;
      });
      if (other == model_->parts_.end()) {
        model_->parts_.push_back(std::move(part));
        if (storage != weights::Storage::kPlain) model_->storage_[component] = storage;
      } else if (rank > ranks_[component]) {
        *other = std::move(part);
        model_->storage_[component] = storage;
      } else if (rank < ranks_[component]) {
        continue;
      } else {
        problems_.add(Error(ErrorCode::kInvalidArgument,
                            files::display_path(other->checkpoint.name()) + " and " +
                                files::display_path(item.checkpoint.name()) +
                                ": both are the component " + component,
                            has_twin(family_, component)
                                ? "pass one of them, or say by --model_hints which is which"
                                : "pass one of them",
                            "CHECKPOINT_TWICE"));
        return;
      }
      ranks_[component] = rank;
      model_->quant_options_.erase(component);
      if (option != nullptr) model_->quant_options_.emplace(component, *option);
    }
  }

  // Whether a model of the variant has the component; one of unknown variant may.
  bool may_have(const ComponentSpec& spec) const {
    return variant_.empty() || holds_for(spec, variant_);
  }

  // Takes out what the denoiser's variant does without. A file that holds such a part alone was
  // named for nothing; others may well hold more than is used.
  void leave_out_other_variants() {
    problems_.collect([&] {
      const Stages stages = stages_of(family_, model_->parts_);
      variant_ = stages.variant;
      has_denoiser_ = stages.first() != nullptr;
    });
    std::erase_if(model_->parts_, [&](const LoadedPart& part) {
      const ComponentSpec& spec = *find_component(family_, part.detection.component);
      if (may_have(spec)) return false;
      if (ranks_[part.detection.component] == kNamedAlone)
        problems_.add(Error(ErrorCode::kInvalidArgument,
                            files::display_path(part.checkpoint.name()) + ": is the component " +
                                part.detection.component + ", which the variant " +
                                formats::quote_and_escape(variant_) + " does without",
                            "leave it out; it is for " + formats::quote_and_escape(spec.variants),
                            "CHECKPOINT_VARIANT"));
      return true;
    });
  }

  // What the model's folder says beside its components, each file of it once.
  void check_folder() {
    std::set<std::string> checked;
    for (const LoadedPart& part : model_->parts_) {
      problems_.collect([&] {
        const ConfigFields fields = family_.config_fields(part.detection);
        for (const FolderFile& file : folder_files(part.model_folder())) {
          if (has_rows_for(fields, file) && checked.insert(file.path).second)
            check_folder_file(fields, file);
        }
      });
    }
  }

  bool is_needed(const ComponentSpec& spec) const {
    if (!holds_for(spec, variant_)) return false;
    if (request_.components.empty()) return spec.required;
    return std::ranges::find(request_.components, spec.name, spec_name) !=
           request_.components.end();
  }

  void find_tokenizer(const ComponentSpec& spec) {
    const bool is_said = !request_.tokenizer_path.empty();
    std::vector<std::string> places = {request_.tokenizer_path};
    if (!is_said) {
      places = tokenizer_places(family_, model_->parts_, spec);
      places.insert(places.begin(), found_.tokenizers.begin(), found_.tokenizers.end());
      std::ranges::stable_partition(places, [&](const std::string& place) {
        return std::ranges::any_of(
            fs::path(place), [&](const fs::path& name) { return is_called(spec, name.string()); });
      });
    }
    for (const std::string& place : places) {
      std::error_code failure;
      if (!files::holds_tokenizer(place) && !fs::is_regular_file(place, failure)) continue;
      model_->files_.emplace(std::string(spec.name), place);
      return;
    }
    if (is_said) {
      problems_.add("--tokenizer_path " + files::display_path(request_.tokenizer_path) +
                        ": holds no tokenizer.json, tokenizer.model or vocab.json",
                    "pass the tokenizer's folder", ErrorCode::kNotFound);
    } else if (is_needed(spec) && are_files_right_) {
      std::string searched;
      for (const std::string& place : places)
        searched += (searched.empty() ? "; searched " : ", ") + files::display_path(place);
      problems_.add("component " + std::string(spec.name) + " is missing" + searched,
                    "pass its folder with --tokenizer_path", ErrorCode::kNotFound);
    }
  }

  // What is missing may be what is wrong with the files.
  void check_found(const ComponentSpec& spec) {
    if (!is_needed(spec) || model_->find_part(spec.name) != nullptr || !are_files_right_) return;
    const bool denoises = spec.role == Role::kDenoiser;
    if (denoises && request_.one_denoiser_is_enough && has_denoiser_) return;
    std::string message = "component " + std::string(spec.name) + " is missing";
    if (!spec.help.empty()) message += " (" + std::string(spec.help) + ")";
    if (!unknown_.empty()) message += "; not recognised: " + report::list_names(unknown_, 4);
    problems_.add(message, "pass its files with --model_paths or --model_id_with_origin_paths",
                  ErrorCode::kNotFound);
  }

  // Modules whose weights are declared, and not yet loaded.
  void make_model() {
    std::vector<Detection> detections;
    for (const LoadedPart& part : model_->parts_) detections.push_back(part.detection);
    const ModelOptions options = {.files = model_->files_, .cuts_texts = request_.cuts_texts};
    model_->model_ = family_.make_model(detections, options);
    if (model_->model_ == nullptr)
      throw Error(ErrorCode::kInternal, where(family_, "make_model") + ": gave no model");
  }

  // In what weights rest, where blocks do, and how products are made.
  void arrange() {
    check_storage(family_, request_.storage, *model_->model_, model_->parts_, problems_);
    model_->plans_ = residency_of(request_.placement, model_->placed_components(),
                                  !model_->is_simulated() && model_->device_.is_cpu(), problems_);
    for (const auto& [component, storage] : request_.storage) {
      model_->storage_[component] = storage;
      model_->quant_options_.erase(component);
    }
    for (const LoadedPart& part : model_->parts_) keep_packed(part);
    model_->compute_ = request_.compute;
    model_->prepares_levels_ = request_.prepares_levels;
  }

  // Weights that are published as codes stay so unless the user says otherwise.
  void keep_packed(const LoadedPart& part) {
    const std::string& name = part.detection.component;
    if (part.checkpoint.packed().empty() || request_.storage.contains(name)) return;
    if (model_->storage(name) != weights::Storage::kPlain) return;  // its entry says how
    if (!weights::storable_weights(*model_->model_, name).empty())
      model_->storage_[name] = weights::Storage::kPublished;
  }

  void bind(const LoadedPart& part) {
    const std::string& name = part.detection.component;
    weights::WeightBinding binding =
        weights::bind_weights(family_.weight_map(part.detection), part.detection.prefix,
                              part.checkpoint.index(), model_->model_->component(name));
    binding.throw_unless_complete(part.checkpoint.name(),
                                  name + " of " + std::string(family_.name()));
    model_->bindings_.emplace(name, std::move(binding));
  }

  at::ScalarType choose_dtype() const {
    if (request_.dtype != "auto") return asked_dtype_;
    if (!model_->device_.is_cpu()) return at::kBFloat16;
    if (const RangedDenoiser* denoiser = model_->stages_.first())
      return published_dtype(model_->find_part(denoiser->name())->checkpoint.index());
    return model_->parts_.empty() ? at::kFloat
                                  : published_dtype(model_->parts_.front().checkpoint.index());
  }

  void make_transfer_device() {
    if (model_->simulated_) {
      model_->transfer_ = memory::make_simulated_device(*model_->simulated_);
    } else if (!model_->plans_.empty()) {
      model_->transfer_ = memory::make_transfer_device(model_->device_);
    }
  }

  const ModelFamily& family_;
  const LoadOptions& request_;
  std::unique_ptr<LoadedModel> model_;
  report::Problems problems_;
  at::ScalarType asked_dtype_ = at::kFloat;
  files::FoundFiles found_;
  bool are_files_right_ = true;
  static constexpr int kNamedAlone = 2;  // see take_parts()
  std::map<std::string, int> ranks_;     // by component, of the part that is taken
  std::string variant_;                  // see Stages::variant
  bool has_denoiser_ = false;
  std::vector<std::string> unknown_;  // checkpoints that are nothing of the family's
};

std::unique_ptr<LoadedModel> LoadedModel::open(const ModelFamily& family,
                                               const LoadOptions& request) {
  return Opening(family, request).open();
}

std::unique_ptr<LoadedModel> LoadedModel::open_empty(const ModelFamily& family) {
  auto model = std::unique_ptr<LoadedModel>(new LoadedModel(family));
  model->model_ = family.make_model({}, {});
  if (model->model_ == nullptr)
    throw Error(ErrorCode::kInternal, where(family, "make_model") + ": gave no model");
  model->stages_ = stages_of(family, {});
  return model;
}

}  // namespace atelier::model
