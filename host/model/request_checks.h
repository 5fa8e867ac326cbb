// Whether what a load request says of components can be done.
#pragma once

#include <map>
#include <string>

#include "host/files/model_paths.h"
#include "host/model/model_loader.h"
#include "host/report/problems.h"

namespace atelier::model {

// Whether the family has a component of that name; if not, that is a problem of `flag`.
bool check_component(const ModelFamily& family, const std::string& component,
                     const std::string& flag, report::Problems& problems);

// Mistakes in storage become problems; in the ways to compute, once the model knows its dtypes; and
// in the entries of --fp8_models and --quant_options.
void check_storage(const ModelFamily& family, const weights::StorageByComponent& storages,
                   Model& model, const std::vector<LoadedPart>& parts, report::Problems& problems);
void check_compute(const LoadedModel& model, const LoadOptions& request,
                   report::Problems& problems);
// Why a GPU of that compute capability (75 is 7.5; 0: no GPU) cannot compute in `dtype`; empty: it
// can.
std::string dtype_problem(at::ScalarType dtype, int capability);
void check_entries(const LoadOptions& request, const files::FoundFiles& found,
                   report::Problems& problems);

// `is_host`: the device is the host, and only what is named goes elsewhere.
std::map<std::string, memory::ResidencyPlan, std::less<>> residency_of(
    const Placement& placement, const PlacedComponents& components, bool is_host,
    report::Problems& problems);

}  // namespace atelier::model
