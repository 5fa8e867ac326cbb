#include "host/cli/family.h"

#include <optional>

#include "host/model/family_choice.h"
#include "host/train/config.h"

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
      request_of([&](const char* name) { return flags::peek_flag(arguments, name); }), problems);
}

const plugins::Plugin* choose_train_family(std::span<const std::string> arguments,
                                           report::Problems& problems) {
  // What cannot be read is told when the whole configuration is.
  report::Problems unread;
  const model::FamilyRequest request = request_of([&](const char* name) {
    std::optional<std::string> text;
    unread.collect([&] { text = train::peek_setting(arguments, name); });
    return text;
  });
  if (!request.plugin && !unread.empty()) unread.throw_if_any();
  return model::choose_family(request, problems);
}

const ModelFamily* family_for_help(std::span<const std::string> arguments) {
  const ModelFamily* family = nullptr;
  report::Problems ignored;
  ignored.collect([&] {
    if (const auto name = train::peek_setting(arguments, "plugin"))
      family =
          plugins::open_plugin(*name, train::peek_setting(arguments, "plugin_path").value_or(""))
              .family;
  });
  return family;
}

}  // namespace atelier::cli
