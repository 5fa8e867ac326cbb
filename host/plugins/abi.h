// Compares the ABI strings of plugins with the program's.
#pragma once

#include <string>
#include <string_view>

namespace atelier::plugins {

// Says why a plugin whose ABI string is `plugin` cannot be opened by a program of `host`; empty: it
// can. Both are like ATELIER_ABI of atelier/plugin.h:
//
//   sdk=MAJOR.MINOR+HASH torch=2.11.0 cxx11abi=1 stdlib=libstdc++
//
// A plugin fits whose MAJOR is the host's and whose MINOR is not above the host's, with the same
// hash where MINOR is equal, and with all other words equal and in the same order.
std::string why_refused(std::string_view plugin, std::string_view host);

}  // namespace atelier::plugins
