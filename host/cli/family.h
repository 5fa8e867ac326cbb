// Which family a command is about.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "host/order/training.h"
#include "host/order/words.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

// The family that the words name, or whose files they name, which they say from then on. null: none
// can be told, which is a problem. Throws where that may stand in a file that cannot be read.
const plugins::Plugin* choose_family(order::Words& words, report::Problems& problems);

// What atelier train, or cache, is asked to do; what that says of the process holds from here on,
// `computes` as in ProcessUse. Notes go to stderr. Throws where no family can be told.
order::Training read_training(std::span<const std::string> arguments, std::string_view command,
                              bool computes, report::Problems& problems);

// null: help is given without the family's names.
const ModelFamily* family_for_help(std::span<const std::string> arguments);

}  // namespace atelier::cli
