#include "host/cli/family.h"

#include <optional>

#include "host/cli/commands.h"
#include "host/model/family_choice.h"

namespace atelier::cli {

const plugins::Plugin* choose_family(order::Words& words, report::Problems& problems) {
  const auto text = [&](std::string_view name) { return words.find(name).value_or(""); };
  const std::optional<std::string> named = words.find("plugin");
  if (!named && !words.is_whole()) problems.throw_if_any();
  const plugins::Plugin* const plugin = model::choose_family(
      {named, text("plugin_path"), text("model_paths"), text("model_id_with_origin_paths")},
      problems);
  if (plugin != nullptr && !named) words.set("plugin", plugin->family->name());
  return plugin;
}

const ModelFamily* family_for_help(std::span<const std::string> arguments) {
  const ModelFamily* family = nullptr;
  report::Problems ignored;
  const order::Words words({arguments.begin(), arguments.end()}, cache_command(nullptr), ignored);
  ignored.collect([&] {
    if (const auto name = words.find("plugin"))
      family = plugins::open_plugin(*name, words.find("plugin_path").value_or("")).family;
  });
  return family;
}

}  // namespace atelier::cli
