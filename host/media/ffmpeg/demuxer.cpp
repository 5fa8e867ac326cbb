#include "host/media/ffmpeg/demuxer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace atelier::media::ffmpeg {
namespace {

// Containers of whole videos in one file. Playlists, image sequences, devices and the like, which
// would open other files, are not among them.
constexpr const char* kDemuxers = "mov,matroska,avi,mpegts";
constexpr const char* kSoundDemuxers =
    "mov,matroska,avi,mpegts,wav,w64,aiff,flac,mp3,ogg,aac,caf,flv,asf";
// Decoders of what cameras, editors and the web write.
constexpr const char* kDecoders =
    "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,libdav1d,libaom-av1,mpeg4,msmpeg4,h263,mpeg1video,"
    "mpeg2video,mjpeg,prores,dnxhd,ffv1,huffyuv,ffvhuff,utvideo,rawvideo,png,qtrle,theora";
constexpr const char* kSoundDecoders =
    "pcm_u8,pcm_s8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,"
    "pcm_f64le,pcm_f64be,pcm_alaw,pcm_mulaw,adpcm_ms,adpcm_ima_wav,adpcm_ima_qt,aac,mp3,mp3float,"
    "mp2,"
    "mp2float,flac,alac,vorbis,opus,ac3,eac3,wmav1,wmav2";

constexpr int kMaxStreams = 64;
constexpr int64_t kProbeBytes = 5'000'000;
constexpr int64_t kProbeSeconds = 5;
constexpr int kIoBytes = 65'536;
// The most that FFmpeg may ask for at once: a plane of the largest frame at 16 bits is smaller.
constexpr size_t kMaxAllocation = size_t{1} << 30;

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EACCES);
}

bool contains(InputFile& file, int head_bytes, std::string_view text) {
  std::string head(static_cast<size_t>(head_bytes), '\0');
  file.read_at(0, reinterpret_cast<uint8_t*>(head.data()), head_bytes);
  return head.find(text) != std::string::npos;
}

std::string format_name(const AVFormatContext& context, InputFile& file) {
  const std::string_view name = context.iformat->name;
  if (name.starts_with("mov")) {
    const AVDictionaryEntry* brand = av_dict_get(context.metadata, "major_brand", nullptr, 0);
    return brand == nullptr || std::string_view(brand->value).starts_with("qt") ? "mov" : "mp4";
  }
  if (name.starts_with("matroska")) return contains(file, 64, "webm") ? "webm" : "matroska";
  return std::string(name);
}

}  // namespace

Demuxer::Demuxer(const std::filesystem::path& path, Track track)
    : place_(path.string()), track_(track), file_(path) {
  declared_length_ = declared_length(file_);
  auto* buffer = static_cast<uint8_t*>(av_malloc(kIoBytes));
  io_.reset(avio_alloc_context(buffer, kIoBytes, /*write_flag=*/0, &file_, InputFile::read,
                               /*write_packet=*/nullptr, InputFile::seek));
  open();
  format_ = format_name(*context_, file_);
  choose_stream();
}

void Demuxer::open() {
  av_max_alloc(kMaxAllocation);
  AVFormatContext* context = avformat_alloc_context();
  context->pb = io_.get();
  context->io_open = refuse_to_open;
  const bool is_sound = track_ == Track::kSound;
  context->format_whitelist = av_strdup(is_sound ? kSoundDemuxers : kDemuxers);
  context->codec_whitelist = av_strdup(is_sound ? kSoundDecoders : kDecoders);
  context->max_streams = kMaxStreams;
  context->probesize = kProbeBytes;
  context->max_analyze_duration = kProbeSeconds * AV_TIME_BASE;
  int code = avformat_open_input(&context, /*url=*/"", nullptr, nullptr);
  context_.reset(context);  // null when it failed
  if (code >= 0) code = avformat_find_stream_info(context_.get(), nullptr);
  if (code >= 0) return;
  if (const auto error = cut_short("nothing of it can be read")) throw Error(*error);
  const bool is_damage = code == AVERROR_INVALIDDATA || code == AVERROR_EOF;
  const std::string way_out = is_sound ? "convert it to WAV or FLAC" : "convert it to MP4 (H.264)";
  throw Error(
      is_damage ? ErrorCode::kDataLoss : ErrorCode::kUnsupported,
      place_ + ": the " + (is_sound ? "sound" : "video") + " cannot be opened: " + message_of(code),
      is_damage ? "it is damaged or of a kind that is not read; get it again or " + way_out
                : way_out);
}

