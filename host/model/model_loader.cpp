#include "host/model/model_loader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/device/cpu_memory.h"
#include "host/device/cuda.h"
#include "host/device/stand_in.h"
#include "host/files/file_reader.h"
#include "host/files/model_paths.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"

namespace atelier::model {

namespace fs = std::filesystem;

namespace {

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

std::string place_of(const std::string& flag, const std::string& component) {
  return flag + ": component " + formats::quote_and_escape(component) + ": ";
}

// Whether the family has a component of that name; if not, that is a problem.
bool check_component(const ModelFamily& family, const std::string& component,
                     const std::string& flag, report::Problems& problems) {
  if (find_spec(family, component) != nullptr) return true;
  const std::string nearest = report::nearest_name(component, component_names(family));
  problems.add(place_of(flag, component) + std::string(family.name()) + " has " +
                   report::list_names(component_names(family)),
               nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
  return false;
}

void check_storage(const ModelFamily& family, const LoadRequest& request, Model& model,
                   const std::vector<LoadedPart>& parts, report::Problems& problems) {
  for (const auto& [component, storage] : request.storage) {
    if (!check_component(family, component, "--storage", problems)) continue;
    const std::string place = place_of("--storage", component);
    const bool is_here = std::any_of(parts.begin(), parts.end(), [&](const LoadedPart& part) {
      return part.detection.component == component;
    });
    const bool is_plain = storage == weights::Storage::kPlain || storage == weights::Storage::kBf16;
    if (is_here && !is_plain && weights::storable_weights(model, component).empty())
      problems.add(place + "it has no linear layers in blocks, whose weights could be stored so",
                   "leave it out");
  }
}

void check_compute(const LoadedModel& model, const LoadRequest& request,
                   report::Problems& problems) {
  for (const auto& [component, storage] : request.storage) {
    if (storage == weights::Storage::kBf16 && model.dtype(component) != at::kBFloat16)
      problems.add(place_of("--storage", component) + "its weights rest in --dtype, " +
                       std::string(at::toString(model.dtype(component))),
                   "pass --dtype bfloat16, or leave it out");
  }
  for (const auto& [component, compute] : request.compute) {
    if (!check_component(model.family(), component, "--compute", problems)) continue;
    if (model.find_part(component) == nullptr) continue;
    const weights::Storage storage = model.storage(component);
    if (compute == weights::Compute::kBf16 && model.dtype(component) != at::kBFloat16)
      problems.add(place_of("--compute", component) + "its weights are " +
                       std::string(at::toString(model.dtype(component))) +
                       ", and are multiplied as such",
                   "pass --dtype bfloat16, or leave it out");
    if (compute == weights::Compute::kW8A8 && storage != weights::Storage::kFp8 &&
        storage != weights::Storage::kInt8)
      problems.add(place_of("--compute", component) +
                       "w8a8 multiplies 8-bit codes, and its weights rest " +
                       (storage == weights::Storage::kPlain ? "in --dtype" : "as published"),
                   "add --storage " + component + "=int8 or " + component + "=fp8");
  }
}

void check_fp8_models(const LoadRequest& request, const files::FoundFiles& found,
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

// `is_host`: the device is the host, and only what is named goes elsewhere.
std::map<std::string, memory::ResidencyPlan, std::less<>> residency_of(
    const LoadRequest& request, const PlacedComponents& components, bool is_host,
    report::Problems& problems) {
  auto plans = plan_residency(request.placement, components, problems);
  if (is_host) {
    std::erase_if(
        plans, [&](const auto& plan) { return !request.placement.offload.contains(plan.first); });
  }
  return plans;
}

bool is_fp8_model(const LoadRequest& request, const files::FoundCheckpoint& item) {
  return std::any_of(item.entry.begin(), item.entry.end(), [&](const std::string& entry) {
    return std::find(request.fp8_models.begin(), request.fp8_models.end(), entry) !=
           request.fp8_models.end();
  });
}

}  // namespace

// Of each component one part. A file of several components takes the place of what a model folder
// has, and a file of one component that is named by itself the place of both. Returns the names of
// checkpoints that are nothing of the family's.
std::vector<std::string> LoadedModel::take_parts(const LoadRequest& request,
                                                 std::vector<RecognisedCheckpoint> checkpoints,
                                                 report::Problems& problems) {
  std::map<std::string, int> ranks;  // by component, of the part that is taken
  std::vector<std::string> unknown;
  for (RecognisedCheckpoint& item : checkpoints) {
    if (item.parts.empty()) unknown.push_back(item.checkpoint.name());
    const int rank = item.found.in_model_folder ? 0 : item.parts.size() > 1 ? 1 : 2;
    const weights::Storage storage =
        is_fp8_model(request, item.found) ? weights::Storage::kFp8 : weights::Storage::kPlain;
    for (LoadedPart& part : item.parts) {
      const std::string component = part.detection.component;
      const auto other = std::find_if(parts_.begin(), parts_.end(), [&](const LoadedPart& taken) {
        return taken.detection.component == component;
      });
      if (other == parts_.end()) {
        ranks[component] = rank;
        parts_.push_back(std::move(part));
        if (storage != weights::Storage::kPlain) storage_[component] = storage;
      } else if (rank != ranks[component]) {
        if (rank < ranks[component]) continue;
        ranks[component] = rank;
        *other = std::move(part);
        storage_[component] = storage;
      } else {
        problems.add(Error(ErrorCode::kInvalidArgument,
                           files::display_path(other->checkpoint.name()) + " and " +
                               files::display_path(item.checkpoint.name()) +
                               ": both are the component " + component,
                           "pass one of them", "CHECKPOINT_TWICE"));
        break;
      }
    }
  }
  return unknown;
}

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
  if (request.dtype != "auto")
    problems.collect([&] { dtype = weights::dtype_named(request.dtype); });
  for (const auto& [component, named] : request.dtypes)
    check_component(family, component, "--dtype", problems);
  model->dtypes_ = request.dtypes;
  std::optional<memory::StandInOptions> stand_in;
  problems.collect([&] {
    stand_in = device::parse_stand_in(request.device);
    model->is_stand_in_ = stand_in.has_value();
    model->device_ = stand_in ? at::Device(at::kCPU) : device::choose(request.device);
  });

  // What is there: headers only.
  const size_t before_files = problems.size();
  const files::FoundFiles found =
      files::find_model_files(request.model_paths, request.model_id_with_origin_paths, problems);
  check_fp8_models(request, found, problems);
  const std::vector<std::string> unknown_in_folder = model->take_parts(
      request, recognise(family, found.checkpoints, request.hints, request.lenders, problems),
      problems);

  ModelOptions options = {.files = {}, .cuts_texts = request.cuts_texts};
  // What is missing may be what is wrong.
  const bool are_files_right = problems.size() == before_files;
  for (const ComponentSpec& spec : family.components()) {
    if (spec.role == Role::kTokenizer) {
      std::vector<std::string> places;
      if (!request.tokenizer_path.empty()) {
        places.push_back(request.tokenizer_path);
      } else {
        for (const LoadedPart& part : model->parts_) {
          const ComponentSpec* of = find_spec(family, part.detection.component);
          if (of == nullptr || of->role != Role::kTextEncoder) continue;
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
        if (!files::holds_tokenizer(place) && !fs::is_regular_file(place, failure)) continue;
        options.files.emplace(std::string(spec.name), place);
        break;
      }
      if (!options.files.contains(spec.name)) {
        if (!request.tokenizer_path.empty()) {
          problems.add("--tokenizer_path " + files::display_path(request.tokenizer_path) +
                           ": holds no tokenizer.json, tokenizer.model or vocab.json",
                       "pass the tokenizer's folder", ErrorCode::kNotFound);
        } else if (is_needed(spec) && are_files_right) {
          std::string searched;
          for (const std::string& place : places)
            searched += (searched.empty() ? "" : ", ") + files::display_path(place);
          problems.add("component " + std::string(spec.name) + " is missing" +
                           (searched.empty() ? "" : "; searched " + searched),
                       "pass its folder with --tokenizer_path", ErrorCode::kNotFound);
        }
      }
      continue;
    }
    if (!is_needed(spec) || model->find_part(spec.name) != nullptr || !are_files_right) continue;
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
  model->plans_ = residency_of(request, model->placed_components(),
                               !stand_in && model->device_.is_cpu(), problems);
  for (const auto& [component, storage] : request.storage) model->storage_[component] = storage;
  model->compute_ = request.compute;

  for (const LoadedPart& part : model->parts_) {
    problems.collect([&] {
      const std::string& name = part.detection.component;
      weights::WeightBinding binding = plugins::guard(where(family, "weight_map"), [&] {
        return weights::bind_weights(family.weight_map(part.detection), part.detection.prefix,
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
  check_compute(*model, request, problems);
  problems.throw_if_any();
  model->prepares_levels_ = request.prepares_levels;
  model->place_blocks();
  if (stand_in) {
    model->port_ = memory::make_stand_in(*stand_in);
  } else if (!model->plans_.empty()) {
    model->port_ = memory::make_port(model->device_);
  }
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

namespace {

// Of the same component, one after the other.
void add(memory::Residency::Stats& total, const memory::Residency::Stats& stats) {
  total.device_bytes = std::max(total.device_bytes, stats.device_bytes);
  total.host_bytes = std::max(total.host_bytes, stats.host_bytes);
  total.copied_bytes += stats.copied_bytes;
  total.copies += stats.copies;
  total.late += stats.late;
  total.waited_seconds += stats.waited_seconds;
}

std::string size_text(int64_t bytes) {
  return report::format_bytes(static_cast<uint64_t>(bytes));
}

std::string describe(const memory::ResidencyPlan& plan, const memory::Residency::Stats& stats) {
  const auto stay = std::count(plan.blocks.begin(), plan.blocks.end(), memory::Place::kDevice);
  std::string text = std::to_string(stay) + " of " + std::to_string(plan.blocks.size()) +
                     " blocks stayed on the device, which held " + size_text(stats.device_bytes) +
                     "; the host held " + size_text(stats.host_bytes) + "; " +
                     size_text(stats.copied_bytes) + " came in " + std::to_string(stats.copies) +
                     " copies, " + std::to_string(stats.late) + " of them late";
  if (stats.waited_seconds > 0) {
    char waited[40];
    std::snprintf(waited, sizeof waited, ", %.2f s were waited", stats.waited_seconds);
    text += waited;
  }
  return text;
}

}  // namespace

// Passes blocks on to whatever streams at the moment.
class LoadedModel::Runner final : public BlockRunner {
 public:
  Tensors run(Block& block, const Tensors& inputs) override {
    ops::check_stop();
    return now().run(block, inputs);
  }
  std::shared_ptr<void> hold(Block& block) override { return now().hold(block); }

  void stream(std::vector<memory::Residency*> components) {
    streaming_.reset();
    if (!components.empty()) streaming_.emplace(direct_, std::move(components));
  }

 private:
  BlockRunner& now() {
    if (streaming_) return *streaming_;
    return direct_;
  }

  DirectRunner direct_;
  std::optional<memory::StreamingRunner> streaming_;
};

LoadedModel::LoadedModel(const ModelFamily& family)
    : family_(family), runner_(std::make_unique<Runner>()) {}

LoadedModel::~LoadedModel() = default;

at::ScalarType LoadedModel::dtype() const {
  const LoadedPart* part = denoiser();
  return part == nullptr ? dtype_ : dtype(part->detection.component);
}

at::ScalarType LoadedModel::dtype(std::string_view component) const {
  const auto named = dtypes_.find(component);
  return named == dtypes_.end() ? dtype_ : named->second;
}

at::ScalarType LoadedModel::decoder_dtype() const {
  for (const ComponentSpec& spec : family_.components())
    if (spec.role == Role::kVae && find_part(spec.name) != nullptr) return dtype(spec.name);
  return dtype_;
}

PlacedComponents LoadedModel::placed_components() {
  PlacedComponents components;
  for (const ComponentSpec& spec : family_.components()) {
    const std::string name(spec.name);
    components.known.push_back(name);
    if (spec.role == Role::kTokenizer) components.blocks[name] = 0;
    if (find_part(name) != nullptr) components.blocks[name] = std::ssize(model_->blocks(name));
    if (spec.role == Role::kDenoiser) components.denoisers.push_back(name);
  }
  return components;
}

// Decides where the weights of blocks rest. Reads no values.
void LoadedModel::place_blocks() {
  bool holds_on_host = false;
  for (auto& [name, plan] : plans_) {
    const std::vector<Block*> blocks = model_->blocks(name);
    const int64_t moved =
        keep_on_host_what_no_file_has(plan, blocks, bindings_.find(name)->second,
                                      find_part(name)->checkpoint, dtype(name), storage_plan(name));
    if (moved > 0)
      notes_.push_back("--offload " + name + "=disk: " + std::to_string(moved) + " of " +
                       std::to_string(blocks.size()) +
                       " blocks rest in host memory: not all of their weights lie in the files as "
                       "they are computed with (--dtype, --storage)");
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (plan.blocks[i] == memory::Place::kDevice) continue;
      holds_on_host |= plan.blocks[i] == memory::Place::kHost;
      for (const Weight* weight : weights_of(*blocks[i])) places_[weight] = plan.blocks[i];
    }
  }
  if (holds_on_host && device_.is_cpu() && !is_stand_in_)
    notes_.push_back(
        "--offload to host memory saves nothing on the CPU, where everything is in host memory");
}

void LoadedModel::rearrange(const LoadRequest& request) {
  report::Problems problems;
  check_storage(family_, request, *model_, parts_, problems);
  auto plans =
      residency_of(request, placed_components(), !is_stand_in_ && device_.is_cpu(), problems);
  problems.throw_if_any();
  plans_ = std::move(plans);
  for (const auto& [component, storage] : request.storage) storage_[component] = storage;
  places_.clear();
  notes_.clear();
  place_blocks();
  if (port_ == nullptr && !plans_.empty()) port_ = memory::make_port(device_);
}

BlockRunner& LoadedModel::runner() {
  return *runner_;
}

void LoadedModel::keep_on_device(const std::set<const Weight*>& weights) {
  for (auto& [name, plan] : plans_) {
    const std::vector<Block*> blocks = model_->blocks(name);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::set<const Weight*> own = weights_of(*blocks[i]);
      const bool stays = std::any_of(
          own.begin(), own.end(), [&](const Weight* weight) { return weights.contains(weight); });
      if (!stays) continue;
      plan.blocks[i] = memory::Place::kDevice;
      for (const Weight* weight : own) places_.erase(weight);
    }
  }
}

bool LoadedModel::is_streamed(std::string_view component) const {
  const auto plan = plans_.find(component);
  if (plan == plans_.end()) return false;
  const auto& blocks = plan->second.blocks;
  return std::any_of(blocks.begin(), blocks.end(),
                     [](memory::Place place) { return place != memory::Place::kDevice; });
}

memory::Residency* LoadedModel::residency(std::string_view component) {
  const auto found = residencies_.find(component);
  return found == residencies_.end() ? nullptr : found->second.get();
}

weights::Storage LoadedModel::storage(std::string_view component) const {
  const auto found = storage_.find(component);
  const bool is_plain = found == storage_.end() || found->second == weights::Storage::kBf16;
  return is_plain ? weights::Storage::kPlain : found->second;
}

weights::Compute LoadedModel::compute(std::string_view component) const {
  const auto found = compute_.find(component);
  return found == compute_.end() ? weights::Compute::kPlain : found->second;
}

weights::StoragePlan LoadedModel::storage_plan(std::string_view component) {
  const weights::Storage storage = this->storage(component);
  if (storage == weights::Storage::kPlain) return {};
  weights::StoragePlan plan = {.storage = storage,
                               .weights = weights::storable_weights(*model_, component)};
  if (compute(component) == weights::Compute::kW8A8)
    plan.w8a8 = weights::w8a8_weights(*model_, component);
  return plan;
}

const LoadedPart* LoadedModel::find_part(std::string_view component) const {
  for (const LoadedPart& part : parts_) {
    if (part.detection.component == component) return &part;
  }
  return nullptr;
}

std::vector<const LoadedPart*> LoadedModel::denoisers() const {
  std::vector<const LoadedPart*> found;
  for (const LoadedPart& part : parts_) {
    const ComponentSpec* spec = find_spec(family_, part.detection.component);
    if (spec != nullptr && spec->role == Role::kDenoiser) found.push_back(&part);
  }
  std::ranges::stable_sort(found, std::greater(), [&](const LoadedPart* part) {
    return family_.sigma_range(part->detection).high;
  });
  return found;
}

const LoadedPart* LoadedModel::denoiser() const {
  const std::vector<const LoadedPart*> all = denoisers();
  return all.empty() ? nullptr : all.front();
}

void LoadedModel::load_component(std::string_view name, const LoadProgressCallback& progress) {
  const LoadedPart* part = find_part(name);
  if (part == nullptr)
    throw Error(ErrorCode::kNotFound,
                "component " + formats::quote_and_escape(name) + " was not given",
                "pass its files with --model_paths or --model_id_with_origin_paths");
  if (is_loaded(name)) return;
  load_component_from(name, bindings_.find(name)->second, part->checkpoint, progress);
}

void LoadedModel::load_component_from(std::string_view name, const weights::WeightBinding& binding,
                                      const files::Checkpoint& checkpoint,
                                      const LoadProgressCallback& progress) {
  if (is_loaded(name)) unload_component(name);
  const auto start = std::chrono::steady_clock::now();
  LoadProgress state;
  state.component = name;
  state.bytes_total = weights::bytes_to_read(binding, checkpoint);
  const auto report = [&](bool done) {
    state.done = done;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (progress) progress(state);
  };
  try {
    plugins::guard("loading " + std::string(name), [&] {
      fill(name, binding, checkpoint, [&](int64_t bytes) {
        ops::check_stop();
        state.bytes_done = bytes;
        report(/*done=*/false);
      });
    });
  } catch (const Error& error) {
    unload_component(name);
    if (error.code() != ErrorCode::kOutOfMemory || port_ == nullptr || is_streamed(name)) throw;
    throw Error(
        error.code(), error.message(),
        "let blocks rest elsewhere, for instance with --offload " + std::string(name) + "=host",
        error.tag());
  } catch (...) {
    unload_component(name);
    throw;
  }
  report(/*done=*/true);
  loaded_[std::string(name)] = true;
  for (const auto& held : listeners_) {
    if (const auto listener = held.lock()) (*listener)(name);
  }
}

void LoadedModel::fill(std::string_view name, const weights::WeightBinding& binding,
                       const files::Checkpoint& checkpoint,
                       const std::function<void(int64_t)>& progress) {
  weights::load_weights(binding, checkpoint, dtype(name), device_, progress, storage_plan(name),
                        {.places = places_, .maps = !is_stand_in_});
  if (!is_streamed(name)) return;
  std::set<const Weight*> on_demand;
  if (prepares_levels_) {
    for (const WeightPtr& weight : model_->level_weights(name)) on_demand.insert(weight.get());
  }
  residencies_[std::string(name)] = std::make_unique<memory::Residency>(
      model_->blocks(name), plans_.find(name)->second, *port_, on_demand);
  device::release_freed_memory();
  stream_residencies();
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
  drop_residency(name);
  for (const weights::BoundWeight& bound : binding->second.weights) {
    bound.weight->state().set_store(nullptr);
    bound.weight->state().keep_derived({});
  }
  loaded_[std::string(name)] = false;
  device::release_freed_memory();
}

void LoadedModel::drop_residency(std::string_view name) {
  const auto found = residencies_.find(name);
  if (found == residencies_.end()) return;
  const memory::Residency::Stats stats = found->second->stats();
  add(past_[std::string(name)], stats);
  residencies_.erase(found);
  stream_residencies();
}

void LoadedModel::stream_residencies() {
  std::vector<memory::Residency*> all;
  for (const auto& [component, residency] : residencies_) all.push_back(residency.get());
  runner_->stream(std::move(all));
}

std::vector<std::string> LoadedModel::streaming_report() const {
  std::vector<std::string> lines;
  for (const auto& [name, plan] : plans_) {
    memory::Residency::Stats stats;
    if (const auto past = past_.find(name); past != past_.end()) stats = past->second;
    if (const auto now = residencies_.find(name); now != residencies_.end())
      add(stats, now->second->stats());
    if (stats.copies > 0) lines.push_back(name + ": " + describe(plan, stats));
  }
  if (!is_stand_in_) return lines;
  const memory::Port::Stats stats = port_->stats();
  lines.push_back("stand-in: at most " + size_text(stats.peak_bytes) +
                  (stats.capacity == INT64_MAX ? "" : " of " + size_text(stats.capacity)) +
                  " were in use");
  return lines;
}

bool LoadedModel::is_loaded(std::string_view name) const {
  const auto it = loaded_.find(name);
  return it != loaded_.end() && it->second;
}

}  // namespace atelier::model
