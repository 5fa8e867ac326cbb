#include "host/data/frame_picking.h"

#include <algorithm>
#include <cmath>

#include "support/catch.h"

namespace atelier::data {
namespace {

using Numbers = std::vector<int64_t>;

const LatentSpec kFours = {.temporal_stride = 4, .takes_clips = true};

// A clip of a constant rate.
media::ClipInfo clip_of(int64_t frames, double fps) {
  media::ClipInfo clip;
  clip.fps = fps;
  clip.duration_s = fps > 0 ? static_cast<double>(frames) / fps : 0;
  for (int64_t i = 0; i < frames; ++i)
    clip.times_s.push_back(static_cast<double>(i) / (fps > 0 ? fps : 1));
  return clip;
}

ClipOptions at_16() {
  ClipOptions options;
  options.model_fps = 16;
  options.model_frames = 17;
  return options;
}

Numbers cut(int64_t available, const ClipOptions& options, std::string_view key = "a.mp4") {
  const std::vector<Pieces> pieces = pieces_of(available, kFours, options, key);
  REQUIRE(pieces.size() == 1);
  return pieces.front().begins;
}

// As DiffSynth-Studio's fix_frame_rate picks them: min(round(i / 16 * rate), last), floor(seconds *
// 16) of them. Its halves are rounded to even, and ours are the later frame: 22.5 and 12.5 here.
TEST_CASE("Frames are those that are seen at the model's rate", "[data]") {
  const auto picked = [](int64_t frames, double fps) {
    return frames_at_rate(clip_of(frames, fps), at_16());
  };
  CHECK(picked(30, 30) == Numbers{0, 2, 4, 6, 8, 9, 11, 13, 15, 17, 19, 21, 23, 24, 26, 28});
  CHECK(picked(25, 25) == Numbers{0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16, 17, 19, 20, 22, 23});
  CHECK(picked(16, 16) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(picked(24, 24) == Numbers{0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23});
  CHECK(picked(60, 60) == Numbers{0, 4, 8, 11, 15, 19, 23, 26, 30, 34, 38, 41, 45, 49, 53, 56});
  CHECK(picked(5, 10) == Numbers{0, 1, 1, 2, 3, 3, 4, 4});
  CHECK(picked(1, 25) == Numbers{0});
  CHECK(picked(500, 100).size() == 80);
}

TEST_CASE("Frames of a variable rate are taken by their times", "[data]") {
  media::ClipInfo clip;
  clip.times_s = {0, 0.1, 0.9, 1.0};  // long in the middle
  clip.duration_s = 1.0625;
  clip.fps = 4 / clip.duration_s;
  clip.is_variable_rate = true;
  const Numbers frames = frames_at_rate(clip, at_16());
  REQUIRE(frames.size() == 17);
  CHECK(frames == Numbers{0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3});
}

TEST_CASE("Frames of 23.976 and 59.94 a second are the nearest ones", "[data]") {
  for (const int64_t rate : {24000, 60000}) {
    const int64_t count = rate / 1001 * 10;
    const Numbers picked =
        frames_at_rate(clip_of(count, static_cast<double>(rate) / 1001.0), at_16());
    REQUIRE(picked.size() >= 150);
    for (size_t i = 0; i < picked.size(); ++i) {
      // Moment i / 16 and frame k * 1001 / rate, in units of 1 / (16 rate).
      const auto away = [&](int64_t k) {
        return std::abs(static_cast<int64_t>(i) * rate - k * 1001 * 16);
      };
      CAPTURE(rate, i, picked[i]);
      CHECK((picked[i] == 0 || away(picked[i]) <= away(picked[i] - 1)));
      CHECK((picked[i] == count - 1 || away(picked[i]) < away(picked[i] + 1)));
    }
  }
}

TEST_CASE("Times that are rounded to milliseconds change no frame", "[data]") {
  for (const double fps : {23.976, 24.0, 25.0, 29.97, 30.0, 50.0, 59.94, 60.0}) {
    const media::ClipInfo exact = clip_of(static_cast<int64_t>(fps * 5), fps);
    media::ClipInfo rounded = exact;
    for (double& time : rounded.times_s) time = std::round(time * 1000) / 1000;
    const Numbers a = frames_at_rate(exact, at_16()), b = frames_at_rate(rounded, at_16());
    REQUIRE(a.size() == b.size());
    int64_t farthest = 0;
    for (size_t i = 0; i < a.size(); ++i) farthest = std::max(farthest, std::abs(a[i] - b[i]));
    CHECK(farthest <= (fps == 24.0 || fps == 60.0 ? 0 : 1));
  }
}

TEST_CASE("Frames without a rate, and those of --keep_frame_rate, are taken as they are",
          "[data]") {
  CHECK(frames_at_rate(clip_of(3, 0), at_16()) == Numbers{0, 1, 2});
  ClipOptions options = at_16();
  options.keep_frame_rate = true;
  CHECK(frames_at_rate(clip_of(4, 60), options) == Numbers{0, 1, 2, 3});
  options = at_16();
  options.model_fps = 0;
  CHECK(frames_at_rate(clip_of(4, 60), options) == Numbers{0, 1, 2, 3});
  // A rate that the user says holds for all clips.
  options = at_16();
  options.source_fps = 32;
  CHECK(frames_at_rate(clip_of(8, 0), options) == Numbers{0, 2, 4, 6});
  CHECK(frames_at_rate(clip_of(8, 8), options) == Numbers{0, 2, 4, 6});
}

// The values of musubi-tuner's rules, uniform by numpy.linspace(0, count - 17, sample, dtype=int).
TEST_CASE("Clips are cut where musubi-tuner cuts them", "[data]") {
  ClipOptions options = at_16();
  CHECK(cut(50, options) == Numbers{0});
  options.frame_extraction = FrameExtraction::kChunk;
  CHECK(cut(50, options) == Numbers{0, 17});
  CHECK(cut(51, options) == Numbers{0, 17, 34});
  options.frame_extraction = FrameExtraction::kSlide;
  options.frame_stride = 8;
  CHECK(cut(50, options) == Numbers{0, 8, 16, 24, 32});
  CHECK(cut(17, options) == Numbers{0});
  options.frame_extraction = FrameExtraction::kUniform;
  options.frame_sample = 4;
  CHECK(cut(50, options) == Numbers{0, 11, 22, 33});
  CHECK(cut(20, options) == Numbers{0, 1, 2, 3});
  CHECK(cut(18, options) == Numbers{0, 1});  // each place once
  options.frame_sample = 1;
  CHECK(cut(50, options) == Numbers{0});
  options.frame_sample = 3;
  options.num_frames = {81};
  CHECK(cut(100, options) == Numbers{0, 9, 19});
  options.frame_sample = 7;
  options.num_frames = {33};
  CHECK(cut(90, options) == Numbers{0, 9, 19, 28, 38, 47, 57});
}

// DiffSynth-Studio's rule: fewer, until one more than a multiple of 4 is left.
TEST_CASE("Short clips make one piece that fits the model", "[data]") {
  ClipOptions options = at_16();
  options.num_frames = {81};
  for (const auto extraction :
       {FrameExtraction::kHead, FrameExtraction::kSlide, FrameExtraction::kRandom}) {
    options.frame_extraction = extraction;
    for (const auto& [available, frames] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {5, 5}, {50, 49}, {80, 77}}) {
      CHECK(cut(available, options) == Numbers{0});
      CHECK(pieces_of(available, kFours, options, "a").front().frames == frames);
    }
    CHECK(pieces_of(81, kFours, options, "a").front().frames == 81);
  }
}

// musubi-tuner's rules, but for clips that are shorter than every length, which it leaves out.
TEST_CASE("Of several lengths a clip gives the pieces of each that it has", "[data]") {
  ClipOptions options = at_16();
  options.num_frames = {45, 1, 25, 1};
  CHECK(options.lengths() == Numbers{1, 25, 45});
  const auto all = [&](int64_t available) {
    std::vector<std::pair<int64_t, Numbers>> pieces;
    for (const auto& [begins, frames] : pieces_of(available, kFours, options, "a"))
      pieces.emplace_back(frames, begins);
    return pieces;
  };
  using All = std::vector<std::pair<int64_t, Numbers>>;
  CHECK(all(50) == All{{1, {0}}, {25, {0}}, {45, {0}}});
  CHECK(all(44) == All{{1, {0}}, {25, {0}}});
  options.frame_extraction = FrameExtraction::kSlide;
  options.frame_stride = 20;
  CHECK(all(50) == All{{1, {0, 20, 40}}, {25, {0, 20}}, {45, {0}}});
  options.frame_extraction = FrameExtraction::kChunk;
  options.num_frames = {25, 45};
  CHECK(all(50) == All{{25, {0, 25}}, {45, {0}}});
  CHECK(all(24) == All{{21, {0}}});
  options.frame_extraction = FrameExtraction::kUniform;
  options.frame_sample = 2;
  CHECK(all(50) == All{{25, {0, 25}}, {45, {0, 5}}});
  options.num_frames = {};
  CHECK(options.lengths() == Numbers{17});
}

TEST_CASE("Random pieces are spread over the clip and follow from seed and file", "[data]") {
  ClipOptions options = at_16();
  options.frame_extraction = FrameExtraction::kRandom;
  options.frame_sample = 4;
  const Numbers drawn = cut(416, options);
  REQUIRE(drawn.size() == 4);
  for (int64_t i = 0; i < 4; ++i) {
    CHECK(drawn[static_cast<size_t>(i)] >= i * 100);
    CHECK(drawn[static_cast<size_t>(i)] < (i + 1) * 100);
  }
  CHECK(cut(416, options) == drawn);
  CHECK(cut(416, options, "b.mp4") != drawn);
  options.seed = 1;
  CHECK(cut(416, options) != drawn);
  CHECK(cut(18, options) == Numbers{0, 1});
}

}  // namespace
}  // namespace atelier::data
