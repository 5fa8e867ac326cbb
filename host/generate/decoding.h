// Finished latents become frames and sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "host/generate/engine_context.h"
#include "host/generate/trajectory.h"

namespace atelier::generate {

// Gets the frames of each image in order, as soon as they are decoded: float32 [3 or 4, frames, H,
// W] in [-1, 1], on the CPU. `index`: which image they are of, `first`: the number of the first
// frame. An image has one frame; those of a clip come in one call or in several. Of several ranks
// the first gets them, others may or may not.
using OnFrames = std::function<void(size_t index, int64_t first, const at::Tensor& pixels)>;
// Gets the sound that is made beside a clip, before its frames; see Model::decode_sound().
using OnSound = std::function<void(size_t index, const Sound& sound)>;

// Loads the autoencoder. Not thread-safe.
class Decoder {
 public:
  // `context` outlives it.
  explicit Decoder(EngineContext& context) : context_(context) {}

  // Images of a trajectory that is through; `index` is their number in its request. Throws
  // Error{kNumerics} for values that are not finite.
  void decode(const Trajectory& through, const OnFrames& on_frames, const OnSound& on_sound);
  // A small picture of latents that the first image of a trajectory may end as, [1, C, T, H, W], of
  // a clip its first frame: float32 [3 or 4, H, W] in [-1, 1], on the CPU. Undefined where the
  // autoencoder is not there, or there is no room.
  at::Tensor preview(const Trajectory& of, const at::Tensor& clean_1CTHW);

 private:
  void decode_sound(const Trajectory& through, const at::Tensor& latents_1CTHW, size_t index,
                    const OnSound& on_sound);
  void decode_frames(const Request& request, const at::Tensor& latents_1CTHW,
                     const model::SampleSink& sink);
  void decode_whole(const at::Tensor& latents_1CTHW, BlockRunner& blocks,
                    const model::SampleSink& sink);
  at::Device host() const;

  EngineContext& context_;
};

}  // namespace atelier::generate
