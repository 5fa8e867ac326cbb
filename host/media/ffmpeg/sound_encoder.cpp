#include "host/media/ffmpeg/sound_encoder.h"

#include <algorithm>

namespace atelier::media::ffmpeg {
namespace {

// Bits a second of one channel, at which no loss is heard; fewer where a rate allows no more.
constexpr int64_t kBitRate = 128'000, kMostBitsPerSample = 4;

}  // namespace

SoundEncoder::SoundEncoder(std::shared_ptr<const Sound> sound)
    : sound_(std::move(sound)), packet_(required(av_packet_alloc())) {
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_AAC);
  if (codec == nullptr)
    throw Error(ErrorCode::kEnvironment,
                std::string("FFmpeg ") + av_version_info() + " has no encoder of AAC",
                "install one that has, as Debian's", "VIDEO_ENCODER");
  encoder_.reset(required(avcodec_alloc_context3(codec)));
  encoder_->sample_rate = sound_->sample_rate;
  encoder_->sample_fmt = AV_SAMPLE_FMT_FLTP;
  encoder_->time_base = {1, sound_->sample_rate};
  encoder_->bit_rate =
      sound_->channels * std::min(kBitRate, kMostBitsPerSample * sound_->sample_rate);
  av_channel_layout_default(&encoder_->ch_layout, sound_->channels);
  encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
  require(avcodec_open2(encoder_.get(), codec, nullptr));
}

void SoundEncoder::encode_until(double seconds, const std::function<void(AVPacket*)>& write) {
  const int64_t samples = sound_->samples();
  while (next_ < samples && static_cast<double>(next_) < seconds * sound_->sample_rate) {
    Frame frame(required(av_frame_alloc()));
    frame->nb_samples = static_cast<int>(std::min<int64_t>(encoder_->frame_size, samples - next_));
    frame->format = encoder_->sample_fmt;
    require(av_channel_layout_copy(&frame->ch_layout, &encoder_->ch_layout));
    require(av_frame_get_buffer(frame.get(), 0));
    for (int c = 0; c < sound_->channels; ++c)
      std::copy_n(sound_->values.data() + c * samples + next_, frame->nb_samples,
                  reinterpret_cast<float*>(frame->data[c]));
    frame->pts = next_;
    next_ += frame->nb_samples;
    encode(frame.get(), write);
  }
}

void SoundEncoder::finish(double seconds, const std::function<void(AVPacket*)>& write) {
  encode_until(seconds, write);
  encode(nullptr, write);
}

void SoundEncoder::encode(const AVFrame* frame, const std::function<void(AVPacket*)>& write) {
  require(avcodec_send_frame(encoder_.get(), frame));
  for (;;) {
    const int result = avcodec_receive_packet(encoder_.get(), packet_.get());
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
    require(result);
    write(packet_.get());
  }
}

}  // namespace atelier::media::ffmpeg
