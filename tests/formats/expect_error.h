// Runs a parser on bad bytes and hands back its error.
#pragma once

#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "formats/parse_error.h"

namespace atelier::formats {

// What `parse` threw; a tag of "accepted" when it threw nothing. Checks what every error must have.
template <typename Parse>
ParseError error_of(Parse parse) {
  try {
    parse();
  } catch (const ParseError& error) {
    const std::string message = error.what();
    CHECK_FALSE(message.empty());
    CHECK(message.size() < 400);
    for (const char c : message + error.hint) {
      CHECK(static_cast<unsigned char>(c) >= 0x20);
      CHECK(c != 0x7F);
    }
    return error;
  }
  return ParseError("accepted", "accepted");
}

}  // namespace atelier::formats
