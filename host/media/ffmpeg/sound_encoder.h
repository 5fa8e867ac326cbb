// The sound of a clip that is being written, as packets of AAC.
#pragma once

#include <functional>
#include <memory>

#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::media::ffmpeg {

class SoundEncoder {
 public:
  // Throws Error{kEnvironment}.
  explicit SoundEncoder(std::shared_ptr<const Sound> sound);

  const AVCodecContext& context() const { return *encoder_; }

  // Encodes what sounds before that time and gives its packets, with times in units of
  // context().time_base. Throws as the constructor, and what `write` throws.
  void encode_until(double seconds, const std::function<void(AVPacket*)>& write);
  // The rest of what sounds before that time; to be called once.
  void finish(double seconds, const std::function<void(AVPacket*)>& write);

 private:
  void encode(const AVFrame* frame, const std::function<void(AVPacket*)>& write);

  const std::shared_ptr<const Sound> sound_;
  Codec encoder_;
  Packet packet_;
  int64_t next_ = 0;  // the first sample that is not encoded
};

}  // namespace atelier::media::ffmpeg
