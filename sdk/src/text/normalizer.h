// Changes a text before it is split into words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_files.h"

namespace atelier::text {

// Immutable after construction.
class Normalizer {
 public:
  // Throws Error{kUnsupported} for steps other than NFC, Precompiled, Strip, Prepend, and a Replace
  // of a literal text or of several spaces.
  explicit Normalizer(std::vector<formats::NormalizerStep> steps);

  // `text`: valid UTF-8.
  std::string operator()(std::string_view text) const;

  // Whether white space goes from the beginning.
  bool strips_left() const;

 private:
  std::vector<formats::NormalizerStep> steps_;
};

}  // namespace atelier::text
