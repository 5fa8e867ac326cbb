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
#include "host/media/clip.h"
#include "host/model/model_loader.h"

namespace atelier::generate {

// The schedule of a request. `variant`, here and below: of the denoiser; empty where it is not
// known.
const ScheduleDefaults& schedule_of(const Settings& settings, const ModelFamily& family,
                                    std::string_view variant);
// The tokens of a denoiser's sequence for this target, as its schedule counts them.
int64_t tokens_of(const MediaTarget& target, const LatentSpec& spec);
// Scales of the first denoiser, and of one of less noise where that has another.
struct CfgScales {
  double first = 1.0;
  std::optional<double> second = std::nullopt;
  bool is_guided() const { return first != 1.0 || second.value_or(1.0) != 1.0; }
};
CfgScales cfg_scales_of(const Settings& settings, const ModelFamily& family,
                        std::string_view variant = {});
std::string_view renorm_name(CfgRenorm renorm);
// nullopt for a name that is none.
std::optional<CfgRenorm> find_renorm(std::string_view name);

// The file of initial latents; throws Error{kNotFound} when it lacks the tensor "latents".
files::Checkpoint open_latents(const std::string& path);

// Numbers of the frames of a clip that are seen at the rate of what is made.
std::vector<int64_t> shown_frames(const media::ClipInfo& clip, const Settings& settings);
// The most frames that a model can make of so many, at least one.
int64_t largest_clip(int64_t frames, const LatentSpec& spec);

// Fills frames, height, width and frame rate where the user left them open: as the input images
// say, if the model goes by them (see Model::target), or the clip that sampling begins from; else
// as the model is for. Reads headers of images and clips alone. Throws as Model::target, images
// that the model cannot take among it.
void fill_target(Settings& settings, const model::LoadedModel& model);

// Takes what the model's folder, as diffusers saves it, says of sampling and the settings leave
// open: under --schedule diffusers the solver and the shift of its scheduler. Throws
// Error{kUnsupported} for a scheduler whose levels are not made here.
void fill_from_folder(Settings& settings, const model::LoadedModel& model);

// What the text encoder is given beside images.
Inputs value_inputs(const Settings& settings, const ModelFamily& family);

// Reads the input files. `seed` is the first image's; fill_target() has filled the settings.
// Throws Error when a file cannot be read or does not fit.
Request make_request(const Settings& settings, const ModelFamily& family, const Model& model,
                     uint64_t seed, std::string_view variant = {});

}  // namespace atelier::generate
