// The packets of one track of a video or a sound file. Nothing but this file is opened, whatever
// stands in it.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "atelier/error.h"

#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::media::ffmpeg {

// A regular file, read at given places.
class InputFile {
 public:
  // Throws Error: kNotFound, kInvalidArgument for what is no file, kEnvironment.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const { return size_; }
  // Returns how many bytes were read: fewer than asked for where the file ends; negative, one of
  // FFmpeg's error codes, when reading fails.
  int read_at(int64_t begin, uint8_t* to, int bytes);

  // FFmpeg's callbacks over an InputFile.
  static int read(void* file, uint8_t* to, int bytes);
  static int64_t seek(void* file, int64_t offset, int whence);

 private:
  int descriptor_ = -1;
  int64_t size_ = 0;
  int64_t position_ = 0;
};

// The length that the outermost parts of an MP4, Matroska or AVI file say it has; 0 where they do
// not say. A file that is shorter was cut.
int64_t declared_length(InputFile& file);

enum class Track { kVideo, kSound };

class Demuxer {
 public:
  // Finds the stream of that kind. Throws Error as open_video() and probe_sound().
  explicit Demuxer(const std::filesystem::path& path, Track track = Track::kVideo);

  const AVStream& stream() const { return *context_->streams[stream_]; }
  const AVFormatContext& context() const { return *context_; }
  const std::string& format() const { return format_; }  // as ClipInfo::format
  // How long the header says that the stream is, in its unit; 0 where it does not.
  int64_t told_duration() const { return told_duration_; }
  bool has_sound() const;
  // Square pixels have 1/1, and so have those of which nothing is known.
  AVRational pixel_shape(const AVFrame& frame) const;

  // How frames are laid out to be shown, as FFmpeg's libavutil/display.h has it.
  std::array<int32_t, 9> display_matrix() const;

  // Reads the next packet of the stream that holds anything; false at the end of the file.
  // Throws Error{kEnvironment} when reading fails, {kDataLoss} without place for damage.
  bool next(AVPacket& packet);
  // Goes to a key frame at `timestamp` or before it; false when the file does not allow it.
  bool seek(int64_t timestamp);

  // The error to throw when the file turns out to hold less than it says; `found` is what was read
  // of it. Nothing when it is whole.
  std::optional<Error> cut_short(const std::string& found) const;

 private:
  struct FreeIo {
    void operator()(AVIOContext* io) const {
      av_freep(&io->buffer);
      avio_context_free(&io);
    }
  };

  void open();
  void choose_stream();

  std::string place_;
  const Track track_;
  InputFile file_;
  int64_t declared_length_ = 0;
  std::unique_ptr<AVIOContext, FreeIo> io_;
  std::unique_ptr<AVFormatContext, Freed<avformat_close_input>> context_;
  std::string format_;
  int stream_ = -1;
  int64_t told_duration_ = 0;
};

}  // namespace atelier::media::ffmpeg
