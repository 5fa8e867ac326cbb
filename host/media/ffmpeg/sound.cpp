#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "host/media/ffmpeg/demuxer.h"

namespace atelier::media::ffmpeg {
namespace {

constexpr int kMostChannels = 64, kMostRate = 768'000;
// What a header may say more than there is: the samples that an encoder puts in front.
constexpr double kToleranceSeconds = 0.2;

// Goes over the packets of a track, so that a file that was cut is known before it is decoded.
class Packets {
 public:
  explicit Packets(Demuxer& demuxer) {
    Packet packet(av_packet_alloc());
    if (packet == nullptr) throw std::bad_alloc();
    while (demuxer.next(*packet)) {
      ++count_;
      summed_ += packet->duration;
      if (packet->pts == AV_NOPTS_VALUE) continue;
      if (!begin_) begin_ = packet->pts;
      begin_ = std::min(*begin_, packet->pts);
      end_ = std::max(end_, packet->pts + packet->duration);
    }
  }

  int64_t count() const { return count_; }
  // In the stream's unit.
  int64_t duration() const {
    // What an encoder puts in front stands before 0, and is not decoded.
    return begin_ ? std::max(end_ - std::max(*begin_, int64_t{0}), int64_t{0}) : summed_;
  }

 private:
  int64_t count_ = 0, summed_ = 0, end_ = 0;
  std::optional<int64_t> begin_;
};

class SoundReader {
 public:
  explicit SoundReader(const std::filesystem::path& path)
      : path_(path), place_(path.string()), demuxer_(path, Track::kSound) {
    const AVCodecParameters& stream = *demuxer_.stream().codecpar;
    info_ = {.format = demuxer_.format(),
             .codec = avcodec_get_name(stream.codec_id),
             .channels = stream.ch_layout.nb_channels,
             .sample_rate = stream.sample_rate};
    open_decoder();
    if (info_.channels < 1 || info_.channels > kMostChannels || info_.sample_rate < 1 ||
        info_.sample_rate > kMostRate)
      throw Error(ErrorCode::kUnsupported,
                  place_ + ": a sound of " + std::to_string(info_.channels) + " channels with " +
                      std::to_string(info_.sample_rate) + " samples a second, which is not read",
                  "convert it to WAV with 48000 samples a second");
    if (const auto error = demuxer_.cut_short("its end is missing")) throw Error(*error);
  }

  // Finds how long it is; the packets are then used up.
  SoundInfo probe() {
    const Packets packets(demuxer_);
    if (packets.count() == 0)
      throw Error(ErrorCode::kDataLoss, place_ + ": holds a sound of no samples",
                  "the file is damaged or cut short; get it again");
    const double unit_s = av_q2d(demuxer_.stream().time_base);
    const double seconds = static_cast<double>(packets.duration()) * unit_s;
    // Containers of one sound whose headers count what follows.
    const bool is_told = info_.format == "flac" || info_.format == "mp3" || info_.format == "wav";
    const double told = is_told ? static_cast<double>(demuxer_.told_duration()) * unit_s : 0;
    if (told > seconds + kToleranceSeconds) {
      char text[96];
      std::snprintf(text, sizeof(text), ": is cut short: %.1f of %.1f seconds", seconds, told);
      throw Error(ErrorCode::kDataLoss, place_ + text, "get it again");
    }
    info_.samples = std::llround(seconds * info_.sample_rate);
    return info_;
  }

  Sound read(const SoundRequest& request);

 private:
  void open_decoder();
  bool receive(const std::function<void(const AVFrame*)>& take);
  [[noreturn]] void fail(const std::string& what) const;

