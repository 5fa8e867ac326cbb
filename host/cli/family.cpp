#include "host/cli/family.h"

#include <optional>

#include "host/cli/commands.h"
#include "host/model/family_choice.h"
#include "host/order/config_file.h"
#include "host/order/training.h"

namespace atelier::cli {
namespace {

// `setting`: what was said of a flag, nullopt for nothing.
template <typename F>
model::FamilyRequest request_of(F&& setting) {
  const auto text = [&](const char* name) { return setting(name).value_or(""); };
  return {setting("plugin"), text("plugin_path"), text("model_paths"),
          text("model_id_with_origin_paths")};
}

}  // namespace

const plugins::Plugin* choose_generate_family(std::span<const std::string> arguments,
                                              report::Problems& problems) {
  return model::choose_family(
      request_of([&](const char* name) { return generate_setting(arguments, name); }), problems);
}

std::optional<std::string> generate_setting(std::span<const std::string> arguments,
                                            std::string_view name) {
  if (auto text = flags::peek_flag(arguments, name)) return text;
  const auto file = flags::peek_flag(arguments, "config");
  std::optional<std::string> found;
  report::Problems ignored;  // told when the flags are read
  ignored.collect([&] {
    if (!file) return;
    for (const flags::GivenValue& value :
         order::read_config_file(*file, generate_command(nullptr), ignored)) {
      if (value.name == name) found = value.text;
    }
  });
  return found;
}

std::vector<std::string> with_family(std::span<const std::string> arguments,
                                     const plugins::Plugin* chosen, bool is_named) {
  std::vector<std::string> all(arguments.begin(), arguments.end());
  if (chosen != nullptr && !is_named)
    all.insert(all.begin(), {"--plugin", std::string(chosen->family->name())});
  return all;
}

const plugins::Plugin* choose_train_family(std::span<const std::string> arguments,
                                           report::Problems& problems) {
  // What cannot be read is told when the whole configuration is.
  report::Problems unread;
  const model::FamilyRequest request = request_of([&](const char* name) {
    std::optional<std::string> text;
    unread.collect([&] { text = order::peek_setting(arguments, name); });
    return text;
  });
  if (!request.plugin && !unread.empty()) unread.throw_if_any();
  return model::choose_family(request, problems);
}

const ModelFamily* family_for_help(std::span<const std::string> arguments) {
  const ModelFamily* family = nullptr;
  report::Problems ignored;
  ignored.collect([&] {
    if (const auto name = order::peek_setting(arguments, "plugin"))
      family =
          plugins::open_plugin(*name, order::peek_setting(arguments, "plugin_path").value_or(""))
              .family;
  });
  return family;
}

}  // namespace atelier::cli
