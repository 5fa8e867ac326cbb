// Which layers LoRA trains, and how published LoRA files spell them.
#pragma once

#include <string>
#include <vector>

namespace atelier {

struct LoraTargets {
  // The component that files of what is trained say they are for. A family that opens either of two
  // denoisers alone under one name says here which one it is beside the other; empty: nobody knows.
  std::string component = "dit";
  std::vector<std::string>
      include;  // globs over paths of nn::Linear layers: "transformer_blocks.*.attn.to_*"
  std::vector<std::string> exclude;  // taken away from `include`
  std::string file_prefix;           // before every name in published LoRA files: "transformer."
};

}  // namespace atelier
