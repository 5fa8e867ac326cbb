// Where the frames of a video stand in its stream, found without decoding them.
#pragma once

#include "host/media/ffmpeg/demuxer.h"

namespace atelier::media::ffmpeg {

struct PacketLocation {
  int64_t stamp = 0;       // when its frame is shown, in the stream's unit
  int64_t seek_stamp = 0;  // what the demuxer finds it by
  int64_t number = 0;      // of its frame, or of the first one that is shown afterwards
  bool is_key = false;     // decoding can begin here
  bool is_shown = true;
};

struct PacketIndex {
  std::vector<PacketLocation> packets;  // in the order of decoding, from the first key frame on
  std::vector<int64_t> stamps;          // of the frames that are shown, ascending
  int64_t last_duration = 0;            // of the frame that is shown last; 0 when it is not told
  // The container does not tell when frames are shown: they have the numbers in which they come
  // out of the decoder, and that only from the first one on.
  bool counts_frames = false;

  // The last packet from which decoding brings out frame `number`.
  size_t key_before(int64_t number) const;
};

// Reads all packets. Throws Error as open_video(); `place` begins the messages.
PacketIndex index_packets(Demuxer& demuxer, const std::string& place, int64_t max_frames);

}  // namespace atelier::media::ffmpeg
