// The flags of every command that opens a model.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/flags/flags.h"
#include "host/model/model_loader.h"
#include "host/report/problems.h"

namespace atelier::model {

// --plugin, required, and --plugin_path.
flags::FlagSpec plugin_flag();
flags::FlagSpec plugin_path_flag();
// --model_hints, for parse_hints().
flags::FlagSpec model_hints_flag();

// --plugin, --plugin_path, --model_paths, --model_id_with_origin_paths, --tokenizer_path,
// --model_hints, --dtype, --device, --storage, --fp8_models, --offload, --resident_blocks and
// --prefetch; `dtype` is the preset of --dtype.
std::vector<flags::FlagSpec> model_flags(std::string dtype = "auto");

// What the flags of a command with model_flags() ask for. Those that are malformed become problems.
model::LoadOptions load_request(const flags::ParsedFlags& flags, report::Problems& problems);

// '{"*glob*": {"component": "dit", "variant": "name"}}'. Throws Error{kInvalidArgument}.
std::map<std::string, DetectHint> parse_hints(const nlohmann::json& hints);

}  // namespace atelier::model
