// Speech to video of Wan 2.2: what its denoiser has beside the blocks. It hears sound behind some
// of them, adds a pose to the clip, and sees the frames before the clip.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"

#include "addition.h"
#include "config.h"

namespace wan {

// Conditioning of a sample of T latent frames, the first of which is a reference. All of it may be
// absent: silence, no pose, no frames before.
//
// "audio_states": [states, F, width], what an audio encoder gives at the time of each frame of the
// whole clip; behind its end is silence. "audio_frames": int64 [4 (T - 1)], which of them are heard
// with the frames behind the reference; below 0 the first one is. "pose": [C, T - 1, H, W].
inline constexpr const char *kAudioStates = "audio_states", *kAudioFrames = "audio_frames",
                            *kPose = "pose";
// "motion_latents": [C, kMotionLatentFrames, H, W], of the kMotionFrames frames before the clip.
inline constexpr const char* kMotionLatents = "motion_latents";
inline constexpr int64_t kMotionFrames = 73,
                         kMotionLatentFrames = (kMotionFrames - 1) / kFrameStride + 1;

class Injector;

// What of a sound blocks hear: the states of all its moments mixed, and convolutions of the past
// that make a few tokens and one for all of them of each latent frame.
class AudioEncoder final : public atelier::nn::Module {
 public:
  AudioEncoder(Module* parent, std::string name, const DitConfig& config);
  ~AudioEncoder() override;

  // states: [states, 4 T, width], the first of which also stand before the clip. Returns what is
  // one for all tokens of a latent frame, [T, D], and the tokens, [T, audio_tokens + 1, D].
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& states) const;

 private:
  at::Tensor encoded(const atelier::nn::Conv1d& first, const at::Tensor& x, int64_t parts) const;

  int64_t tokens_;
  atelier::WeightPtr weights_, padding_;
  atelier::nn::Conv1d local_, global_, second_, third_;
  atelier::nn::Linear final_;
};

// Weights of `parent`, called as the original checkpoint calls them, those of injectors aside.
class Speech final : public Addition {
 public:
  Speech(atelier::nn::Module* parent, const DitConfig& config);
  ~Speech() override;

  // Declares what hears behind block `index`, if anything does: blocks are told in the order in
  // which they run.
  void add_injector(int64_t index);

  std::vector<atelier::ConditioningEntry> entries() const;
  std::vector<Stretch> behind(const atelier::DenoiseInputs& in, int64_t sample) override;
  at::Tensor frame_positions(const at::Tensor& counted_T) const override;
  void begin(Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  at::Tensor kind(int64_t number, at::ScalarType dtype) const;
  at::Tensor posed(const Pass& pass) const;
  void hear(const Pass& pass);

  atelier::nn::Module* parent_;
  DitConfig config_;
  atelier::nn::Conv3d pose_;
  AudioEncoder audio_;
  atelier::nn::Embedding kinds_;  // of rows: the clip's, a reference's, those of frames before
  std::vector<std::unique_ptr<atelier::nn::Conv3d>> packs_;
  std::vector<std::pair<int64_t, std::unique_ptr<Injector>>> injectors_;  // by their blocks
  std::vector<at::Tensor> heard_;  // what injectors read beside the rows of this pass
};

}  // namespace wan
