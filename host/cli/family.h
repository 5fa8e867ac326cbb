// Which family a command is about.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/plan/prepared_training.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

// What model::choose_family() makes of a command line of atelier generate, and of its --config.
const plugins::Plugin* choose_generate_family(std::span<const std::string> arguments,
                                              report::Problems& problems);

// Does so for what the command line, --config or the resumed run of atelier train say.
const plugins::Plugin* choose_train_family(std::span<const std::string> arguments,
                                           report::Problems& problems);

// What atelier train, or cache, is asked to do: family and configuration, and what the process is
// told by them. Notes go to stderr. Throws where no family can be told.
plan::TrainingOrder read_training(std::span<const std::string> arguments, std::string_view command,
                                  report::Problems& problems);

// The arguments, with the family that was chosen where nothing has named one.
std::vector<std::string> with_family(std::span<const std::string> arguments,
                                     const plugins::Plugin* chosen, bool is_named);

// What the command line of atelier generate, or its --config, says of a flag.
std::optional<std::string> generate_setting(std::span<const std::string> arguments,
                                            std::string_view name);

// null: help is given without the family's names.
const ModelFamily* family_for_help(std::span<const std::string> arguments);

}  // namespace atelier::cli
