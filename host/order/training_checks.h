// What is wrong with a configuration, as far as that can be known without model and dataset.
#pragma once

#include <filesystem>

#include "atelier/model_family.h"

#include "host/flags/flags.h"
#include "host/order/training.h"
#include "host/report/problems.h"

namespace atelier::order {

// `flags` are those that `config` was made from: they say where each value stands.
void check_config(const Training& config, const flags::ParsedFlags& flags,
                  const ModelFamily* family, report::Problems& problems);

// The files and folders that it names, as far as they are not looked at when the run is prepared.
void check_files(const Training& config, const flags::ParsedFlags& flags, const ModelFamily* family,
                 report::Problems& problems);

// Whether encoded samples lie in the folder.
bool is_cache(const std::filesystem::path& folder);

// A line for each given flag that other flags make meaningless.
std::vector<std::string> note_idle_flags(const Training& config, const flags::ParsedFlags& flags);

// Names of the components that can be trained.
std::vector<std::string> trainable_components(const ModelFamily& family);

// Names of the inputs that a dataset may have.
std::vector<std::string> trained_inputs(const ModelFamily& family);

// The first component that denoises; "dit" where the family is not known.
std::string denoiser_of(const ModelFamily* family);

}  // namespace atelier::order
