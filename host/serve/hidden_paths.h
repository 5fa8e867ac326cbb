// What clients are told of messages that name files: no paths of this machine.
#pragma once

#include <string>
#include <string_view>

namespace atelier::serve {

// A message without `folder` and its slash in front of files; all of it where `folder` is empty.
std::string without_folder(std::string message, std::string_view folder);

}  // namespace atelier::serve
