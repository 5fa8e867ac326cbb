#include <algorithm>
#include <optional>

#include "atelier/error.h"

#include "host/media/ffmpeg/ffmpeg.h"
#include "host/media/ffmpeg/sound_encoder.h"

namespace atelier::media::ffmpeg {
namespace {

constexpr const char* kEncoder = "libx264";
constexpr const char* kQuality = "18";  // constant rate factor: no loss is seen at this one
// Fixed, because the bytes depend on it.
constexpr int kThreads = 4;

struct FreeOutput {
  void operator()(AVFormatContext* output) const {
    avio_closep(&output->pb);
    avformat_free_context(output);
  }
};

const AVCodec* find_encoder() {
  const AVCodec* codec = avcodec_find_encoder_by_name(kEncoder);
  if (codec == nullptr)
    throw Error(ErrorCode::kEnvironment,
                std::string("FFmpeg ") + av_version_info() + " has no encoder " + kEncoder,
                "install one that has, as Debian's", "VIDEO_ENCODER");
  return codec;
}

// H.264 in MP4, colours as BT.709 in limited range with half the resolution; sound in AAC.
class H264Writer final : public ClipWriter {
 public:
  H264Writer(const std::filesystem::path& path, const ClipSettings& settings)
      : settings_(settings), packet_(required(av_packet_alloc())) {
    open_encoder();
    if (settings.sound != nullptr) sound_.emplace(settings.sound);
    make_scaler();
    open_file("file:" + path.string());
  }

  void add(const Image& frame) override {
    require_size(settings_, frame);
    require(av_frame_make_writable(frame_.get()));
    const Image even = with_even_sides(frame);
    const uint8_t* const planes[] = {even.rgb.data()};
    const int strides[] = {static_cast<int>(even.row_bytes())};
    sws_scale(scaler_.get(), planes, strides, 0, even.height, frame_->data, frame_->linesize);
    frame_->pts = frames_++;
    encode(frame_.get());
    if (sound_)
      sound_->encode_until(static_cast<double>(frames_) / settings_.fps,
                           [&](AVPacket* packet) { write_sound(packet); });
  }

  void finish() override {
    encode(nullptr);
    if (sound_)
      sound_->finish(static_cast<double>(frames_) / settings_.fps,
                     [&](AVPacket* packet) { write_sound(packet); });
    require(av_write_trailer(output_.get()));
    require(avio_closep(&output_->pb));
  }

 private:
  void open_encoder() {
    const AVCodec* codec = find_encoder();
    encoder_.reset(required(avcodec_alloc_context3(codec)));
    encoder_->width = settings_.width + settings_.width % 2;
    encoder_->height = settings_.height + settings_.height % 2;
    constexpr int kLargest = 1'001'000;  // holds 24000/1001 and the like
    encoder_->framerate = av_d2q(settings_.fps, kLargest);
    encoder_->time_base = av_inv_q(encoder_->framerate);
    encoder_->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder_->color_primaries = AVCOL_PRI_BT709;
    encoder_->color_trc = AVCOL_TRC_BT709;
    encoder_->colorspace = AVCOL_SPC_BT709;
    encoder_->color_range = AVCOL_RANGE_MPEG;
    encoder_->chroma_sample_location = AVCHROMA_LOC_LEFT;
    encoder_->thread_count = kThreads;
    encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    require(av_opt_set(encoder_->priv_data, "crf", kQuality, 0));
    require(avcodec_open2(encoder_.get(), codec, nullptr));
  }

