// How Wan-Dancer's inputs are checked and encoded.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "dancer.h"
#include "dit.h"
#include "model.h"
#include "music.h"

namespace wan {

using atelier::Conditioning;
using atelier::EncodeInputs;
using atelier::Error;
using atelier::ErrorCode;
using atelier::Inputs;

namespace {

constexpr const char *kMusicInput = "wantodance_music_path", *kFpsInput = "wantodance_fps",
                     *kReferenceInput = "wantodance_reference_image",
                     *kKeyframes = "wantodance_keyframes",
                     *kKeyframesMask = "wantodance_keyframes_mask",
                     *kFramewise = "framewise_decoding";

constexpr int64_t kPublishedPictures = 38;
constexpr int64_t kPublishedFrames = 149;  // that music is spread over, at the rate of the pictures
constexpr int64_t kTokenPixels = 16;

void check_beats(const atelier::MediaTarget& target) {
  const int64_t tokens = target.height / kTokenPixels * (target.width / kTokenPixels);
  if (tokens % kBeatsAFrame == 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "frames of " + std::to_string(target.width) + " x " + std::to_string(target.height) +
                  " pixels have " + std::to_string(tokens) +
                  " tokens, which are cut into 8 beats of music",
              "make (height / 16) (width / 16) a multiple of 8, as 720 x 1280 has it");
}

void check_keyed(const char* name, const char* what, int64_t count, int64_t wanted) {
  if (count == wanted) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": " + std::to_string(count) + " " + what + ", and " +
                  std::to_string(wanted) + " are read",
              "give one for each frame of the clip; of " + std::string(kDancerGlobal) +
                  " 4 (n - 1) + 1 for n pictures");
}

void check_keys(const Inputs& inputs, int64_t frames) {
  if (const auto* keys = atelier::find_input<at::Tensor>(inputs, kKeyframes))
    check_keyed(kKeyframes, "frames", keys->size(1), frames);
  if (const auto* mask = atelier::find_input<std::vector<int64_t>>(inputs, kKeyframesMask))
    check_keyed(kKeyframesMask, "numbers", std::ssize(*mask), frames);
}

double fps_of(const Inputs& inputs, int64_t rows, bool is_global) {
  if (const auto* said = atelier::find_input<double>(inputs, kFpsInput)) return *said;
  if (!is_global) return static_cast<double>(kMusicRate);
  // As its authors have it: 149 frames for the whole music.
  const double times = std::floor(static_cast<double>(rows) / kPublishedFrames + 0.5);
  return std::round(static_cast<double>(kMusicRate) / std::max(times, 1.0) * 1e4) / 1e4;
}

// What lies beside the local model's frames, `fps` of them a second: of a sound, [1, N], samples,
// and beside a piece silence behind its end. A sound that is shorter than a clip without pieces is
// spread over all of that, as published.
at::Tensor part_of(const at::Tensor& sound_1N, const EncodeInputs& in, double fps) {
  const auto samples = [&](int64_t frames) {
    return std::llround(static_cast<double>(frames) / fps * music::kSampleRate);
  };
  if (!in.piece) return sound_1N.slice(1, 0, samples(in.target.frames));
  const int64_t first = samples(in.piece->first), end = samples(in.piece->first + in.piece->frames);
  const at::Tensor part = sound_1N.slice(1, first, end);
  return at::constant_pad_nd(part, {0, end - first - part.size(1)});
}

// Frames that are shown, [3, F, H, W], and which of them are keys, [F].
struct Keys {
  at::Tensor shown, are_known;
};

// Behind the end of the clip there are none. The last frame of a piece is the first of the next.
Keys part_of(const Keys& keys, const atelier::Piece& piece) {
  const auto cut = [&](const at::Tensor& of_frames, int64_t dim) {
    const at::Tensor part =
        of_frames.slice(dim, piece.first, piece.first + piece.frames).movedim(dim, 0);
    const int64_t missing = piece.frames - part.size(0);
    std::vector<int64_t> behind = part.sizes().vec();
    behind[0] = missing;
    return at::cat({part, at::zeros(behind, part.options())}).movedim(0, dim);
  };
  Keys part = {cut(keys.shown, 1), cut(keys.are_known, 0)};
  const int64_t next = piece.first + piece.frames;
  if (next >= keys.shown.size(1)) return part;
  part.shown.select(1, -1).copy_(keys.shown.select(1, next));
  part.are_known.narrow(0, piece.frames - 1, 1).copy_(keys.are_known.narrow(0, next, 1));
  return part;
}

}  // namespace

bool DancerInputs::makes_pictures() const {
  return model_.latent_spec().temporal_stride == 1;
}

