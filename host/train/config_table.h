// The flags of atelier train and atelier cache, each with the setting that gets its value.
#pragma once

#include <string_view>

#include "host/flags/table.h"
#include "host/train/config.h"

namespace atelier::train {

// `config` outlives the table; its values are the presets. `command` and `family` as for
// train_command(). Flags whose value decides several settings are read by parse_config().
flags::Table config_table(Config& config, const ModelFamily* family, std::string_view command);

}  // namespace atelier::train
