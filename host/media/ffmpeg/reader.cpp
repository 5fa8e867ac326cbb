#include <algorithm>
#include <cmath>
#include <cstdio>
#include <new>
#include <string_view>

#include "host/media/codec.h"
#include "host/media/ffmpeg/frame_converter.h"
#include "host/media/ffmpeg/packet_index.h"

namespace atelier::media::ffmpeg {
namespace {

constexpr int64_t kNone = -1;  // the number of no frame

// EXIF's orientation of frames that are shown through this matrix; 0 for one that tilts them.
int orientation_of(const int32_t* matrix) {
  // x' = a x + c y and y' = b x + d y, in units of 2^-16.
  const auto sign = [&](int place) {
    constexpr int32_t kNearZero = (1 << 16) / 100;
    return (matrix[place] > kNearZero) - (matrix[place] < -kNearZero);
  };
  const int a = sign(0), b = sign(1), c = sign(3), d = sign(4);
  if (a == 0 && b == 0 && c == 0 && d == 0) return 1;
  if (b == 0 && c == 0 && a != 0 && d != 0) return a > 0 ? (d > 0 ? 1 : 4) : (d > 0 ? 2 : 3);
  if (a == 0 && d == 0 && b != 0 && c != 0) return b > 0 ? (c > 0 ? 5 : 6) : (c > 0 ? 8 : 7);
  return 0;
}

// Rate, duration and times of a clip whose frames are shown at `stamps`.
void set_times(const PacketIndex& index, double unit_s, ClipInfo& info) {
  int64_t shortest = INT64_MAX, longest = 0;
  for (size_t i = 0; i < index.stamps.size(); ++i) {
    info.times_s.push_back(static_cast<double>(index.stamps[i] - index.stamps[0]) * unit_s);
    if (i == 0) continue;
    shortest = std::min(shortest, index.stamps[i] - index.stamps[i - 1]);
    longest = std::max(longest, index.stamps[i] - index.stamps[i - 1]);
  }
  const auto intervals = static_cast<double>(info.frames() - 1);
  const double mean_s = intervals > 0 ? info.times_s.back() / intervals : 0;
  const double last_s =
      index.last_duration > 0 ? static_cast<double>(index.last_duration) * unit_s : mean_s;
  info.duration_s = info.times_s.back() + last_s;
  const double frame_s = mean_s > 0 ? mean_s : last_s;
  info.fps = frame_s > 0 ? 1 / frame_s : 0;
  // Times are rounded to the stream's unit.
  info.is_variable_rate = intervals > 0 && static_cast<double>(longest - shortest) * unit_s >
                                               std::max(2 * unit_s, 0.01 * mean_s);
}

class VideoReader : public ClipReader {
 public:
  VideoReader(const std::filesystem::path& path, const ClipLimits& limits);

  const ClipInfo& info() const override { return info_; }
  void read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) override;

 private:
  void open_decoder();
  void set_frames();
  void check_pixels(int64_t width, int64_t height) const;

  void find(int64_t number);
  bool decode_to(int64_t number);
  void go_to(size_t key);
  bool land_before(size_t key);
  bool receive_frame();
  void send_packet();
  void check_frame() const;
  Error error_at(int64_t number, ErrorCode code, const std::string& what,
                 const std::string& hint) const;
  Image show();

  const std::filesystem::path path_;
  const std::string place_;
  const ClipLimits limits_;
  ClipInfo info_;
  int orientation_ = 1;
  int stored_width_ = 0, stored_height_ = 0;  // of every decoded frame; 0 before the first one
  int shown_width_ = 0;                       // before orientation

  std::unique_ptr<Demuxer> demuxer_;
  PacketIndex index_;
  Codec decoder_;
  FrameConverter converter_;
  Packet packet_;
  Frame frame_;

