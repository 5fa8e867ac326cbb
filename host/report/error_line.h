// How an error is shown, and how text of files is made safe for terminals.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "atelier/error.h"

namespace atelier::report {

// "error: message; hint [CODE]" and a line end, with `label` in place of "error". Lines after the
// first of the message follow indented; a first line of more than 400 bytes is cut, and then the
// whole follows indented too. Printable, and no line is longer than 2000 bytes.
std::string error_line(const Error& error, std::string_view label = "error");

// What an error of LibTorch says, without the stack that stands behind its first line.
std::string first_line(const std::exception& error);

// `text` with escapes for everything that moves a cursor, hides text or is no UTF-8. Line ends and
// tabs stay.
std::string printable(std::string_view text);

// `json`, which is JSON, with \u escapes in the place of the same characters.
std::string printable_json(std::string_view json);

}  // namespace atelier::report
