#include "host/serve/hidden_paths.h"

namespace atelier::serve {

std::string without_folder(std::string message, std::string_view folder) {
  if (folder.empty()) return message;
  const std::string before = std::string(folder) + "/";
  for (size_t at = message.find(before); at != std::string::npos; at = message.find(before, at))
    message.erase(at, before.size());
  return message;
}

}  // namespace atelier::serve
