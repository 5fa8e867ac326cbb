// The reader of settings in YAML.
#include "formats/parse_error.h"
#include "formats/utf8.h"
#include "fuzz/entries.h"
#include "fuzz/promise.h"
#include "host/files/yaml.h"

namespace atelier::formats {

void fuzz_yaml(std::string_view bytes) {
  try {
    const nlohmann::json tree = files::parse_yaml(bytes);
    promise(files::parse_yaml(bytes) == tree, "reading twice gives the same");
    promise(!tree.dump().empty(), "a tree is text");
  } catch (const ParseError& error) {
    promise(error.tag.starts_with("YAML_"), "an error has a tag");
    promise(find_invalid_utf8(error.what()) == std::string_view::npos, "a message is UTF-8");
  }
}

}  // namespace atelier::formats
