// Shape letters: S states of the audio encoder, F its moments, T latent frames.
#include "s2v_stages.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/wav2vec2.h"

#include "dit.h"
#include "model.h"
#include "s2v.h"

namespace wan {

using atelier::Conditioning;
using atelier::EncodeInputs;
using atelier::Inputs;
using atelier::MediaTarget;
using atelier::Piece;

namespace {

constexpr const char *kAudioInput = "input_audio", *kPoseInput = "s2v_pose_video",
                     *kMotionVideo = "motion_video", *kStartsAtImage = "init_first_frame";
// Conditioning of a piece whose first frame follows on something, and is no shared frame.
constexpr const char* kFollows = "follows";

// Frames that a piece makes. Those that come behind a reference alone are dropped.
constexpr int64_t kSpeechFrames = 80, kDropped = 3;
constexpr int64_t kImageFrames = 6;  // that show the image where the clip begins with it

constexpr int64_t kSampleRate = 16000;
// Two moments of the encoder, of which one is heard at the rate between.
constexpr int64_t kFewestSamples = 720;
constexpr double kMomentRate = 50.0, kMixedRate = 30.0;  // a second, of the encoder and between

constexpr std::string_view kNegativeSpeechPrompt =
    "画面模糊，最差质量，画面模糊，细节模糊不清，情绪激动剧烈，手快速抖动，字幕，丑陋的，残缺的，"
    "多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走";

constexpr int64_t kPixels = 704 * 1024;  // of a frame, as published
constexpr int64_t kSideMultiple = 64;
constexpr int64_t kSmallestSide = 64;  // that frames before the clip are shown at

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool starts_at_image(const Inputs& inputs) {
  const auto* flag = atelier::find_input<bool>(inputs, kStartsAtImage);
  return flag != nullptr && *flag;
}

// Whether a clip begins behind frames, and not behind the reference alone.
bool follows(const Inputs& inputs) {
  return starts_at_image(inputs) || inputs.contains(kMotionVideo);
}

}  // namespace

bool hears(const atelier::Detection& part) {
  const auto states = part.config.find("audio_states");
  return states != part.config.end() && part.integer("audio_states") > 0;
}

SpeechInputs::SpeechInputs(Wan& model, std::span<const atelier::Detection> parts)
    : Variant(model), hears_(std::ranges::any_of(parts, hears)) {}

std::string_view SpeechInputs::negative_prompt() const {
  return hears_ ? kNegativeSpeechPrompt : std::string_view();
}

std::optional<Conditioning> SpeechInputs::encode(const EncodeInputs& in,
                                                 atelier::BlockRunner& runner) {
  if (in.stage == "speaker") return encode_reference(in, runner);
  if (in.stage == "audio") return encode_audio(in, runner);
  if (in.stage == "speech") return encode_speech(in, runner);
  return std::nullopt;
}

// ---- What is made ----

namespace {

// The largest size of the shape of an image, and not larger than it, whose sides are rounded up to
// multiples and that has no more pixels than published.
MediaTarget size_of(int64_t height, int64_t width) {
  constexpr int kTries = 100;
  constexpr int64_t d = kSideMultiple - 1;
  const auto pixels = static_cast<double>(height) * static_cast<double>(width);
  double least = 0.1, most = 1.0;
  if (height * width > kPixels) {  // between what is surely small enough and what fits unrounded
    const auto b = static_cast<double>(d * (height + width));
    const auto c = static_cast<double>(d * d - kPixels);
    least = (-b + std::sqrt(b * b - 2 * pixels * c)) / (2 * pixels);
    most = std::sqrt(static_cast<double>(kPixels) / pixels);
  }
  for (int i = 0; i < kTries; ++i) {
    const double scale = most - (most - least) * i / kTries;
    const auto side = [&](int64_t length) {
      return rounded_up(static_cast<int64_t>(static_cast<double>(length) * scale), kSideMultiple);
    };
    if (side(height) * side(width) <= kPixels && side(height) > 0 && side(width) > 0)
      return {0, side(height), side(width)};
  }
  return {};
}

using atelier::Error;
using atelier::ErrorCode;

void check_frames(int64_t frames) {
  if (frames != 1) return;
  throw Error(ErrorCode::kInvalidArgument, "num_frames 1: nothing is heard in a single frame",
              "make 5 frames or more");
}

void check_sound(int64_t samples) {
  if (samples >= kFewestSamples) return;
  throw Error(ErrorCode::kInvalidArgument,
              "input_audio: " + std::to_string(samples) + " samples at 16 kHz, " +
                  std::to_string(kFewestSamples) + " are the fewest that are heard",
              "give a longer sound");
}

void check_motion(int64_t frames) {
  if (frames >= kMotionFrames) return;
  throw Error(ErrorCode::kInvalidArgument,
              "motion_video: " + std::to_string(frames) +
                  " frames at the rate of the clip, which follows on " +
                  std::to_string(kMotionFrames),
              "give a longer clip");
}

void check_size(const MediaTarget& target) {
  if (std::min(target.height, target.width) >= kSmallestSide) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a clip of " + std::to_string(target.height) + "x" + std::to_string(target.width) +
                  " pixels follows on no other frames",
              "make it 64x64 or larger, or 77 frames or less behind nothing");
}

}  // namespace

