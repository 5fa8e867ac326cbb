#include "host/plugins/abi.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "formats/escape.h"

namespace atelier::plugins {
namespace {

struct Sdk {
  int major = 0, minor = 0;
  std::string_view hash;  // of its public headers
};

// Reads a number at the front of `text` and removes it there.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<Sdk> parse_sdk(std::string_view word) {
  Sdk sdk;
  if (!take(word, "sdk=")) return std::nullopt;
  const auto major = take_number(word);
  if (!major || !take(word, ".")) return std::nullopt;
  const auto minor = take_number(word);
  if (!minor || !take(word, "+")) return std::nullopt;
  return Sdk{*major, *minor, word};
}

std::string version_text(const Sdk& sdk) {
  return "SDK " + std::to_string(sdk.major) + "." + std::to_string(sdk.minor);
}

// Compares two versions of the SDK; empty: they fit.
std::string compare(const Sdk& plugin, const Sdk& host) {
  const std::string versions =
      version_text(plugin) + ", and this program has " + version_text(host);
  if (plugin.major != host.major || plugin.minor > host.minor) return versions;
  if (plugin.minor == host.minor && plugin.hash != host.hash)
    return versions + " with other headers";
  return "";
}

std::string_view first_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  return word;
}

}  // namespace

std::string why_refused(std::string_view plugin, std::string_view host) {
  const std::string both =
      " (" + formats::quote_and_escape(plugin, 200) + ", here \"" + std::string(host) + "\")";
  const auto built = parse_sdk(first_word(plugin)), own = parse_sdk(first_word(host));
  if (!built || !own) return "its ABI string is none" + both;
  if (const std::string why = compare(*built, *own); !why.empty())
    return "it was built with " + why + both;
  while (!plugin.empty() || !host.empty()) {
    const std::string_view word = first_word(plugin), wanted = first_word(host);
    if (word == wanted) continue;
    const auto shown = [](std::string_view one) {
      return one.empty() ? std::string("nothing more") : formats::quote_and_escape(one);
    };
    return "it was built with " + shown(word) + ", and this program with " + shown(wanted) + both;
  }
  return "";
}

}  // namespace atelier::plugins
