// What a family's encoders make of one sample: named tensors, cheap to cache on disk.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace atelier {

using NamedTensors = std::map<std::string, at::Tensor, std::less<>>;

// What the stages make of the inputs of one sample, without a batch axis. Keys are the family's own
// ("prompt_embeds") and are stable: they name the entries of the cache files. "latents" is reserved
// for the clean latents of a training sample.
using Conditioning = NamedTensors;

}  // namespace atelier
