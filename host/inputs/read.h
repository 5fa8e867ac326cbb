// Files of a family's inputs, read and brought to their size.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "atelier/input.h"
#include "atelier/model.h"

namespace atelier::inputs {

// Reads an input of images or masks from its files, and of no clips, which read_clip() reads.
// `target`: what is made, see InputFit.
//
// Throws Error naming the file; Error{kUnsupported} for kinds that cannot be read yet.
InputValue read_files(const InputSpec& input, std::span<const std::string> paths,
                      const MediaTarget& target);

// What read_files() or read_clip() would give, without values: meta tensors. The headers alone are
// read. Without a `target` images and clips have the sizes of their files. Throws as read_files().
InputValue shapes_of(const InputSpec& input, std::span<const std::string> paths,
                     const std::optional<MediaTarget>& target);

// What stands in for an image that a row of a dataset lacks: see InputSpec::when_absent.
// `target`: the value of the target input, an image or a clip.
InputValue when_absent(const InputSpec& input, const at::Tensor& target);

// Reads frames of a clip, or of a still as a clip of one frame. Their numbers ascend. Returns bytes
// [3, T, H, W], a quarter of the memory of what model::encode() makes of them; of a mask float32
// [1, T, H, W]. Throws as read_files().
at::Tensor read_clip(const InputSpec& input, const std::string& path,
                     std::span<const int64_t> frames, const MediaTarget& target);

struct ImageWithMask {
  at::Tensor image;  // as read_files() gives it
  at::Tensor mask;  // of the same size, 1 where the image is opaque; undefined: it is so everywhere
};

// Reads an image with its transparency, which is decoded with it. Throws as read_files().
ImageWithMask read_with_mask(const InputSpec& input, const std::string& path,
                             const MediaTarget& target);

}  // namespace atelier::inputs
