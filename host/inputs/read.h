// Files of a family's inputs, read and brought to their size.
#pragma once

#include <span>
#include <string>

#include "atelier/input.h"
#include "atelier/model.h"

namespace atelier::inputs {

// Reads an input of images or masks from its files; `target`: what is made, see InputFit.
// Throws Error naming the file; Error{kUnsupported} for kinds that cannot be read yet.
InputValue read_files(const InputSpec& input, std::span<const std::string> paths,
                      const MediaTarget& target);

// What stands in for an image that a row of a dataset lacks: see InputSpec::when_absent.
// `target`: the value of the target input, an image or a clip.
InputValue simulated(const InputSpec& input, const at::Tensor& target);

}  // namespace atelier::inputs
