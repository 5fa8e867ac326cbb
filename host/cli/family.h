// Which family a command is about.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

// What --plugin and the flags beside it say.
struct FamilyWish {
  std::optional<std::string> plugin;
  std::string plugin_path, model_paths, model_id_with_origin_paths;
};

// The plugin of that name. Where it is missing or cannot be opened, that is a problem that names
// the families that take the model's files, and the one that does, if it is one, is there for
// checking the rest. null: none can be told.
const plugins::Plugin* choose_family(const FamilyWish& wish, report::Problems& problems);

// The same with what the command line, --config or the resumed run of atelier train say.
const plugins::Plugin* choose_train_family(std::span<const std::string> arguments,
                                           report::Problems& problems);

// null: help is given without the family's names.
const ModelFamily* family_for_help(std::span<const std::string> arguments);

}  // namespace atelier::cli
