#include "host/media/ffmpeg/packet_index.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

namespace atelier::media::ffmpeg {
namespace {

// Whether a packet's frame is for the decoder alone.
bool is_hidden(const AVPacket& packet, AVCodecID codec) {
  // What an edit list leaves out.
  if ((packet.flags & AV_PKT_FLAG_DISCARD) != 0) return true;
  // VP8 has pictures that others are predicted from and nobody sees.
  return codec == AV_CODEC_ID_VP8 && (packet.data[0] & 0x10) == 0;
}

PacketLocation place_of(const AVPacket& packet, const Demuxer& demuxer, bool by_decoding) {
  PacketLocation place;
  const bool has_time = packet.pts != AV_NOPTS_VALUE && !by_decoding;
  place.stamp = has_time ? packet.pts : packet.dts;
  if (place.stamp == AV_NOPTS_VALUE) throw Error(ErrorCode::kDataLoss, "a frame without a time");
  // Matroska's index has the times of showing.
  const bool is_matroska = demuxer.format() == "matroska" || demuxer.format() == "webm";
  place.seek_stamp = is_matroska || packet.dts == AV_NOPTS_VALUE ? place.stamp : packet.dts;
  place.is_key = (packet.flags & AV_PKT_FLAG_KEY) != 0;
  place.is_shown = !is_hidden(packet, demuxer.stream().codecpar->codec_id);
  return place;
}

// "12 whole frames to 0.480 s"
std::string extent_of(const PacketIndex& index, double unit_s) {
  int64_t last = 0;
  for (const PacketLocation& packet : index.packets) last = std::max(last, packet.stamp);
  const double end_s =
      index.packets.empty() ? 0 : static_cast<double>(last - index.packets.front().stamp) * unit_s;
  char text[64];
  std::snprintf(text, sizeof(text), "%zu whole frames to %.3f s", index.packets.size(), end_s);
  return text;
}

void read_packets(Demuxer& demuxer, PacketIndex& index, const std::string& place,
                  int64_t max_frames) {
  const Packet packet(av_packet_alloc());
  if (packet == nullptr) throw std::bad_alloc();
  std::vector<PacketLocation>& packets = index.packets;
  int64_t last_shown = INT64_MIN;
  while (demuxer.next(*packet)) {
    if (packets.empty() && (packet->flags & AV_PKT_FLAG_KEY) == 0) continue;
    if ((packet->flags & AV_PKT_FLAG_CORRUPT) != 0)
      throw Error(ErrorCode::kDataLoss, "a damaged frame");
    if (static_cast<int64_t>(packets.size()) >= max_frames)
      throw Error(ErrorCode::kInvalidArgument,
                  place + ": more frames than the limit of " + std::to_string(max_frames),
                  "cut the video into shorter ones");
    packets.push_back(place_of(*packet, demuxer, index.counts_frames));
    if (!packets.back().is_shown || packets.back().stamp < last_shown) continue;
    last_shown = packets.back().stamp;
    index.last_duration = packet->duration;
  }
}

void number_frames(PacketIndex& index) {
  std::vector<PacketLocation>& packets = index.packets;
  std::vector<size_t> order(packets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return packets[a].stamp < packets[b].stamp; });
  for (const size_t i : order) {
    PacketLocation& packet = packets[i];
    // What is shown before the first key frame is predicted from frames that the file lacks.
    packet.is_shown = packet.is_shown && packet.stamp >= packets.front().stamp;
    packet.number = static_cast<int64_t>(index.stamps.size());
    if (packet.is_shown) index.stamps.push_back(packet.stamp);
  }
}

}  // namespace

size_t PacketIndex::key_before(int64_t number) const {
  if (counts_frames) return 0;
  for (size_t i = packets.size(); i-- > 1;) {
    if (packets[i].is_key && packets[i].number <= number) return i;
  }
  return 0;
}

PacketIndex index_packets(Demuxer& demuxer, const std::string& place, int64_t max_frames) {
  PacketIndex index;
  index.counts_frames = demuxer.format() == "avi" && demuxer.stream().codecpar->video_delay > 0;
  const double unit_s = av_q2d(demuxer.stream().time_base);
  std::string damage;
  try {
    read_packets(demuxer, index, place, max_frames);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
    damage = error.message();
  }
  if (const auto cut = demuxer.cut_short(extent_of(index, unit_s))) throw Error(*cut);
  if (!damage.empty())
    throw Error(ErrorCode::kDataLoss, place + ": " + damage + " behind " + extent_of(index, unit_s),
                "the video is damaged; get it again");
  number_frames(index);
  if (index.stamps.empty())
    throw Error(ErrorCode::kDataLoss, place + ": no frame of the video can be read",
                "get it again where it is damaged, or leave it out");
  return index;
}

}  // namespace atelier::media::ffmpeg
