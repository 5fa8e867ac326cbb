// Which family a model is of.
#pragma once

#include <optional>
#include <string>

#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::model {

// What --plugin and the flags beside it say; an empty text says nothing.
struct FamilyFlags {
  std::optional<std::string> plugin = {};
  std::string plugin_path = {}, model_paths = {}, model_id_with_origin_paths = {};
};

// The plugin that --plugin names; without it the one whose family takes the model's files. Where
// several or none do, that is a problem that names them. One that is named and cannot be opened is
// a problem too, and the files' family is there for checking the rest. null: none can be told.
const plugins::Plugin* choose_family(const FamilyFlags& request, report::Problems& problems);

}  // namespace atelier::model
