// Whether the components that an input needs are there, and whether that depends on the variant.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "atelier/error.h"

#include "host/model/model_loader.h"

namespace atelier::model {

// What is wrong with giving an input to a model: a component is missing that a stage of its encodes
// the input with. nullopt: nothing.
std::optional<Error> missing_encoder(const LoadedModel& model, std::string_view input);
// What is wrong with running a model with an input: a control is missing that the input is for, and
// its denoiser is there. nullopt: nothing.
std::optional<Error> missing_control(const LoadedModel& model, std::string_view input);
// What is wrong with giving `count` values of an input: they belong to the files of a control, and
// there are more or fewer of these. nullopt: nothing.
std::optional<Error> wrong_count(const LoadedModel& model, std::string_view input, int64_t count);

// Whether variants of a family differ in what is encoded of rows of a dataset where the user asks
// for no input that only some variants take.
bool encodes_by_variant(const ModelFamily& family);

}  // namespace atelier::model