  size_t first_packet_ = 0;  // where decoding began
  size_t next_packet_ = 0;   // to be sent to the decoder
  bool has_packet_ = false;  // packet_ is that one
  int64_t frames_out_ = 0;   // since decoding began
  int64_t found_ = kNone;    // the number of frame_
};

VideoReader::VideoReader(const std::filesystem::path& path, const ClipLimits& limits)
    : path_(path),
      place_(path.string()),
      limits_(limits),
      demuxer_(std::make_unique<Demuxer>(path)),
      packet_(av_packet_alloc()),
      frame_(av_frame_alloc()) {
  if (packet_ == nullptr || frame_ == nullptr) throw std::bad_alloc();
  const AVStream& stream = demuxer_->stream();
  info_.format = demuxer_->format();
  info_.codec = avcodec_get_name(stream.codecpar->codec_id);
  info_.has_sound = demuxer_->has_sound();
  const AVDictionaryEntry* entry = nullptr;
  while ((entry = av_dict_get(demuxer_->context().metadata, "", entry, AV_DICT_IGNORE_SUFFIX)))
    info_.metadata.emplace_back(entry->key, entry->value);
  check_pixels(stream.codecpar->width, stream.codecpar->height);
  index_ = index_packets(*demuxer_, place_, limits_.max_frames);
  set_times(index_, av_q2d(stream.time_base), info_);
  open_decoder();
  // What stands in the stream counts, and not what its container says of it.
  find(0);
  set_frames();
}

void VideoReader::check_pixels(int64_t width, int64_t height) const {
  if (width * height <= limits_.max_pixels) return;
  throw Error(ErrorCode::kInvalidArgument,
              place_ + ": " + std::to_string(width) + "x" + std::to_string(height) +
                  " pixels are more than the limit of " + std::to_string(limits_.max_pixels),
              "make the video smaller");
}

void VideoReader::open_decoder() {
  const AVStream& stream = demuxer_->stream();
  const AVCodecID id = stream.codecpar->codec_id;
  // FFmpeg's own decoders of VP8 and VP9 leave out the transparency.
  const AVDictionaryEntry* alpha = av_dict_get(stream.metadata, "alpha_mode", nullptr, 0);
  const bool is_transparent = alpha != nullptr && std::string_view(alpha->value) == "1";
  const AVCodec* codec =
      is_transparent ? avcodec_find_decoder_by_name(id == AV_CODEC_ID_VP8 ? "libvpx" : "libvpx-vp9")
                     : avcodec_find_decoder(id);
  decoder_.reset(avcodec_alloc_context3(codec));
  if (decoder_ == nullptr) throw std::bad_alloc();
  int code = codec == nullptr ? AVERROR_DECODER_NOT_FOUND
                              : avcodec_parameters_to_context(decoder_.get(), stream.codecpar);
  decoder_->codec_whitelist = av_strdup(demuxer_->context().codec_whitelist);
  decoder_->thread_count = 1;
  decoder_->max_pixels = limits_.max_pixels;
  if (code >= 0) code = avcodec_open2(decoder_.get(), codec, nullptr);
  if (code >= 0) return;
  // A codec without a name here has the four letters that its container gives it.
  const uint32_t tag = stream.codecpar->codec_tag;
  char letters[AV_FOURCC_MAX_STRING_SIZE] = {};
  if (id == AV_CODEC_ID_NONE && tag != 0) av_fourcc_make_string(letters, tag);
  throw Error(ErrorCode::kUnsupported,
              place_ + ": a video of the codec '" + (letters[0] ? letters : info_.codec) +
                  "', which is not read",
              "convert it to MP4 (H.264)");
}

// What frames are like, by the first one.
void VideoReader::set_frames() {
  stored_width_ = frame_->width;
  stored_height_ = frame_->height;
  const AVRational pixel = demuxer_->pixel_shape(*frame_);
  const int64_t width = std::max<int64_t>(1, av_rescale(frame_->width, pixel.num, pixel.den));
  check_pixels(width, frame_->height);
  info_.width = shown_width_ = static_cast<int>(width);
  info_.height = frame_->height;
  info_.has_alpha = has_alpha(*frame_);
  orientation_ = orientation_of(demuxer_->display_matrix().data());
  if (orientation_ == 0)
    throw Error(ErrorCode::kUnsupported, place_ + ": is shown tilted, by no quarter turn",
                "write it again with its frames turned");
  if (orientation_ >= 5) std::swap(info_.width, info_.height);
  constexpr int kDegrees[] = {0, 0, 0, 180, 180, 90, 90, 270, 270};
  info_.rotation = kDegrees[orientation_];
}

void VideoReader::read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) {
  check_numbers(frames, info_, place_);
  for (const int64_t number : frames) {
    find(number);
    sink(show());
  }
}

// Makes frame_ the frame of that number.
void VideoReader::find(int64_t number) {
  if (found_ == number) return;
  const size_t key = index_.key_before(number);
  const bool goes_on = found_ != kNone && found_ < number && next_packet_ > key;
  if (!goes_on) go_to(key);
  if (decode_to(number)) return;
  // Some streams mark packets as key frames that need what stands before them.
  if (first_packet_ > 0) {
    go_to(0);
    if (decode_to(number)) return;
  }
  throw error_at(number, ErrorCode::kDataLoss, "cannot be decoded",
                 "the video is damaged; get it again");
}

