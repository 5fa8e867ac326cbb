// What a loaded model makes where the user leaves it open.
#pragma once

#include "atelier/model_family.h"

#include "host/model/model_loader.h"

namespace atelier::model {

// Frames, size and rate of what the model makes: those of its family for the first denoiser, and in
// their place what model_index.json of that denoiser's model folder says of itself,
// {"_media_defaults": {"height": 128, "width": 128, "num_frames": 9, "fps": 8}}, of which each may
// be left out. Throws Error{kDataLoss} when an entry is none of these.
MediaDefaults media_defaults(const LoadedModel& model);

}  // namespace atelier::model
