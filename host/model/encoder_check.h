// Whether what encodes an input is there, and whether that depends on the variant.
#pragma once

#include <optional>
#include <string_view>

#include "atelier/error.h"

#include "host/model/model_loader.h"

namespace atelier::model {

// What is wrong with giving an input to a model: a component is missing that a stage of its encodes
// the input with. nullopt: nothing.
std::optional<Error> missing_encoder(const LoadedModel& model, std::string_view input);

// Whether variants of a family differ in what is encoded of rows of a dataset where the user asks
// for no input that only some variants take.
bool encodes_by_variant(const ModelFamily& family);

}  // namespace atelier::model
