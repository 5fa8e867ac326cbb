// One-letter names of the flags that are typed most, the same in every command that has the flag.
#pragma once

#include <string>
#include <string_view>

namespace atelier::flags {

// "prompt" of "-p"; empty: the word is no short name.
std::string_view long_name(std::string_view word);

// "-p" of "prompt"; empty: the flag has none.
std::string short_name(std::string_view name);

}  // namespace atelier::flags