  const std::filesystem::path path_;
  const std::string place_;
  Demuxer demuxer_;
  SoundInfo info_;
  Codec decoder_;
  double reached_s_ = 0;  // the end of what is decoded
};

void SoundReader::open_decoder() {
  const AVCodecParameters& stream = *demuxer_.stream().codecpar;
  const AVCodec* codec = avcodec_find_decoder(stream.codec_id);
  decoder_.reset(avcodec_alloc_context3(codec));
  if (decoder_ == nullptr) throw std::bad_alloc();
  decoder_->codec_whitelist = av_strdup(demuxer_.context().codec_whitelist);
  decoder_->thread_count = 1;
  decoder_->pkt_timebase = demuxer_.stream().time_base;
  int code = codec == nullptr ? AVERROR_DECODER_NOT_FOUND
                              : avcodec_parameters_to_context(decoder_.get(), &stream);
  if (code >= 0) code = avcodec_open2(decoder_.get(), codec, nullptr);
  if (code >= 0) return;
  throw Error(ErrorCode::kUnsupported,
              place_ + ": a sound of the codec '" + info_.codec + "', which is not read",
              "convert it to WAV or FLAC");
}

void SoundReader::fail(const std::string& what) const {
  char time[48];
  std::snprintf(time, sizeof(time), ": at %.3f s ", reached_s_);
  throw Error(ErrorCode::kDataLoss, place_ + time + what, "the sound is damaged; get it again");
}

// Gives the frames that the decoder has; false behind the last one.
bool SoundReader::receive(const std::function<void(const AVFrame*)>& take) {
  Frame frame(av_frame_alloc());
  if (frame == nullptr) throw std::bad_alloc();
  for (;;) {
    const int code = avcodec_receive_frame(decoder_.get(), frame.get());
    if (code == AVERROR(EAGAIN)) return true;
    if (code == AVERROR_EOF) return false;
    if (code < 0) fail("it cannot be decoded: " + message_of(code));
    if (frame->ch_layout.nb_channels != info_.channels || frame->sample_rate != info_.sample_rate)
      throw Error(ErrorCode::kUnsupported,
                  place_ + ": changes its channels or its rate within the sound",
                  "convert it to WAV");
    take(frame.get());
    reached_s_ += static_cast<double>(frame->nb_samples) / info_.sample_rate;
  }
}

// What is decoded, mixed and brought to another rate, and kept as far as it is wanted.
class Mixer {
 public:
  Mixer(const SoundInfo& info, const SoundRequest& request, const std::string& place)
      : info_(info), request_(request), place_(place) {
    channels_.resize(static_cast<size_t>(request.channels));
  }

  void take(const AVFrame* frame) {
    if (resampler_ == nullptr) open(*frame);
    decoded_ += frame->nb_samples;
    convert(const_cast<const uint8_t**>(frame->extended_data), frame->nb_samples);
  }
  // Whether all that is wanted is there.
  bool is_full() const { return made_ >= end(); }

  Sound finish() {
    if (decoded_ == 0)
      throw Error(ErrorCode::kDataLoss, place_ + ": holds a sound of no samples",
                  "the file is damaged or cut short; get it again");
    if (!is_full()) convert(nullptr, 0);
    const int64_t whole = samples_at_rate(decoded_, info_.sample_rate, request_.sample_rate);
    const int64_t count = std::max<int64_t>(0, std::min(whole, end()) - request_.first);
    Sound sound = {request_.channels, request_.sample_rate, {}};
    for (std::vector<float>& channel : channels_) {
      channel.resize(static_cast<size_t>(count));  // filters end a sample sooner or later
      sound.values.insert(sound.values.end(), channel.begin(), channel.end());
    }
    return sound;
  }

 private:
  int64_t end() const {
    return request_.count > kMostSamples ? kMostSamples + request_.first
                                         : request_.first + request_.count;
  }

