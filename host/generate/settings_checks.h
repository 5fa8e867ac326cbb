// What is wrong with settings, found before any weight is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/report/problems.h"

namespace atelier::generate {

// Everything that can be known without the model: prompts, numbers, names, input files. `family` is
// null and `variant`, of the denoiser, empty where it is not known.
void check_settings(const order::Settings& settings, const ModelFamily* family,
                    const order::Origin& place, report::Problems& problems,
                    std::string_view variant = {});

// Frames, height and width that are said and make nothing, which no model is asked about: one
// problem each. Comes before fill_target(), which is left out where this returns false.
bool check_said_target(const order::Settings& settings, const order::Origin& place,
                       report::Problems& problems);

// What is odd and no mistake: images of which the model does not see all that is in their files.
// One line each.
std::vector<std::string> odd_images(const order::Settings& settings, const ModelFamily& family,
                                    const order::Origin& place);

// Frames, height and width: what the model takes, and what its schedule has noise levels for. Part
// of check_against_model().
void check_sizes(const order::Settings& settings, const ModelFamily& family, const Model& model,
                 std::string_view variant, const order::Origin& place, report::Problems& problems);

// What needs the model's declarations: sizes, the shape of initial latents, inputs of the variant.
void check_against_model(const order::Settings& settings, const ModelFamily& family,
                         const Model& model, std::string_view variant, const order::Origin& place,
                         report::Problems& problems);

// Whether the file of --output can hold what the model makes: transparency, pictures of one result,
// a clip whose rate is known; and whether what a clip in pieces has no use for is left out.
void check_form(const order::Settings& settings, const model::LoadedModel& model,
                const order::Origin& place, report::Problems& problems);

// Whether what encodes the given inputs is there, and the denoisers that settings speak of.
void check_encoders(const order::Settings& s, const model::LoadedModel& model,
                    const order::Origin& place, report::Problems& problems);

}  // namespace atelier::generate