void Demuxer::choose_stream() {
  for (unsigned i = 0; i < context_->nb_streams; ++i) context_->streams[i]->discard = AVDISCARD_ALL;
  const bool is_sound = track_ == Track::kSound;
  stream_ = av_find_best_stream(context_.get(), is_sound ? AVMEDIA_TYPE_AUDIO : AVMEDIA_TYPE_VIDEO,
                                /*wanted_stream_nb=*/-1, /*related_stream=*/-1, nullptr, 0);
  constexpr int kNoMotion = AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS;
  if (stream_ < 0 && is_sound) {
    if (const auto error = cut_short("nothing of its sound can be read")) throw Error(*error);
    throw Error(ErrorCode::kUnsupported, place_ + ": holds no sound", "name a file with sound");
  }
  if (stream_ < 0 || (stream().disposition & kNoMotion) != 0)
    throw Error(ErrorCode::kUnsupported,
                place_ + (has_sound() ? ": holds sound and no video" : ": holds no video"),
                "leave it out");
  context_->streams[stream_]->discard = AVDISCARD_DEFAULT;
  if (context_->duration_estimation_method != AVFMT_DURATION_FROM_BITRATE)
    told_duration_ = std::max<int64_t>(stream().duration, 0);
}

bool Demuxer::has_sound() const {
  return std::any_of(
      context_->streams, context_->streams + context_->nb_streams,
      [](const AVStream* stream) { return stream->codecpar->codec_type == AVMEDIA_TYPE_AUDIO; });
}

AVRational Demuxer::pixel_shape(const AVFrame& frame) const {
  const AVRational shape = av_guess_sample_aspect_ratio(context_.get(), context_->streams[stream_],
                                                        const_cast<AVFrame*>(&frame));
  return shape.num > 0 && shape.den > 0 ? shape : AVRational{1, 1};
}

std::array<int32_t, 9> Demuxer::display_matrix() const {
  std::array<int32_t, 9> matrix{};
  size_t bytes = 0;
  const uint8_t* data = av_stream_get_side_data(&stream(), AV_PKT_DATA_DISPLAYMATRIX, &bytes);
  if (data != nullptr && bytes == sizeof(matrix)) std::memcpy(matrix.data(), data, bytes);
  return matrix;
}

bool Demuxer::next(AVPacket& packet) {
  for (;;) {
    av_packet_unref(&packet);
    const int code = av_read_frame(context_.get(), &packet);
    if (code == AVERROR_EOF) return false;
    if (io_->error < 0)
      throw Error(ErrorCode::kEnvironment, place_ + ": reading fails: " + message_of(io_->error));
    if (code < 0) throw Error(ErrorCode::kDataLoss, message_of(code));
    if (packet.stream_index == stream_ && packet.size > 0) return true;
  }
}

bool Demuxer::seek(int64_t timestamp) {
  return av_seek_frame(context_.get(), stream_, timestamp, AVSEEK_FLAG_BACKWARD) >= 0;
}

std::optional<Error> Demuxer::cut_short(const std::string& found) const {
  if (declared_length_ <= file_.size()) return std::nullopt;
  return Error(ErrorCode::kDataLoss,
               place_ + ": is cut short: " + std::to_string(file_.size()) + " of " +
                   std::to_string(declared_length_) + " bytes; " + found,
               "get it again");
}

}  // namespace atelier::media::ffmpeg