MediaTarget SpeechInputs::target(const Inputs& inputs, const MediaTarget& asked) const {
  MediaTarget made = asked;
  if (!hears_) return made;
  check_frames(made.frames);
  const auto* sound = atelier::find_input<at::Tensor>(inputs, kAudioInput);
  if (sound != nullptr) check_sound(sound->size(1));
  if (const auto* clip = atelier::find_input<at::Tensor>(inputs, kMotionVideo))
    check_motion(clip->size(1));
  if (made.frames == 0 && sound != nullptr) {
    const double seconds = static_cast<double>(sound->size(1)) / kSampleRate;
    made.frames = std::max(static_cast<int64_t>(std::ceil(seconds * kSpeechFps)), kFrameStride + 1);
  }
  const auto* image = atelier::find_input<at::Tensor>(inputs, "input_image");
  if (made.height == 0 && made.width == 0 && image != nullptr) {
    const MediaTarget size = size_of(image->size(1), image->size(2));
    made.height = size.height, made.width = size.width;
  }
  return made;
}

std::vector<Piece> SpeechInputs::pieces(const Inputs& inputs, const MediaTarget& target) const {
  if (!hears_) return {};
  const int64_t dropped = follows(inputs) ? 0 : kDropped;
  const int64_t begun = std::min(rounded_up(target.frames + dropped, kFrameStride), kSpeechFrames);
  std::vector<Piece> pieces = {{.first = 0, .frames = begun - dropped}};
  for (int64_t end = pieces[0].frames; end < target.frames; end += kSpeechFrames) {
    pieces.push_back({.first = end - kMotionFrames,
                      .frames = kMotionFrames + kSpeechFrames,
                      .shared = kMotionFrames});
  }
  if (follows(inputs) || pieces.size() > 1) check_size(target);
  return pieces;
}

std::optional<int64_t> SpeechInputs::latent_frames(const Conditioning& cond) const {
  const auto heard = cond.find(kAudioFrames);
  if (heard == cond.end()) return std::nullopt;
  return 1 + heard->second.size(0) / kFrameStride;
}

std::optional<atelier::FinishedLatents> SpeechInputs::to_decode(const at::Tensor& latents_BCTHW,
                                                                const Conditioning& cond) const {
  if (!cond.contains(kAudioFrames)) return std::nullopt;
  const auto motion = cond.find(kMotionLatents);
  if (motion == cond.end()) return atelier::FinishedLatents{latents_BCTHW, 1 + kDropped};
  const at::Tensor before =
      motion->second.to(latents_BCTHW.options()).expand({latents_BCTHW.size(0), -1, -1, -1, -1});
  return atelier::FinishedLatents{at::cat({before, latents_BCTHW.slice(2, 1)}, 2),
                                  cond.contains(kFollows) ? kMotionFrames : 0};
}

Conditioning SpeechInputs::encode_reference(const EncodeInputs& in, atelier::BlockRunner& runner) {
  check_frames(in.target.frames);
  return {{kFirstFrame, model_.encode_latents(in.values, "input_image", runner).at("latents")}};
}

// ---- Sound ----

