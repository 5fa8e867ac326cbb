// Tells the weights of models apart without reading them whole.
#pragma once

#include <string>

#include "host/model/model_loader.h"

namespace atelier::model {

// 32 hexadecimal digits of what a component is: the numbers it was recognised by, and of each file
// the header, the length and 64 blocks of 4 KiB spread over the tensors. Paths and times do not
// count. Reads about 256 KiB a file. Throws Error{kNotFound}, {kEnvironment} or {kDataLoss}.
std::string fingerprint(const LoadedPart& part);
// A fingerprint of a component whose weights come from another checkpoint.
std::string fingerprint(const Detection& detection, const files::Checkpoint& checkpoint);

// A hash of the files that a tokenizer is read from: `path` is its folder or its tokenizer.json.
std::string tokenizer_fingerprint(const std::string& path);

}  // namespace atelier::model
