// The one exception of every parser in this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace atelier::formats {

// Says what is wrong with foreign bytes. what() names the tensor, field or key, quoted and escaped;
// the parsers never see a file name, so the caller puts it in front.
class ParseError : public std::runtime_error {
 public:
  ParseError(std::string tag, const std::string& message, std::string hint = {},
             std::optional<uint64_t> byte = {}, std::optional<uint64_t> line = {})
      : std::runtime_error(message),
        tag(std::move(tag)),
        hint(std::move(hint)),
        byte(byte),
        line(line) {}

  std::string tag;               // stable code, such as ST_OFFSET
  std::string hint;              // what to do; may be empty
  std::optional<uint64_t> byte;  // offset from the start of the parsed bytes
  std::optional<uint64_t> line;  // counted from 1
};

}  // namespace atelier::formats