namespace {

// What is heard at the time of each frame, [S, frames, width]: states [S, F, width] of the encoder
// are brought to 30 a second first, as published, and the nearest ones taken.
at::Tensor at_frames(const at::Tensor& states, double fps) {
  const auto mixed =
      static_cast<int64_t>(static_cast<double>(states.size(1)) / kMomentRate * kMixedRate);
  std::vector<int64_t> numbers;
  for (int64_t k = 0;; ++k) {
    const auto number =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(k) / fps * kMixedRate));
    if (number >= mixed) break;
    numbers.push_back(number);
  }
  const at::Tensor index = at::tensor(numbers, at::kLong).to(states.device());
  std::vector<at::Tensor> heard;
  for (const at::Tensor& state : states.unbind(0)) {
    const at::Tensor between = at::upsample_linear1d(state.to(at::kFloat).t().unsqueeze(0), mixed,
                                                     /*align_corners=*/true);
    heard.push_back(between[0].t().index_select(0, index).to(states.scalar_type()));
  }
  return at::stack(heard);
}

}  // namespace

Conditioning SpeechInputs::encode_audio(const EncodeInputs& in, atelier::BlockRunner& runner) {
  const auto& encoder = model_.loaded<atelier::parts::Wav2Vec2>("audio_encoder");
  const at::Tensor samples = (*atelier::find_input<at::Tensor>(in.values, kAudioInput))[0];
  check_sound(samples.size(0));
  if (in.is_negative)
    return {{kAudioStates, at::zeros({encoder.states(), 1, encoder.width()}, samples.options())}};
  const at::Tensor states = encoder.forward(atelier::parts::normalised_sound(samples), runner);
  return {{kAudioStates, at_frames(states, in.fps > 0 ? in.fps : kSpeechFps)}};
}

// ---- What runs beside a piece, and what it follows on ----

namespace {

// Frames of a piece, or of a clip that is learnt.
struct Frames {
  int64_t made;   // behind the reference
  int64_t first;  // the number in the whole clip of the first of them
};

Frames frames_of(const EncodeInputs& in) {
  if (!in.piece) return {in.target.frames - 1, 1};  // its first frame is in the reference's place
  const bool is_begun = in.before_CTHW.defined() || follows(in.values);
  const int64_t dropped = is_begun ? 0 : kDropped;
  return {in.piece->frames - in.piece->shared + dropped,
          in.piece->first + in.piece->shared - dropped};
}

// The frames that a piece follows on, [3, kMotionFrames, H, W]; undefined: none.
at::Tensor frames_before(const EncodeInputs& in) {
  if (!in.piece || in.before_CTHW.defined()) return in.before_CTHW;
  if (in.values.contains(kMotionVideo)) {
    const at::Tensor clip = atelier::clip_input(in.values, kMotionVideo);
    return clip.slice(1, clip.size(1) - kMotionFrames);
  }
  if (!starts_at_image(in.values)) return {};
  const at::Tensor image = atelier::clip_input(in.values, "input_image");
  return at::cat({at::zeros_like(image).expand({-1, kMotionFrames - kImageFrames, -1, -1}),
                  image.expand({-1, kImageFrames, -1, -1})},
                 1);
}

// The poses of the frames that are made, behind as many of the first one as make the first latent
// frame one that is left out.
at::Tensor poses(const EncodeInputs& in, const Frames& frames) {
  const at::Tensor clip = atelier::clip_input(in.values, kPoseInput);
  if (!in.piece) return clip;
  const at::Tensor seen = clip.slice(1, in.piece->shared);
  const int64_t more = frames.made + 1 - seen.size(1);
  return at::cat({seen.narrow(1, 0, 1).expand({-1, more, -1, -1}), seen}, 1);
}

}  // namespace

Conditioning SpeechInputs::encode_speech(const EncodeInputs& in, atelier::BlockRunner& runner) {
  const Frames frames = frames_of(in);
  const auto device = atelier::clip_input(in.values, "input_image").device();
  Conditioning made = {{kAudioFrames, at::arange(frames.first, frames.first + frames.made,
                                                 at::TensorOptions(device).dtype(at::kLong))}};
  if (in.values.contains(kPoseInput))
    made[kPose] = model_.latents_of(poses(in, frames), runner).slice(1, 1);
  const at::Tensor before = frames_before(in);
  if (!before.defined()) return made;
  made[kMotionLatents] = model_.latents_of(before, runner);
  if (!in.before_CTHW.defined()) made[kFollows] = at::ones({1}, before.options());
  return made;
}

}  // namespace wan
