// Speech to video of Wan 2.2: how sound, poses and what a piece follows on are encoded, and which
// pieces a clip is made in.
#pragma once

#include <span>

#include "atelier/model_family.h"

#include "variant.h"

namespace wan {

inline constexpr double kSpeechFps = 16.0;  // frames per second that it was trained on

// Whether a part is a denoiser that hears.
bool hears(const atelier::Detection& part);

// What it is given.
class SpeechInputs final : public Variant {
 public:
  SpeechInputs(Wan& model, std::span<const atelier::Detection> parts);
  ~SpeechInputs() override = default;

  // Stage speaker gives "first_frame"; stages audio and speech give what s2v.h says.
  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  std::string_view negative_prompt() const override;
  // As long as the sound, of the shape of the image, of as many pixels as published.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  // Each sees the 73 frames before it and makes 80; the first one makes 77, or 80 where it follows
  // on something, too.
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  // The reference, then the frames.
  std::optional<int64_t> latent_frames(const atelier::Conditioning& cond) const override;
  // Behind what the piece follows on, or behind the reference.
  std::optional<atelier::FinishedLatents> to_decode(
      const at::Tensor& latents_BCTHW, const atelier::Conditioning& cond) const override;

 private:
  atelier::Conditioning encode_reference(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner);
  atelier::Conditioning encode_audio(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_speech(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);

  bool hears_;
};

}  // namespace wan
