// Wan-Dancer: who is shown in an image dances to music, from key frame to key frame.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/part_view.h"

#include "addition.h"
#include "config.h"
#include "dit_block.h"
#include "variant.h"

namespace wan {

// Conditioning: features of the music, [n, kMusicChannels] of any n, and rows of an image encoder
// of who dances.
inline constexpr const char *kMusic = "music", *kReferenceEmbeds = "reference_embeds";
// Where latent frames are at another rate than 30 a second, [T, 3]: between which two positions
// each lies, and how near it is to the second one.
inline constexpr const char* kFramePlaces = "frame_places";

inline constexpr int64_t kMusicChannels = 35, kMusicRate = 30;  // features, and rows a second
// Each latent frame has as many equal stretches of tokens that music is added to.
inline constexpr int64_t kBeatsAFrame = 8;

class MusicLayer;
class MusicInjector;

// What a model that dances has beside one of image to video. Music is added behind some blocks, and
// latents of another rate than 30 frames a second have a way in and a way out of their own.
class Dance final : public Addition {
 public:
  Dance(atelier::nn::Module* parent, const DitConfig& config);
  ~Dance() override;

  // Declares what adds music behind block `index`. Called for each block in turn, as they run.
  void declare_behind(int64_t index);

  // Whether latents are at another rate, all of them. Throws Error{kInvalidArgument} where some
  // are.
  static bool is_slow(const atelier::DenoiseInputs& in);
  // In place of what the denoiser has for 30 frames a second: [B, C, T, H, W] to the rows of its
  // tokens, and the head.
  at::Tensor patches(const at::Tensor& x_BCTHW) const;
  const Head& head() const { return head_; }

  void begin(Pass& pass) override;
  bool replace(int64_t index, DitBlock& block, Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  struct Spread {
    at::Tensor rows, columns;
  };
  void show_reference(Pass& pass) const;
  void turn_by_places(Pass& pass) const;
  at::Tensor encoded_music(Pass& pass);
  const Spread& spread(int64_t from, int64_t to, at::Device device);

  atelier::nn::Module* parent_;
  DitConfig config_;
  atelier::nn::Linear projection_;
  std::vector<std::unique_ptr<MusicLayer>> layers_;
  atelier::nn::Conv3d patches_;
  Head head_;
  ImageEmbedding reference_;
  atelier::nn::Conv2d unused_;  // the file has it, and nothing reads it
  std::vector<std::pair<int64_t, std::unique_ptr<MusicInjector>>> injectors_;  // behind which block
  atelier::nn::RecentTables<std::pair<std::vector<int64_t>, at::Device>, Spread> spreads_;
  at::Tensor music_;  // of the pass that runs, [B beats, D]
};

// What it is given. Of models whose latent frames are pictures of their own it is the global one,
// else the local one, which makes a long dance in pieces, each between key frames of its own.
class DancerInputs final : public Variant {
 public:
  using Variant::Variant;
  ~DancerInputs() override = default;

  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  // As asked for. Throws Error{kInvalidArgument} where the inputs do not fit.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;

 private:
  bool makes_pictures() const;
  int64_t latent_frames(const atelier::MediaTarget& target) const;
  atelier::Conditioning encode_music(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_keyframes(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner);
};

// Whether a DiT of original names dances, and the numbers that its tensors tell of it.
bool dances(const atelier::PartView& view);
void read_dance(const atelier::PartView& view, DitConfig& config);

// The published name of one of its weights, and of any other weight the same.
std::string dance_name(const std::string& path);

// Where latent frames of a clip of `fps` lie among those of 30 frames a second, see kFramePlaces;
// nullopt: on them. `fps` above 0.
std::optional<at::Tensor> frame_places(int64_t frames, double fps);

}  // namespace wan