  void open(const AVFrame& frame) {
    AVChannelLayout from = {}, to = {};
    if (frame.ch_layout.order == AV_CHANNEL_ORDER_UNSPEC) {
      av_channel_layout_default(&from, info_.channels);
    } else {
      av_channel_layout_copy(&from, &frame.ch_layout);
    }
    av_channel_layout_default(&to, request_.channels);
    SwrContext* made = nullptr;
    int code = swr_alloc_set_opts2(&made, &to, AV_SAMPLE_FMT_FLTP, request_.sample_rate, &from,
                                   static_cast<AVSampleFormat>(frame.format), info_.sample_rate,
                                   /*log_offset=*/0, /*log_ctx=*/nullptr);
    resampler_.reset(made);
    av_channel_layout_uninit(&from);
    if (code >= 0) code = av_opt_set_sample_fmt(made, "internal_sample_fmt", AV_SAMPLE_FMT_DBLP, 0);
    if (code >= 0 && (request_.channels == 1 || info_.channels == 1)) {
      const std::vector<double> means(static_cast<size_t>(info_.channels * request_.channels),
                                      1.0 / info_.channels);
      code = swr_set_matrix(made, means.data(), info_.channels);
    }
    if (code >= 0) code = swr_init(made);
    if (code < 0)
      throw Error(ErrorCode::kUnsupported,
                  place_ + ": the sound cannot be converted: " + message_of(code),
                  "convert it to WAV with one channel or two");
  }

  void convert(const uint8_t** data, int samples) {
    std::vector<std::vector<float>> out(channels_.size());
    std::vector<uint8_t*> planes;
    const int room = std::max(swr_get_out_samples(resampler_.get(), samples), 1);
    for (std::vector<float>& channel : out) {
      channel.resize(static_cast<size_t>(room));
      planes.push_back(reinterpret_cast<uint8_t*>(channel.data()));
    }
    const int count = swr_convert(resampler_.get(), planes.data(), room, data, samples);
    if (count < 0)
      throw Error(ErrorCode::kDataLoss,
                  place_ + ": the sound cannot be converted: " + message_of(count),
                  "the sound is damaged; get it again");
    for (size_t i = 0; i < out.size(); ++i) keep(out[i].data(), count, channels_[i]);
    made_ += count;
    if (request_.count > kMostSamples && made_ > end())
      throw Error(ErrorCode::kInvalidArgument,
                  place_ + ": the sound has more than " + std::to_string(kMostSamples) +
                      " samples at " + std::to_string(request_.sample_rate) + " a second",
                  "cut it into shorter ones");
  }

  // The part of `samples` that is wanted; filters and files of floats may go beyond 1.
  void keep(const float* samples, int count, std::vector<float>& to) const {
    const int64_t first = std::clamp<int64_t>(request_.first - made_, 0, count);
    const int64_t last = std::clamp<int64_t>(end() - made_, first, count);
    for (int64_t i = first; i < last; ++i) {
      if (!std::isfinite(samples[i]))
        throw Error(ErrorCode::kDataLoss, place_ + ": the sound holds values that are no numbers",
                    "get it again");
      to.push_back(std::clamp(samples[i], -1.0f, 1.0f));
    }
  }

  const SoundInfo& info_;
  const SoundRequest& request_;
  const std::string& place_;
  Resampler resampler_;
  std::vector<std::vector<float>> channels_;
  int64_t decoded_ = 0, made_ = 0;
};

Sound SoundReader::read(const SoundRequest& request) {
  Mixer mixer(info_, request, place_);
  Packet packet(av_packet_alloc());
  if (packet == nullptr) throw std::bad_alloc();
  const auto take = [&](const AVFrame* frame) { mixer.take(frame); };
  bool goes_on = true;
  while (goes_on && !mixer.is_full()) {
    const bool has_packet = demuxer_.next(*packet);
    const int code = avcodec_send_packet(decoder_.get(), has_packet ? packet.get() : nullptr);
    if (code < 0) fail("it cannot be decoded: " + message_of(code));
    goes_on = receive(take) && has_packet;
  }
  return mixer.finish();
}

}  // namespace

SoundInfo probe_sound(const std::filesystem::path& path) {
  return SoundReader(path).probe();
}

Sound read_sound(const std::filesystem::path& path, const SoundRequest& request) {
  return SoundReader(path).read(request);
}

}  // namespace atelier::media::ffmpeg