bool VideoReader::decode_to(int64_t number) {
  while (receive_frame()) {
    if (found_ >= number) return found_ == number;
  }
  return false;
}

// Begins to decode at a key frame that is `key` or stands before it.
void VideoReader::go_to(size_t key) {
  avcodec_flush_buffers(decoder_.get());
  frames_out_ = 0;
  found_ = kNone;
  if (!index_.counts_frames && demuxer_->seek(index_.packets[key].seek_stamp) && land_before(key))
    return;
  demuxer_ = std::make_unique<Demuxer>(path_);
  if (!land_before(0))
    throw Error(ErrorCode::kDataLoss, place_ + ": has changed since it was opened", "run again");
}

// Reads to the first packet that the index has as a key frame; false when it stands behind `key`.
bool VideoReader::land_before(size_t key) {
  while (demuxer_->next(*packet_)) {
    if ((packet_->flags & AV_PKT_FLAG_KEY) == 0) continue;
    const int64_t stamp =
        packet_->pts != AV_NOPTS_VALUE && !index_.counts_frames ? packet_->pts : packet_->dts;
    for (size_t i = 0; i <= key; ++i) {
      if (!index_.packets[i].is_key || index_.packets[i].stamp != stamp) continue;
      first_packet_ = next_packet_ = i;
      has_packet_ = true;
      return true;
    }
    return false;
  }
  return false;
}

// Makes frame_ the next one that is shown; false when there is none.
bool VideoReader::receive_frame() {
  for (;;) {
    const int code = avcodec_receive_frame(decoder_.get(), frame_.get());
    if (code == AVERROR_EOF) {
      found_ = kNone;
      return false;
    }
    if (code == AVERROR(EAGAIN)) {
      send_packet();
      continue;
    }
    if (code < 0)
      throw error_at(index_.packets[next_packet_ - 1].number, ErrorCode::kDataLoss,
                     "cannot be decoded: " + message_of(code),
                     "the video is damaged; get it again");
    const int64_t number = index_.counts_frames ? frames_out_++ : frame_->pts;
    if (number < 0 || number >= info_.frames()) continue;
    found_ = number;
    check_frame();
    return true;
  }
}

void VideoReader::send_packet() {
  if (next_packet_ == index_.packets.size() || (!has_packet_ && !demuxer_->next(*packet_))) {
    avcodec_send_packet(decoder_.get(), nullptr);
    return;
  }
  has_packet_ = false;
  const PacketLocation& place = index_.packets[next_packet_++];
  // The decoder hands on what stands here: a frame comes out with its number.
  packet_->pts = place.is_shown ? place.number : kNone;
  packet_->dts = AV_NOPTS_VALUE;
  const int code = avcodec_send_packet(decoder_.get(), packet_.get());
  if (code < 0)
    throw error_at(place.number, ErrorCode::kDataLoss, "cannot be decoded: " + message_of(code),
                   "the video is damaged; get it again");
}

void VideoReader::check_frame() const {
  const bool is_damaged =
      frame_->decode_error_flags != 0 || (frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0;
  // What is shown before the key frame may lack what it is predicted from.
  if (is_damaged && found_ >= index_.packets[first_packet_].number)
    throw error_at(found_, ErrorCode::kDataLoss, "is damaged", "get the video again");
  if (stored_width_ == 0 || (frame_->width == stored_width_ && frame_->height == stored_height_))
    return;
  const auto size = [](int width, int height) {
    return std::to_string(width) + "x" + std::to_string(height);
  };
  throw error_at(found_, ErrorCode::kUnsupported,
                 "is " + size(frame_->width, frame_->height) + ", those before it are " +
                     size(stored_width_, stored_height_),
                 "write the video again with frames of one size");
}

// "clip.mp4: frame 12 (0.480 s) WHAT"
Error VideoReader::error_at(int64_t number, ErrorCode code, const std::string& what,
                            const std::string& hint) const {
  number = std::min(number, info_.frames() - 1);
  char frame[64];
  std::snprintf(frame, sizeof(frame), ": frame %lld (%.3f s) ", static_cast<long long>(number),
                info_.times_s[static_cast<size_t>(number)]);
  return {code, place_ + frame + what, hint};
}

Image VideoReader::show() {
  return upright(converter_.convert(*frame_, shown_width_, stored_height_), orientation_);
}

}  // namespace

std::unique_ptr<ClipReader> open_video(const std::filesystem::path& path,
                                       const ClipLimits& limits) {
  return std::make_unique<VideoReader>(path, limits);
}

}  // namespace atelier::media::ffmpeg
