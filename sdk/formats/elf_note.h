// The note that a plugin carries, read from the bytes of its shared library without opening it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/parse_error.h"

namespace atelier::formats {

struct PluginNote {
  std::string abi;  // what the plugin was built with
  std::string family;
  std::string version;
};

// Finds the note named "atelier" of type 1 in the bytes of a 64-bit little-endian ELF shared
// library. Headers and segments must lie inside the file, so a library that was cut short is
// refused. Returns nothing when the library is sound and has no such note: it is not a plugin.
// Throws ParseError: ELF_KIND (not such a library), ELF_DAMAGED, ELF_NOTE (a note that cannot be
// ours).
std::optional<PluginNote> read_plugin_note(std::string_view file);

}  // namespace atelier::formats
