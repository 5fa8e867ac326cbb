// Which frames of a clip are learnt.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/model.h"

#include "host/media/clip.h"

namespace atelier::data {

// How pieces of so many frames are cut out of a clip.
enum class FrameExtraction {
  kHead,     // its beginning
  kChunk,    // one behind the other; what is left at the end is not learnt
  kSlide,    // one every frame_stride frames
  kUniform,  // frame_sample of them, evenly spread from the beginning to the end
  kRandom,   // frame_sample of them, spread at random; each time the clip comes, one is drawn
};

// "head", as flags have it.
std::string_view extraction_name(FrameExtraction extraction);

// Names are those of the flags, down to `source_fps`.
struct ClipOptions {
  std::vector<int64_t> num_frames;  // lengths of pieces; none: model_frames
  FrameExtraction frame_extraction = FrameExtraction::kHead;
  int64_t frame_stride = 1;
  int64_t frame_sample = 1;
  bool keep_frame_rate = false;      // frames as they are, at whatever rate they are shown
  std::optional<double> source_fps;  // the rate of all clips, whatever their files say

  // The model's own, see MediaDefaults. A rate of 0 keeps every clip's own.
  double model_fps = 0.0;
  int64_t model_frames = 1;
  uint64_t seed = 0;  // of kRandom

  // Lengths of pieces, ascending, each one once.
  std::vector<int64_t> lengths() const;
};

// The rate at which a clip is shown; 0 where nothing says it.
double rate_of(const media::ClipInfo& clip, const ClipOptions& options);

// Numbers of the frames that are seen where a clip is played at the model's rate, as
// media::frames_at_rate() says; they ascend, and one may come twice. A clip without a rate, and
// with keep_frame_rate every one, gives all its frames.
std::vector<int64_t> frames_at_rate(const media::ClipInfo& clip, const ClipOptions& options);

// Pieces of one length.
struct Pieces {
  std::vector<int64_t> begins;  // ascending, each one once
  int64_t frames = 0;           // of each piece
};

// Cuts `available` frames, at least one, into pieces of every length that is not longer. Too few
// for any make one piece that is shorter, whose length fits the model. `key` tells clips apart for
// kRandom.
std::vector<Pieces> pieces_of(int64_t available, const LatentSpec& spec, const ClipOptions& options,
                              std::string_view key);

}  // namespace atelier::data
