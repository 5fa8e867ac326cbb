// The parts of a model that are loaded, placed and trained one by one.
#pragma once

#include <string_view>

namespace atelier {

// When a component is needed on the compute device. Otherwise it may be elsewhere, or not loaded at
// all.
struct Phases {
  bool encode = false, denoise = false, decode = false;
};

struct ComponentSpec {
  std::string_view name;  // "dit": names flags, caches and LoRA files
  // "text_encoder", "vae" or "dit"; "tokenizer" is a folder or file without tensors, see
  // ModelOptions::files.
  std::string_view role;
  Phases phases;
  bool required = true;
  std::string_view help = {};  // one line: what it is and which published files hold it
};

}  // namespace atelier
