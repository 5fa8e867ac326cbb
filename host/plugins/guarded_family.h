// A family as the host sees it: nothing but errors comes out of a plugin's functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "atelier/model_family.h"

namespace atelier::plugins {

// Wraps a family so that whatever its functions, and those of the models that it makes, throw
// arrives as by guard(), with "my_family.function" in front. What is no Error becomes
// Error{kEnvironment} with `place`, the plugin's file, and the block that threw it; but for memory,
// the device and dry runs, where the function is more than one that only says what there is.
//
// `family` outlives the wrapper and its models. `version` is the plugin's.
std::unique_ptr<const ModelFamily> guarded(const ModelFamily& family, std::string place,
                                           std::string version);

// The version of the plugin that a guarded family is of; empty: it is of none.
std::string_view plugin_version(const ModelFamily& family);

}  // namespace atelier::plugins
