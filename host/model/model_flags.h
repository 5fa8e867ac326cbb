// The flags of every command that opens a model, and those that a family's inputs make.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "atelier/input.h"

#include "host/flags/flags.h"
#include "host/model/model_loader.h"

namespace atelier::model {

// What a family takes, as flags: one per input of that use whose name is not among `taken`. Images,
// masks, audio and videos are paths; an image list is a repeated flag. Inputs of kText that the
// family requires stay optional here, because they may come from a file.
std::vector<flags::FlagSpec> flags_of_inputs(std::span<const InputSpec> inputs, InputUse use,
                                             std::span<const flags::FlagSpec> taken = {});

// --plugin, required, and --plugin_path.
flags::FlagSpec plugin_flag();
flags::FlagSpec plugin_path_flag();
// --model_hints, for parse_hints().
flags::FlagSpec model_hints_flag();

// --plugin, --plugin_path, --model_paths, --model_id_with_origin_paths, --tokenizer_path,
// --model_hints, --dtype, --device, --storage, --fp8_models, --offload, --resident_blocks and
// --prefetch; `dtype` is the preset of --dtype.
std::vector<flags::FlagSpec> model_flags(std::string dtype = "auto");

// Of a command with model_flags(). Throws Error{kInvalidArgument} when one of them is malformed.
model::LoadRequest load_request(const flags::ParsedFlags& flags);

// '{"*glob*": {"component": "dit", "variant": "name"}}'. Throws Error{kInvalidArgument}.
std::map<std::string, DetectHint> parse_hints(const nlohmann::json& hints);

}  // namespace atelier::model