int64_t DancerInputs::latent_frames(const atelier::MediaTarget& target) const {
  return model_.latent_shape(target, {})[1];
}

std::optional<Conditioning> DancerInputs::encode(const EncodeInputs& in,
                                                 atelier::BlockRunner& runner) {
  if (in.stage == "music") return encode_music(in);
  if (in.stage == "keyframes") return encode_keyframes(in, runner);
  if (in.stage != "dancer") return std::nullopt;
  const at::Tensor image = atelier::clip_input(in.values, kReferenceInput).select(1, 0);
  return Conditioning{{kReferenceEmbeds, model_.look_squeezed(image, runner)}};
}

atelier::MediaTarget DancerInputs::target(const Inputs& inputs,
                                          const atelier::MediaTarget& asked) const {
  if (!inputs.contains(kMusicInput)) return asked;
  if (asked.height > 0 && asked.width > 0) check_beats(asked);
  if (const auto* alone = atelier::find_input<bool>(inputs, kFramewise); alone && !*alone) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kFramewise) + " is off, and pictures of this model stand alone",
                "leave it out");
  }
  if (const auto* fps = atelier::find_input<double>(inputs, kFpsInput); fps && !(*fps > 0)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(kFpsInput) + " is not above 0",
                "use 7.5, or 30 of the local model");
  }
  atelier::MediaTarget whole = asked;
  if (whole.frames == 0) whole.frames = makes_pictures() ? kPublishedPictures : kPublishedFrames;
  check_keys(inputs, makes_pictures() ? frames_of(whole.frames) : whole.frames);
  return asked;
}

std::vector<atelier::Piece> DancerInputs::pieces(const Inputs& inputs,
                                                 const atelier::MediaTarget& target) const {
  std::vector<atelier::Piece> pieces;
  if (!inputs.contains(kMusicInput) || makes_pictures() || target.frames <= kPublishedFrames)
    return pieces;
  for (int64_t first = 0; first < target.frames; first += kPublishedFrames)
    pieces.push_back({.first = first, .frames = kPublishedFrames});
  return pieces;
}

Conditioning DancerInputs::encode_music(const EncodeInputs& in) const {
  at::Tensor sound = *atelier::find_input<at::Tensor>(in.values, kMusicInput);  // [1, N]
  if (!makes_pictures()) sound = part_of(sound, in, fps_of(in.values, 0, /*is_global=*/false));
  const int64_t rows = music::rows_of(sound.size(1));
  const at::Tensor features = sound.is_meta()
                                  ? at::empty({rows, kMusicChannels}, sound.options())
                                  : music::features_of(sound[0].to(at::kCPU)).to(sound.device());
  Conditioning made = {{kMusic, features}};
  const double fps = fps_of(in.values, rows, makes_pictures());
  if (const auto places = frame_places(latent_frames(in.target), fps))
    made[kFramePlaces] = places->to(sound.device());
  if (in.is_negative) made[kSkipsBlock] = at::ones({1}, at::kLong);
  return made;
}

// Which frames are known, and the latents of a clip of them that is black elsewhere. Without key
// frames the reference image is the first one, and the only one.
Conditioning DancerInputs::encode_keyframes(const EncodeInputs& in, atelier::BlockRunner& runner) {
  const int64_t T = latent_frames(in.target), frames = frames_of(T);
  if (!in.piece) check_keys(in.values, frames);
  const bool has_clip = in.values.contains(kKeyframes);
  Keys keys = {.shown = atelier::clip_input(in.values, has_clip ? kKeyframes : kReferenceInput),
               .are_known = {}};
  std::vector<int64_t> numbers(static_cast<size_t>(has_clip ? keys.shown.size(1) : frames), 0);
  numbers.front() = 1;
  if (const auto* mask = atelier::find_input<std::vector<int64_t>>(in.values, kKeyframesMask))
    numbers = *mask;
  keys.are_known = at::tensor(numbers).eq(1).to(keys.shown.device());
  if (in.piece) keys = part_of(keys, *in.piece);
  const at::Tensor& is_known = keys.are_known;
  const at::Tensor clip = at::where(is_known.view({1, -1, 1, 1}), keys.shown, -1.0);

  // The first frame counts as many times as a latent frame has frames.
  const at::Tensor known =
      at::cat({is_known.narrow(0, 0, 1).expand({kFrameStride - 1}), is_known}).view({T, -1, 1, 1});
  const at::Tensor latents = model_.latents_of(clip, runner);
  const at::Tensor mask = known.transpose(0, 1).expand({-1, -1, latents.size(2), latents.size(3)});
  return {{kImageEmbeds, model_.look_squeezed(clip.select(1, 0), runner)},
          {kGivenClip, at::cat({mask.to(latents.options()), latents})}};
}

}  // namespace wan
