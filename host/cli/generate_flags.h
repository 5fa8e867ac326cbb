// The flags of atelier generate, and what they order.
#pragma once

#include "host/flags/flags.h"
#include "host/flags/table.h"
#include "host/generate/order.h"
#include "host/order/words.h"
#include "host/report/problems.h"

namespace atelier::cli {

// All flags of the command, with the values of `order` as presets. Those of the model, of settings
// and the LoRAs are read by read_order(). `family` may be null.
flags::Table generate_table(generate::Order& order, const ModelFamily* family);

// What the words order from the family of `plugin`; null: it is not known, which is a problem
// already. Mistakes become problems. What the order says of the process holds from here on;
// `computes` as in ProcessUse.
generate::Order read_order(const order::Words& words, const plugins::Plugin* plugin, bool computes,
                           report::Problems& problems);

}  // namespace atelier::cli
