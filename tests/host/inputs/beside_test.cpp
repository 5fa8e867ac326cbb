#include "host/inputs/beside.h"

#include "support/catch.h"

namespace atelier::inputs {
namespace {

using Numbers = std::vector<int64_t>;

media::ClipInfo clip_of(int64_t frames, double fps) {
  media::ClipInfo clip;
  clip.fps = fps;
  for (int64_t i = 0; i < frames; ++i) clip.times_s.push_back(static_cast<double>(i) / fps);
  clip.duration_s = static_cast<double>(frames) / fps;
  return clip;
}

TEST_CASE("What stands behind the end follows the tail", "[inputs]") {
  CHECK(with_tail(3, 8, Tail::kMirror) == Numbers{0, 1, 2, 1, 0, 1, 2, 1});
  CHECK(with_tail(2, 5, Tail::kMirror) == Numbers{0, 1, 0, 1, 0});
  CHECK(with_tail(1, 3, Tail::kMirror) == Numbers{0, 0, 0});
  CHECK(with_tail(2, 4, Tail::kRepeat) == Numbers{0, 1, 1, 1});
  CHECK(with_tail(2, 4, Tail::kZero) == Numbers{0, 1, kFiller, kFiller});
  CHECK(with_tail(2, 4, Tail::kMinusOne) == Numbers{0, 1, kFiller, kFiller});
  CHECK(with_tail(2, 4, Tail::kRefuse) == Numbers{0, 1});
  CHECK(with_tail(5, 2, Tail::kRefuse) == Numbers{0, 1});
  CHECK(with_tail(0, 2, Tail::kZero) == Numbers{kFiller, kFiller});
}

TEST_CASE("A clip beside has a frame for each that is made", "[inputs]") {
  InputSpec input = {.name = "pose", .kind = InputKind::kVideo, .along_clip = true};
  const Made made = {.target = {5, 8, 8}, .fps = 16};
  // It has the frames that it has, whatever the rate of what is made is.
  CHECK(read_frames(input, clip_of(9, 30), made) == Numbers{0, 1, 2, 3, 4});
  CHECK(read_frames(input, clip_of(3, 30), made) == Numbers{0, 1, 2});
  // Or those at the rate of what is made; at its own where that has none.
  input.fps = 16;
  CHECK(read_frames(input, clip_of(10, 32), made) == Numbers{0, 2, 4, 6, 8});
  CHECK(read_frames(input, clip_of(10, 32), {.target = {5, 8, 8}, .fps = 8}) == Numbers{0, 4});
  CHECK(read_frames(input, clip_of(10, 32), {.target = {5, 8, 8}}) == Numbers{0, 2, 4, 6, 8});
  input.tail = Tail::kRepeat;
  CHECK(read_frames(input, clip_of(8, 32), made) == Numbers{0, 2, 4, 6, 6});
  input.along_clip = false;
  CHECK(read_frames(input, clip_of(8, 32), made) == Numbers{0, 2, 4, 6});
}

TEST_CASE("A clip to begin from has the rate of what is made", "[inputs]") {
  const InputSpec input = {.name = "draft", .kind = InputKind::kVideo, .role = InputRole::kStart};
  CHECK(read_frames(input, clip_of(9, 32), {.target = {3, 8, 8}, .fps = 16}) == Numbers{0, 2, 4});
  CHECK(read_frames(input, clip_of(3, 32), {.target = {3, 8, 8}, .fps = 16}) == Numbers{0});
}

TEST_CASE("A piece of a clip has what lies beside it", "[inputs]") {
  InputSpec input = {
      .name = "pose", .kind = InputKind::kVideo, .along_clip = true, .tail = Tail::kMirror};
  const Made made = {.target = {3, 8, 8}, .fps = 16, .first = 4, .numbers = {8, 10, 12}};
  CHECK(read_frames(input, clip_of(20, 30), made) == Numbers{8, 10, 12});
  CHECK(read_frames(input, clip_of(11, 30), made) == Numbers{8, 10, 8});
  input.fps = 16;
  CHECK(read_frames(input, clip_of(20, 32), made) == Numbers{8, 10, 12});
  const InputSpec sound = {.name = "sound", .kind = InputKind::kAudio, .along_clip = true};
  const SoundPart part = part_beside(sound, made);
  CHECK(part.first == 4000);
  CHECK(part.count == 3000);
  CHECK(!part_beside({.name = "sound", .kind = InputKind::kAudio}, made).count);
  CHECK(!part_beside(sound, {.target = {3, 8, 8}}).count);
  CHECK(shorter_text(sound, 24000, 32000) == "lasts 1.5 s, and 2 s are needed");
}

}  // namespace
}  // namespace atelier::inputs
