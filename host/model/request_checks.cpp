#include "host/model/request_checks.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/device_traits.h"

#include "formats/escape.h"
#include "host/model/components.h"

namespace atelier::model {

namespace {

std::string place_of(const std::string& flag, const std::string& component) {
  return flag + ": component " + formats::quote_and_escape(component) + ": ";
}

}  // namespace

bool check_component(const ModelFamily& family, const std::string& component,
                     const std::string& flag, report::Problems& problems) {
  if (find_component(family, component) != nullptr) return true;
  const std::string nearest = report::nearest_name(component, component_names(family));
  problems.add(place_of(flag, component) + std::string(family.name()) + " has " +
                   report::list_names(component_names(family)),
               nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
  return false;
}

void check_storage(const ModelFamily& family, const weights::StorageByComponent& storages,
                   Model& model, const std::vector<LoadedPart>& parts, report::Problems& problems) {
  for (const auto& [component, storage] : storages) {
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

std::string dtype_problem(at::ScalarType dtype, int capability) {
  constexpr int kBFloat16Since = 80;
  if (dtype != at::kBFloat16 || capability == 0 || capability >= kBFloat16Since) return "";
  return "bfloat16 needs a GPU of compute capability 8.0 or newer, this one has " +
         std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

void check_compute(const LoadedModel& model, const LoadOptions& request,
                   report::Problems& problems) {
  const int capability = ops::compute_capability(model.device());
  for (const LoadedPart& part : model.parts()) {
    const std::string problem = dtype_problem(model.dtype(part.detection.component), capability);
    if (!problem.empty())
      problems.add(place_of("--dtype", part.detection.component) + problem,
                   "pass --dtype float16 or float32");
  }
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
    const std::string said(weights::storage_name(storage));
    if (compute == weights::Compute::kBf16 && model.dtype(component) != at::kBFloat16)
      problems.add(place_of("--compute", component) + "its weights are " +
                       std::string(at::toString(model.dtype(component))) +
                       ", and are multiplied as such",
                   "pass --dtype bfloat16, or leave it out");
    if (compute == weights::Compute::kW8A8 && storage != weights::Storage::kFp8 &&
        storage != weights::Storage::kInt8)
      problems.add(place_of("--compute", component) +
                       "w8a8 multiplies 8-bit codes, and its weights rest " +
                       (storage == weights::Storage::kPlain       ? "in --dtype"
                        : storage == weights::Storage::kPublished ? "as published"
                                                                  : "as " + said),
                   "add --storage " + component + "=int8 or " + component + "=fp8");
  }
}

void check_entries(const LoadOptions& request, const files::FoundFiles& found,
                   report::Problems& problems) {
  const std::vector<std::string>& entries = found.entries;
  const auto check = [&](const std::string& flag, const std::string& name) {
    if (std::find(entries.begin(), entries.end(), name) != entries.end()) return;
    const std::string nearest = report::nearest_name(name, entries);
    problems.add(flag + ": " + formats::quote_and_escape(name) +
                     " is no entry of --model_paths or --model_id_with_origin_paths",
                 nearest.empty() ? "write it as it stands there" : "did you mean " + nearest + "?",
                 ErrorCode::kNotFound);
  };
  for (const std::string& name : request.fp8_models) check("--fp8_models", name);
  for (const QuantOption& option : request.quant_options) check("--quant_options", option.entry);
}

std::map<std::string, memory::ResidencyPlan, std::less<>> residency_of(
    const Placement& placement, const PlacedComponents& components, bool is_host,
    report::Problems& problems) {
  auto plans = plan_residency(placement, components, problems);
  if (is_host) {
    std::erase_if(plans, [&](const auto& plan) {
      return !placement.offload.contains(plan.first) && plan.second.shards == 1;
    });
  }
  return plans;
}

}  // namespace atelier::model
