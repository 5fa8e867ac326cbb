// --quant_options, as DiffSynth-Studio takes it: how the files of single entries are stored.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/weights/storage.h"

namespace atelier::model {

struct QuantOption {
  std::string entry;  // of --model_paths or --model_id_with_origin_paths, as it stands there
  weights::Storage storage = weights::Storage::kPlain;
  // Layers that stay plain: by their published name, by its end from a dot on, or by its beginning
  // up to one: a whole block.
  std::set<std::string> plain_layers = {};

  bool leaves_plain(std::string_view layer) const;
};

// "ENTRY:METHOD/layer,layer;ENTRY:METHOD". Throws Error{kInvalidArgument} for what is none of it,
// and Error{kUnsupported} for a method that has no storage here.
std::vector<QuantOption> parse_quant_options(const std::string& text);

}  // namespace atelier::model
