// Variables of the environment that other programs read, and what becomes of each here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atelier::flags {

struct CompatVariable {
  std::string_view name;  // or how it begins, with a star
  std::string_view flag;  // stands for it, with its value; empty: nothing does
  std::string_view why;   // it is not needed
};

// null: it is none of another program's; it stays.
const CompatVariable* find_compat_variable(std::string_view name);

// A line for each that is set, would change another program, and is not read here, with what to
// use.
std::vector<std::string> note_compat_variables();

}  // namespace atelier::flags
