#include <algorithm>
#include <array>

#include "host/media/byte_reader.h"
#include "host/media/codec.h"

namespace atelier::media {
namespace {

constexpr uint32_t kRaw = 0, kRle8 = 1, kRle4 = 2, kBitFields = 3;

struct Header {
  int64_t width = 0, height = 0;
  bool is_top_down = false;
  int bits = 0;
  uint32_t compression = kRaw;
  size_t pixels_at = 0;
  // The masks of red, green, blue and alpha, for 16 and 32 bits.
  std::array<uint32_t, 4> masks = {};
  size_t palette_at = 0, palette_entries = 0, palette_entry_bytes = 4;  // bits 1 to 8

  size_t row_bytes() const { return static_cast<size_t>((width * bits + 31) / 32 * 4); }
};

// Where the header gives none.
std::array<uint32_t, 4> usual_masks(int bits) {
  if (bits == 16) return {0x7C00, 0x03E0, 0x001F, 0};
  return {0xFF0000, 0xFF00, 0xFF, 0};
}

void read_palette_place(const ByteReader& in, Header& header, size_t at, uint32_t colors) {
  const size_t most = size_t{1} << header.bits;
  const size_t entries = colors == 0 ? most : colors;
  header.palette_at = at;
  header.palette_entries = std::min(entries, most);
  const size_t end = at + entries * header.palette_entry_bytes;
  if (header.pixels_at == 0 || header.pixels_at == at) header.pixels_at = end;
  if (at + header.palette_entries * header.palette_entry_bytes > in.size())
    throw DecodeError("the file ends within its palette");
}

void read_masks(const ByteReader& in, Header& header, size_t info_size) {
  const int64_t known = info_size >= 56 ? 4 : 3;  // alpha comes with longer headers
  for (int64_t i = 0; i < known; ++i) header.masks[i] = in.u32(14 + 40 + 4 * i);
  const bool is_empty = header.masks == std::array<uint32_t, 4>{};
  if (is_empty) header.masks = {0xFF0000, 0xFF00, 0xFF, 0xFF000000};
}

Header read_header(const ByteReader& in) {
  Header header;
  const size_t info_size = in.u32(14);
  header.pixels_at = in.u32(10);
  uint32_t colors = 0;
  if (info_size == 12) {
    header.width = in.u16(18);
    header.height = in.u16(20);
    header.bits = in.u16(24);
    header.palette_entry_bytes = 3;
  } else {
    header.width = in.i32(18);
    header.height = in.i32(22);
    header.is_top_down = header.height < 0;
    header.height = std::abs(header.height);
    header.bits = in.u16(28);
    header.compression = in.u32(30);
    colors = in.u32(46);
  }
  if (header.width < 1 || header.height < 1) throw DecodeError("its sides are not above 0");
  constexpr std::array kBits = {1, 4, 8, 16, 24, 32};
  if (std::find(kBits.begin(), kBits.end(), header.bits) == kBits.end())
    throw DecodeError(std::to_string(header.bits) + " bits a pixel are not known");
  const bool is_known = header.compression == kRaw ||
                        (header.compression == kRle8 && header.bits == 8) ||
                        (header.compression == kRle4 && header.bits == 4) ||
                        (header.compression == kBitFields && header.bits >= 16);
  if (!is_known)
    throw DecodeError("compression " + std::to_string(header.compression) + " of " +
                      std::to_string(header.bits) + " bits is not known");
  header.masks = usual_masks(header.bits);
  size_t behind = 14 + info_size;
  if (header.compression == kBitFields) {
    read_masks(in, header, info_size);
    if (info_size == 40) behind += 12;
  }
  if (header.bits <= 8) read_palette_place(in, header, behind, colors);
  if (header.pixels_at == 0) header.pixels_at = behind;
  return header;
}

// The indices of run-length coded rows, in the order of the file; what is skipped is 0.
std::vector<uint8_t> read_runs(const ByteReader& in, const Header& header) {
  const auto width = static_cast<size_t>(header.width);
  const bool has_nibbles = header.bits == 4;
  std::vector<uint8_t> indices(width * static_cast<size_t>(header.height));
  size_t to = 0, column = 0, at = header.pixels_at;
  const auto nibble = [](uint8_t byte, size_t i) -> uint8_t {
    return i % 2 == 0 ? byte >> 4 : byte & 15;
  };
  while (to < indices.size()) {
    const uint8_t count = in.u8(at), value = in.u8(at + 1);
    at += 2;
    if (count > 0) {
      const size_t room = std::min(width - std::min(column, width), indices.size() - to);
      const size_t length = std::min<size_t>(count, room);
      for (size_t i = 0; i < length; ++i) indices[to + i] = has_nibbles ? nibble(value, i) : value;
      to += length;
      column += length;
    } else if (value == 0) {  // the end of a row
      to = (to + width - 1) / width * width;
      column = 0;
    } else if (value == 1) {  // the end of the image
      break;
    } else if (value == 2) {  // to the right and on by rows
      to += in.u8(at) + in.u8(at + 1) * width;
      at += 2;
      column = to % width;
    } else {  // as many indices as they are
      const size_t length = std::min<size_t>(value, indices.size() - to);
      for (size_t i = 0; i < length; ++i)
        indices[to + i] = has_nibbles ? nibble(in.u8(at + i / 2), i) : in.u8(at + i);
      to += length;
      column += value;
      at += has_nibbles ? (value + 1) / 2 : value;
      at += at % 2;
    }
  }
  return indices;
}

// A channel of `bits` below a mask, as 8 bits.
uint8_t channel(uint32_t pixel, uint32_t mask) {
  if (mask == 0) return 0;
  const int shift = __builtin_ctz(mask);
  const uint64_t most = mask >> shift;
  return static_cast<uint8_t>(uint64_t{(pixel & mask) >> shift} * 255 / most);
}

void read_row(const ByteReader& in, const Header& header, size_t at, int bytes_per_pixel,
              uint8_t* out) {
  const size_t pixel_bytes = static_cast<size_t>(header.bits) / 8;
  for (int64_t x = 0; x < header.width; ++x, at += pixel_bytes, out += bytes_per_pixel) {
    uint32_t pixel = in.u16(at);
    if (header.bits == 24) pixel |= uint32_t{in.u8(at + 2)} << 16;
    if (header.bits == 32) pixel = in.u32(at);
    for (int c = 0; c < bytes_per_pixel; ++c) out[c] = channel(pixel, header.masks[c]);
  }
}

void read_indexed_row(const ByteReader& in, const Header& header, const uint8_t* indices,
                      uint8_t* out) {
  for (int64_t x = 0; x < header.width; ++x, out += 3) {
    const uint8_t index = indices[x];
    if (index >= header.palette_entries) {
      std::fill_n(out, 3, index);
      continue;
    }
    const size_t entry = header.palette_at + index * header.palette_entry_bytes;
    for (int c = 0; c < 3; ++c) out[c] = in.u8(entry + 2 - c);
  }
}

// The indices of one row, a byte each.
void unpack_row(const ByteReader& in, const Header& header, size_t at, uint8_t* out) {
  const int per_byte = 8 / header.bits;
  const int mask = (1 << header.bits) - 1;
  for (int64_t x = 0; x < header.width; ++x) {
    const int shift = header.bits * (per_byte - 1 - static_cast<int>(x % per_byte));
    out[x] = static_cast<uint8_t>(in.u8(at + x / per_byte) >> shift & mask);
  }
}

}  // namespace

Raster read_bmp(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  const ByteReader in(bytes);
  const Header header = read_header(in);
  check(header.width, header.height);
  Raster raster;
  raster.info.format = "bmp";
  raster.info.width = static_cast<int>(header.width);
  raster.info.height = static_cast<int>(header.height);
  raster.info.has_alpha = header.bits == 32 && header.masks[3] != 0;
  raster.info.channels = header.bits <= 8 ? 1 : raster.info.has_alpha ? 4 : 3;
  raster.info.bits = header.bits < 8 ? header.bits : 8;
  raster.layout = raster.info.has_alpha ? Layout::kRgba : Layout::kRgb;
  if (!pixels) return raster;

  const bool has_runs = header.compression == kRle8 || header.compression == kRle4;
  const size_t rows = static_cast<size_t>(header.height), width = static_cast<size_t>(header.width);
  // Before anything is allocated for the pixels.
  if (!has_runs) in.require(header.pixels_at, header.row_bytes() * rows);
  const std::vector<uint8_t> runs = has_runs ? read_runs(in, header) : std::vector<uint8_t>();
  std::vector<uint8_t> unpacked(header.bits <= 8 ? width : 0);
  const size_t out_bytes = width * raster.bytes_per_pixel();
  raster.data.resize(out_bytes * rows);
  for (size_t row = 0; row < rows; ++row) {
    uint8_t* out = raster.data.data() + out_bytes * (header.is_top_down ? row : rows - 1 - row);
    const size_t at = header.pixels_at + header.row_bytes() * row;
    if (header.bits > 8) {
      read_row(in, header, at, raster.bytes_per_pixel(), out);
      continue;
    }
    if (!has_runs) unpack_row(in, header, at, unpacked.data());
    read_indexed_row(in, header, has_runs ? runs.data() + row * width : unpacked.data(), out);
  }
  return raster;
}

}  // namespace atelier::media
