#include "host/data/frame_picking.h"

#include <algorithm>

#include "host/files/content_hash.h"
#include "host/media/frame_rate.h"
#include "host/random/counter.h"

namespace atelier::data {
namespace {

// `count` places from 0 to `last`, as numpy.linspace(0, last, count, dtype=int) gives them.
std::vector<int64_t> spread_evenly(int64_t last, int64_t count) {
  std::vector<int64_t> places = {0};
  const double step =
      static_cast<double>(last) / static_cast<double>(std::max<int64_t>(count - 1, 1));
  for (int64_t i = 1; i < count; ++i)
    places.push_back(i + 1 == count ? last : static_cast<int64_t>(static_cast<double>(i) * step));
  return places;
}

// One place at random in each of `count` equal parts of 0 .. last. A clip has the same ones
// wherever its row stands.
std::vector<int64_t> spread_at_random(int64_t last, int64_t count, uint64_t seed,
                                      std::string_view key) {
  files::ContentHash hash;
  const std::string digits = hash.add(key).hex().substr(0, 8);
  const auto sample = static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
  const uint64_t stream = random::stream_seed(seed, random::Stream::kFrames);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) {
    const double inside = random::uniform(stream, sample, static_cast<uint32_t>(i));
    places.push_back(
        static_cast<int64_t>((static_cast<double>(i) + inside) * static_cast<double>(last + 1) /
                             static_cast<double>(count)));
  }
  return places;
}

std::vector<int64_t> every(int64_t step, int64_t last) {
  std::vector<int64_t> places;
  for (int64_t place = 0; place <= last; place += step) places.push_back(place);
  return places;
}

// Pieces of one length of a clip that has as many frames at least.
Pieces cut(int64_t available, int64_t frames, const ClipOptions& options, std::string_view key) {
  const int64_t last = available - frames;  // where the last piece can begin
  Pieces pieces = {{0}, frames};
  const int64_t count = std::min(options.frame_sample, last + 1);
  switch (options.frame_extraction) {
    case FrameExtraction::kHead:
      break;
    case FrameExtraction::kChunk:
      pieces.begins = every(pieces.frames, last);
      break;
    case FrameExtraction::kSlide:
      pieces.begins = every(options.frame_stride, last);
      break;
    case FrameExtraction::kUniform:
      pieces.begins = spread_evenly(last, count);
      break;
    case FrameExtraction::kRandom:
      pieces.begins = spread_at_random(last, count, options.seed, key);
      break;
  }
  return pieces;
}

}  // namespace

std::vector<int64_t> ClipOptions::lengths() const {
  if (num_frames.empty()) return {model_frames};
  std::vector<int64_t> lengths = num_frames;
  std::ranges::sort(lengths);
  const auto copies = std::ranges::unique(lengths);
  lengths.erase(copies.begin(), copies.end());
  return lengths;
}

std::string_view extraction_name(FrameExtraction extraction) {
  // In the order of FrameExtraction.
  constexpr std::string_view kNames[] = {"head", "chunk", "slide", "uniform", "random"};
  return kNames[static_cast<size_t>(extraction)];
}

double rate_of(const media::ClipInfo& clip, const ClipOptions& options) {
  return options.source_fps.value_or(clip.fps);
}

std::vector<int64_t> frames_at_rate(const media::ClipInfo& clip, const ClipOptions& options) {
  const double fps = options.keep_frame_rate ? 0.0 : options.model_fps;
  if (!options.source_fps) return media::frames_at_rate(clip, fps);
  media::ClipInfo said = clip;
  said.fps = *options.source_fps;
  for (size_t i = 0; i < said.times_s.size(); ++i)
    said.times_s[i] = static_cast<double>(i) / said.fps;
  said.duration_s = static_cast<double>(said.frames()) / said.fps;
  return media::frames_at_rate(said, fps);
}

std::vector<Pieces> pieces_of(int64_t available, const LatentSpec& spec, const ClipOptions& options,
                              std::string_view key) {
  std::vector<Pieces> pieces;
  for (const int64_t frames : options.lengths()) {
    if (frames <= available) pieces.push_back(cut(available, frames, options, key));
  }
  const int64_t step = spec.temporal_stride;
  if (pieces.empty()) pieces.push_back({{0}, (available - 1) / step * step + 1});
  return pieces;
}

}  // namespace atelier::data
