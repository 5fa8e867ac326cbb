#include <cmath>

#include "host/media/byte_reader.h"
#include "host/media/codec.h"

namespace atelier::media {
namespace {

bool is_space(uint8_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// The numbers of a PBM, PGM or PPM file, which stand in text between white space and comments.
class Numbers {
 public:
  Numbers(const ByteReader& in, size_t at) : in_(in), at_(at) {}

  int64_t next() {
    skip_space();
    int64_t value = 0;
    const size_t begin = at_;
    while (at_ < in_.size() && in_.u8(at_) >= '0' && in_.u8(at_) <= '9') {
      if (at_ - begin == 10) throw DecodeError("a number is too long");
      value = value * 10 + in_.u8(at_++) - '0';
    }
    if (at_ == begin) {
      in_.require(at_, 1);
      throw DecodeError("a number is missing");
    }
    return value;
  }
  // A digit that needs no space around it.
  int next_bit() {
    skip_space();
    const uint8_t c = in_.u8(at_++);
    if (c != '0' && c != '1') throw DecodeError("a bit is neither 0 nor 1");
    return c - '0';
  }
  // Behind the last number and the one byte that follows it.
  size_t data_begin() const { return at_ + 1; }

 private:
  void skip_space() {
    while (at_ < in_.size() && (is_space(in_.u8(at_)) || in_.u8(at_) == '#')) {
      const bool is_comment = in_.u8(at_) == '#';
      ++at_;
      while (is_comment && at_ < in_.size() && in_.u8(at_) != '\n' && in_.u8(at_) != '\r') ++at_;
    }
  }

  const ByteReader& in_;
  size_t at_;
};

struct Header {
  bool is_plain;  // values are numbers in text
  int channels;   // 1 or 3
  int64_t width, height;
  int64_t most;   // the largest value
  bool has_bits;  // values are 0 and 1, which is black
};

}  // namespace

Raster read_ppm(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  const ByteReader in(bytes);
  const int kind = in.u8(1) - '0';
  Numbers numbers(in, 2);
  Header header{kind <= 3, kind % 3 == 0 ? 3 : 1, numbers.next(), numbers.next(), 1, kind % 3 == 1};
  if (!header.has_bits) header.most = numbers.next();
  if (header.width < 1 || header.height < 1) throw DecodeError("its sides are not above 0");
  if (header.most < 1 || header.most > 65535)
    throw DecodeError("its largest value is not in 1 to 65535");
  check(header.width, header.height);
  Raster raster;
  raster.info.format = "ppm";
  raster.info.width = static_cast<int>(header.width);
  raster.info.height = static_cast<int>(header.height);
  raster.info.channels = header.channels;
  raster.info.bits = header.has_bits ? 1 : header.most > 255 ? 16 : 8;
  if (!pixels) return raster;

  const size_t row_values = static_cast<size_t>(header.width) * header.channels;
  const size_t value_bytes = header.most > 255 ? 2 : 1;
  const size_t row_bytes = header.has_bits ? (row_values + 7) / 8 : row_values * value_bytes;
  const size_t begin = numbers.data_begin();
  // Before anything is allocated for the pixels; a value in text takes a byte at least.
  if (header.is_plain) {
    in.require(begin, row_values * header.height);
  } else {
    in.require(begin, row_bytes * header.height);
  }
  const auto value_at = [&](size_t row, size_t i) -> int64_t {
    const size_t at = begin + row * row_bytes;
    if (header.has_bits)
      return header.is_plain ? numbers.next_bit() : in.u8(at + i / 8) >> (7 - i % 8) & 1;
    if (header.is_plain) return numbers.next();
    return value_bytes == 1 ? in.u8(at + i) : in.u8(at + 2 * i) << 8 | in.u8(at + 2 * i + 1);
  };
  raster.data.reserve(static_cast<size_t>(header.width) * header.height * 3);
  for (size_t row = 0; row < static_cast<size_t>(header.height); ++row) {
    for (size_t i = 0; i < row_values; ++i) {
      int64_t value = value_at(row, i);
      if (header.is_plain && value > header.most) throw DecodeError("a value is too large");
      if (header.has_bits) value = 1 - value;
      // Half to even, the default of rounding.
      const double part = static_cast<double>(value) / static_cast<double>(header.most);
      const auto byte = static_cast<uint8_t>(std::min(255.0, std::nearbyint(part * 255.0)));
      raster.data.insert(raster.data.end(), header.channels == 1 ? 3 : 1, byte);
    }
  }
  return raster;
}

}  // namespace atelier::media
