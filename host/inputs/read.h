// Files of a family's inputs, read and brought to their size.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "atelier/input.h"
#include "atelier/model.h"

#include "host/inputs/beside.h"

namespace atelier::inputs {

// Reads an input of images or masks from its files. `target`: what is made, see InputFit.
// Throws Error naming the file.
InputValue read_images(const InputSpec& input, std::span<const std::string> paths,
                       const MediaTarget& target);

// Chooses frames of a clip by their numbers, or kFiller.
using PickFrames = std::function<std::vector<int64_t>(const media::ClipInfo& clip)>;
// Reads frames of a clip, or of a still as a clip of one frame. Returns bytes [3, T, H, W], a
// quarter of the memory of what model::encode() makes of them, or float32 where Tail::kZero stands
// in, which no byte is; of a mask float32 [1, T, H, W], 0 where a filler stands. Throws Error
// naming the file.
at::Tensor read_clip(const InputSpec& input, const std::string& path, const PickFrames& pick,
                     const MediaTarget& target);

// Returns float32 [channels, samples]. Throws Error naming the file, {kInvalidArgument} under
// Tail::kRefuse where the sound is shorter than `part` says.
at::Tensor read_sound(const InputSpec& input, const std::string& path, const SoundPart& part);

// Reads an input of any kind. Throws Error naming the file.
InputValue read_files(const InputSpec& input, std::span<const std::string> paths, const Made& made);

// What read_files() would give, without values: meta tensors. The headers alone are read. Throws as
// read_files().
InputValue shapes_of(const InputSpec& input, std::span<const std::string> paths, const Made& made);

// Shapes where it is not known yet what is made: images and clips have the sizes of their files,
// clips the frames that are seen, and sounds the length of their files. `fps`: of what is made.
InputValue own_shapes_of(const InputSpec& input, std::span<const std::string> paths, double fps);

// What stands in for an image that a row of a dataset lacks: see InputSpec::when_absent.
// `target`: the value of the target input, an image or a clip.
InputValue when_absent(const InputSpec& input, const at::Tensor& target);

struct ImageWithMask {
  at::Tensor image;  // as read_images() gives it
  at::Tensor mask;  // of the same size, 1 where the image is opaque; undefined: it is so everywhere
};

// Reads an image with its transparency, which is decoded with it. Throws as read_images().
ImageWithMask read_with_mask(const InputSpec& input, const std::string& path,
                             const MediaTarget& target);

}  // namespace atelier::inputs