  void make_scaler() {
    frame_.reset(required(av_frame_alloc()));
    frame_->format = encoder_->pix_fmt;
    frame_->width = encoder_->width;
    frame_->height = encoder_->height;
    frame_->color_primaries = encoder_->color_primaries;
    frame_->color_trc = encoder_->color_trc;
    frame_->colorspace = encoder_->colorspace;
    frame_->color_range = encoder_->color_range;
    frame_->chroma_location = encoder_->chroma_sample_location;
    require(av_frame_get_buffer(frame_.get(), 0));
    scaler_.reset(required(sws_getContext(
        frame_->width, frame_->height, AV_PIX_FMT_RGB24, frame_->width, frame_->height,
        AV_PIX_FMT_YUV420P, SWS_BICUBIC | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND | SWS_BITEXACT,
        nullptr, nullptr, nullptr)));
    const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
    constexpr int kOne = 1 << 16;
    require(sws_setColorspaceDetails(scaler_.get(), bt709, /*srcRange=*/1, bt709, /*dstRange=*/0,
                                     /*brightness=*/0, /*contrast=*/kOne, /*saturation=*/kOne));
  }

  void open_file(const std::string& url) {
    AVFormatContext* made = nullptr;
    require(avformat_alloc_output_context2(&made, nullptr, "mp4", url.c_str()));
    output_.reset(made);
    output_->flags |= AVFMT_FLAG_BITEXACT;  // no version of FFmpeg
    stream_ = required(avformat_new_stream(made, nullptr));
    require(avcodec_parameters_from_context(stream_->codecpar, encoder_.get()));
    stream_->time_base = encoder_->time_base;
    stream_->avg_frame_rate = encoder_->framerate;
    if (sound_) {
      sound_stream_ = required(avformat_new_stream(made, nullptr));
      require(avcodec_parameters_from_context(sound_stream_->codecpar, &sound_->context()));
      sound_stream_->time_base = sound_->context().time_base;
    }
    if (!settings_.comment.empty())
      require(av_dict_set(&output_->metadata, "comment", settings_.comment.c_str(), 0));
    // The index stands before the frames, so that players begin while they load.
    require(av_opt_set(output_->priv_data, "movflags", "+faststart", 0));
    require(avio_open(&output_->pb, url.c_str(), AVIO_FLAG_WRITE));
    require(avformat_write_header(made, nullptr));
  }

  // Gives a frame to the encoder, or none behind the last, and writes what comes back.
  void encode(const AVFrame* frame) {
    require(avcodec_send_frame(encoder_.get(), frame));
    for (;;) {
      const int result = avcodec_receive_packet(encoder_.get(), packet_.get());
      if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
      require(result);
      packet_->duration = 1;
      av_packet_rescale_ts(packet_.get(), encoder_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      require(av_interleaved_write_frame(output_.get(), packet_.get()));
    }
  }

  void write_sound(AVPacket* packet) {
    av_packet_rescale_ts(packet, sound_->context().time_base, sound_stream_->time_base);
    packet->stream_index = sound_stream_->index;
    require(av_interleaved_write_frame(output_.get(), packet));
  }

  // Half the resolution needs even sides: the last row and column are there twice.
  static Image with_even_sides(const Image& frame) {
    if (frame.width % 2 == 0 && frame.height % 2 == 0) return frame;
    Image even(frame.width + frame.width % 2, frame.height + frame.height % 2);
    for (int y = 0; y < even.height; ++y) {
      const uint8_t* row = frame.row(std::min(y, frame.height - 1));
      uint8_t* end = std::copy_n(row, frame.row_bytes(), even.row(y));
      if (even.width > frame.width) std::copy_n(row + frame.row_bytes() - 3, 3, end);
    }
    return even;
  }

  const ClipSettings settings_;
  Codec encoder_;
  Frame frame_;
  Packet packet_;
  Scaler scaler_;
  std::unique_ptr<AVFormatContext, FreeOutput> output_;
  std::optional<SoundEncoder> sound_;
  AVStream *stream_ = nullptr, *sound_stream_ = nullptr;  // of output_
  int64_t frames_ = 0;
};

}  // namespace

void require_encoder() {
  find_encoder();
}

std::unique_ptr<ClipWriter> create_video(const std::filesystem::path& path,
                                         const ClipSettings& settings) {
  return std::make_unique<H264Writer>(path, settings);
}

}  // namespace atelier::media::ffmpeg
