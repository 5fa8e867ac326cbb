// Clips and sounds of inputs: which frames and samples of a file are read, beside what is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atelier/input.h"
#include "atelier/model.h"

#include "host/media/clip.h"

namespace atelier::inputs {

// What is made or learnt, as the inputs beside it see it.
struct Made {
  MediaTarget target;
  double fps = 0.0;  // frames per second; 0: it has no rate
  // How many frames are seen before a piece of a clip that is learnt, and the numbers that its
  // frames have in the clip's file; empty: as they are counted.
  int64_t first = 0;
  std::vector<int64_t> numbers = {};
};

// A place behind the end of a clip or a sound, which Tail fills with one value.
inline constexpr int64_t kFiller = -1;

// Numbers of `count` elements that are read where a list has `length` of them: each once and then
// what `tail` says, 0 1 2 1 0 1 …; fewer than `count` under Tail::kRefuse.
std::vector<int64_t> with_tail(int64_t length, int64_t count, Tail tail);

// Numbers of the frames of a clip that are seen, without a tail: of an input with a rate, and of
// one that sampling begins from, at the rate of what is made, `fps`; 0: it has none, and the
// input's counts.
std::vector<int64_t> seen_frames(const InputSpec& input, const media::ClipInfo& clip, double fps);

// Numbers of the frames that are read of a clip, or kFiller: as many as are made where it runs
// beside, or where sampling begins from it if it has as many; else all that are seen. Of a clip
// that keeps its own rate a piece has the frames of the same numbers.
std::vector<int64_t> read_frames(const InputSpec& input, const media::ClipInfo& clip,
                                 const Made& made);

// Which samples of a sound are read, at the input's rate.
struct SoundPart {
  int64_t first = 0;
  std::optional<int64_t> count = std::nullopt;  // with what InputSpec::tail says; nullopt: the rest
};
// All of them where it does not run beside, and where what is made has no rate.
SoundPart part_beside(const InputSpec& input, const Made& made);

// Whether a sound of `samples` at the input's rate ends before `end`. By a moment it may: lengths
// are rounded, and the header of a lossy codec counts what its encoder puts around the sound.
bool is_too_short(const InputSpec& input, int64_t samples, int64_t end);

// What of a sound of `samples` at the input's rate is missing where it is read up to `end`: "lasts
// 1.5 s, and 2 s are needed".
std::string shorter_text(const InputSpec& input, int64_t samples, int64_t end);

}  // namespace atelier::inputs
