// Values of a family's inputs as users write them: on the command line, in prompts files and in
// datasets.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atelier/error.h"
#include "atelier/input.h"

#include "host/files/content_hash.h"

namespace atelier::inputs {

// Whether values are paths of files.
bool is_file(InputKind kind);
// Whether those files are images.
bool is_image(InputKind kind);
// Whether those files are clips, or images that stand for clips of one frame.
bool is_clip(InputKind kind);
// Whether those files are sounds.
bool is_sound(InputKind kind);
// Whether values are the brightness of pixels.
bool is_mask(InputKind kind);
// "image", "images" of a list, as programs read it.
std::string kind_name(const InputSpec& input);

bool is_list(const InputSpec& input);
// Whether a model of this variant takes the input. Of a variant that is not known, "", only those
// inputs are taken that every variant has.
bool holds_for(const InputSpec& input, std::string_view variant);
// Whether such a model needs it.
bool is_required(const InputSpec& input, std::string_view variant);
// What is wrong with giving the input where it does not hold.
Error not_taken(const InputSpec& input, std::string_view variant);

// A value as messages show it: a text in quotes, anything else as JSON, both shortened.
std::string shown(const nlohmann::json& value);

// Turns what was written, JSON or the text of a cell, into a text, a number or a boolean as the
// input's kind has it, or into an array of texts or numbers where it takes several. Files are their
// paths; a text of numbers may hold several, "1,2,3". Throws Error{kInvalidArgument} when it is
// something else or none of its choices, and when it is too few or too many.
nlohmann::json parse_value(const InputSpec& input, const nlohmann::json& given);

// The texts of a parsed value, which is one or an array of them.
std::vector<std::string> texts_of(const nlohmann::json& value);

// What is wrong with lists that are given as many values as another one and have not as many:
// inputs and their error. `values`: of inputs by name, as parse_value() gives them.
using ValueOf = std::function<const nlohmann::json*(std::string_view input)>;
std::vector<std::pair<const InputSpec*, Error>> unpaired(std::span<const InputSpec> inputs,
                                                         const ValueOf& value_of);

// The value of an input that is no file.
InputValue to_input(const InputSpec& input, const nlohmann::json& value);

// Adds what tells a parsed value from another one.
void add_value(files::ContentHash& hash, const nlohmann::json& value);

// Tells the contents of all values from others.
std::string content_of(const Inputs& values);

}  // namespace atelier::inputs
