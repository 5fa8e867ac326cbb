// From settings that were checked to the request that the generator runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/files/checkpoint.h"
#include "host/generate/generator.h"
#include "host/generate/settings.h"

namespace atelier::generate {

// The sigmas of a request at this size.
std::vector<float> sigmas_of(const Settings& settings, const ModelFamily& family,
                             const LatentSpec& spec);
// Of a denoiser's sequence at this size, as its schedule counts them.
int64_t tokens_of(const Settings& settings, const LatentSpec& spec);
double cfg_scale_of(const Settings& settings, const ModelFamily& family);
std::string_view renorm_name(CfgRenorm renorm);
// nullopt for a name that is none.
std::optional<CfgRenorm> find_renorm(std::string_view name);

// The file of initial latents; throws Error{kNotFound} when it lacks the tensor "latents".
files::Checkpoint open_latents(const std::string& path);

// What the text encoder is given beside pictures.
Inputs value_inputs(const Settings& settings, const ModelFamily& family);

// Reads the input files. `seed` is the first picture's.
// Throws Error when a file cannot be read or does not fit.
Request make_request(const Settings& settings, const ModelFamily& family, const Model& model,
                     uint64_t seed);

}  // namespace atelier::generate
