#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tiffio.h>

#include "host/media/codec.h"

namespace atelier::media {
namespace {

// What libtiff reads from, and what it said last.
struct TiffInput {
  std::span<const uint8_t> bytes;
  uint64_t at = 0;
  std::string message = "damaged TIFF data";
};

TiffInput& input_of(thandle_t handle) {
  return *static_cast<TiffInput*>(handle);
}

tmsize_t read_bytes(thandle_t handle, void* out, tmsize_t size) {
  TiffInput& input = input_of(handle);
  if (size < 0 || input.at >= input.bytes.size()) return 0;
  const uint64_t count = std::min<uint64_t>(input.bytes.size() - input.at, size);
  std::memcpy(out, input.bytes.data() + input.at, count);
  input.at += count;
  return static_cast<tmsize_t>(count);
}

tmsize_t write_nothing(thandle_t, void*, tmsize_t) {
  return 0;
}

toff_t seek(thandle_t handle, toff_t offset, int whence) {
  TiffInput& input = input_of(handle);
  if (whence == SEEK_CUR) offset += input.at;
  if (whence == SEEK_END) offset += input.bytes.size();
  return input.at = offset;
}

int close(thandle_t) {
  return 0;
}

toff_t size_of(thandle_t handle) {
  return input_of(handle).bytes.size();
}

int on_error(TIFF*, void* user, const char*, const char* format, va_list arguments) {
  char text[200];
  std::vsnprintf(text, sizeof text, format, arguments);
  static_cast<TiffInput*>(user)->message = text;
  return 1;
}

int on_warning(TIFF*, void*, const char*, const char*, va_list) {
  return 1;
}

struct Closer {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
using Tiff = std::unique_ptr<TIFF, Closer>;

Tiff open(TiffInput& input) {
  constexpr tmsize_t kMostAtOnce = 256 << 20;  // of a strip, a tile, or a list of them
  const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(
      TIFFOpenOptionsAlloc(), TIFFOpenOptionsFree);
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), kMostAtOnce);
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), on_error, &input);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), on_warning, nullptr);
  Tiff tiff(TIFFClientOpenExt("image", "rm", &input, read_bytes, write_nothing, seek, close,
                              size_of, nullptr, nullptr, options.get()));
  if (!tiff) throw DecodeError(input.message);
  return tiff;
}

// How the samples of a pixel are laid out, and what they mean.
struct Header {
  uint32_t width = 0, height = 0;
  uint16_t photometric = 0, bits = 1, samples = 1;
  bool is_separate = false;  // each sample in a plane of its own
  int num_colors = 0;        // samples without alpha and others
  bool has_alpha = false;
  bool is_premultiplied = false;
  const uint16_t* palette[3] = {};  // of 16 bits

  int used_samples() const { return num_colors + (has_alpha ? 1 : 0); }
};

[[noreturn]] void refuse(const std::string& what) {
  throw DecodeError(what + " cannot be read; convert it to 8 bits RGB");
}

uint16_t field_or_default(TIFF* tiff, uint32_t tag) {
  uint16_t value = 0;
  TIFFGetFieldDefaulted(tiff, tag, &value);
  return value;
}

// The channels that the photometric interpretation means; JPEG data is converted by libtiff.
int colors_of(TIFF* tiff, const Header& header) {
  switch (header.photometric) {
    case PHOTOMETRIC_MINISWHITE:
    case PHOTOMETRIC_MINISBLACK:
    case PHOTOMETRIC_PALETTE:
      return 1;
    case PHOTOMETRIC_RGB:
      return 3;
    case PHOTOMETRIC_SEPARATED:
      return 4;
    case PHOTOMETRIC_YCBCR:
      if (field_or_default(tiff, TIFFTAG_COMPRESSION) == COMPRESSION_JPEG) {
        TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
        return 3;
      }
      [[fallthrough]];
    default:
      refuse("TIFF of the color space " + std::to_string(header.photometric));
  }
}

void read_alpha(TIFF* tiff, Header& header) {
  uint16_t count = 0;
  const uint16_t* kinds = nullptr;
  const bool is_said = TIFFGetField(tiff, TIFFTAG_EXTRASAMPLES, &count, &kinds) == 1 && count > 0;
  // Writers that leave the tag out mean transparency.
  const bool is_meant = !is_said && header.num_colors == 3 && header.samples == 4;
  header.is_premultiplied = is_said && kinds[0] == EXTRASAMPLE_ASSOCALPHA;
  header.has_alpha =
      header.num_colors != 4 && header.samples > header.num_colors &&
      (is_meant || header.is_premultiplied || (is_said && kinds[0] == EXTRASAMPLE_UNASSALPHA));
}

Header read_header(TIFF* tiff, const TiffInput& input) {
  Header header;
  TIFFGetField(tiff, TIFFTAG_IMAGEWIDTH, &header.width);
  TIFFGetField(tiff, TIFFTAG_IMAGELENGTH, &header.height);
  if (header.width < 1 || header.height < 1 || header.width > INT32_MAX ||
      header.height > INT32_MAX)
    throw DecodeError("its sides are not above 0");
  if (TIFFGetField(tiff, TIFFTAG_PHOTOMETRIC, &header.photometric) != 1)
    throw DecodeError(input.message);
  header.bits = field_or_default(tiff, TIFFTAG_BITSPERSAMPLE);
  header.samples = field_or_default(tiff, TIFFTAG_SAMPLESPERPIXEL);
  header.is_separate = field_or_default(tiff, TIFFTAG_PLANARCONFIG) == PLANARCONFIG_SEPARATE;
  const uint16_t format = field_or_default(tiff, TIFFTAG_SAMPLEFORMAT);
  if (format != SAMPLEFORMAT_UINT && format != SAMPLEFORMAT_VOID)
    refuse("TIFF of signed or floating numbers");
  constexpr uint16_t kBits[] = {1, 2, 4, 8, 16};
  const bool is_palette = header.photometric == PHOTOMETRIC_PALETTE;
  if (std::find(std::begin(kBits), std::end(kBits), header.bits) == std::end(kBits) ||
      (is_palette && header.bits > 8))
    refuse("TIFF of " + std::to_string(header.bits) + " bits");
  header.num_colors = colors_of(tiff, header);
  constexpr uint16_t kMostSamples = 16;
  if (header.samples < header.num_colors || header.samples > kMostSamples)
    refuse("TIFF of " + std::to_string(header.samples) + " samples a pixel");
  read_alpha(tiff, header);
  if (is_palette && TIFFGetField(tiff, TIFFTAG_COLORMAP, &header.palette[0], &header.palette[1],
                                 &header.palette[2]) != 1)
    throw DecodeError("its palette is missing");
  return header;
}

// The used samples of all pixels, as 8 bits (indices of a palette as they are).
class Samples {
 public:
  Samples(TIFF* tiff, const TiffInput& input, const Header& header)
      : tiff_(tiff), input_(input), header_(header), used_(header.used_samples()) {
    values_.resize(size_t{header.width} * header.height * used_);
    const int num_planes = header.is_separate ? used_ : 1;
    for (int plane = 0; plane < num_planes; ++plane) {
      if (TIFFIsTiled(tiff)) {
        read_tiles(static_cast<uint16_t>(plane));
      } else {
        read_rows(static_cast<uint16_t>(plane));
      }
    }
  }

  const std::vector<uint8_t>& values() const { return values_; }

 private:
  size_t wanted_bytes(uint64_t width) const {
    const uint64_t samples = header_.is_separate ? 1 : header_.samples;
    return (width * samples * header_.bits + 7) / 8;
  }

  void read_rows(uint16_t plane) {
    const tmsize_t bytes = TIFFScanlineSize(tiff_);
    if (bytes <= 0 || static_cast<size_t>(bytes) < wanted_bytes(header_.width))
      throw DecodeError(input_.message);
    std::vector<uint8_t> row(static_cast<size_t>(bytes));
    for (uint32_t y = 0; y < header_.height; ++y) {
      if (TIFFReadScanline(tiff_, row.data(), y, plane) != 1) throw DecodeError(input_.message);
      put(row.data(), 0, y, header_.width, plane);
    }
  }

  void read_tiles(uint16_t plane) {
    uint32_t width = 0, height = 0;
    TIFFGetField(tiff_, TIFFTAG_TILEWIDTH, &width);
    TIFFGetField(tiff_, TIFFTAG_TILELENGTH, &height);
    const tmsize_t bytes = TIFFTileSize(tiff_), row_bytes = TIFFTileRowSize(tiff_);
    constexpr tmsize_t kMostBytes = 256 << 20;
    if (width < 1 || height < 1 || row_bytes <= 0 || bytes <= 0 || bytes > kMostBytes ||
        static_cast<size_t>(row_bytes) < wanted_bytes(width) || bytes / row_bytes < height)
      throw DecodeError("its tiles have no sound size");
    std::vector<uint8_t> tile(static_cast<size_t>(bytes));
    for (uint64_t top = 0; top < header_.height; top += height) {
      for (uint64_t left = 0; left < header_.width; left += width) {
        if (TIFFReadTile(tiff_, tile.data(), static_cast<uint32_t>(left),
                         static_cast<uint32_t>(top), 0, plane) < 0)
          throw DecodeError(input_.message);
        const uint64_t rows = std::min<uint64_t>(height, header_.height - top);
        const uint64_t columns = std::min<uint64_t>(width, header_.width - left);
        for (uint64_t y = 0; y < rows; ++y)
          put(tile.data() + static_cast<size_t>(row_bytes) * y, left, top + y, columns, plane);
      }
    }
  }

  // Takes `count` pixels of a row, or one of their samples, from the beginning of `row`.
  void put(const uint8_t* row, uint64_t x, uint64_t y, uint64_t count, uint16_t plane) {
    uint8_t* out = values_.data() + (y * header_.width + x) * used_;
    for (uint64_t i = 0; i < count; ++i, out += used_) {
      if (header_.is_separate) {
        out[plane] = sample(row, i);
        continue;
      }
      for (int s = 0; s < used_; ++s) out[s] = sample(row, i * header_.samples + s);
    }
  }

  uint8_t sample(const uint8_t* row, uint64_t i) const {
    if (header_.bits == 8) return row[i];
    if (header_.bits == 16) {
      uint16_t value;
      std::memcpy(&value, row + 2 * i, 2);
      return static_cast<uint8_t>((value + 128) / 257);
    }
    const uint64_t bit = i * header_.bits;
    const int shift = 8 - header_.bits - static_cast<int>(bit % 8);
    const int most = (1 << header_.bits) - 1;
    const int value = row[bit / 8] >> shift & most;
    return static_cast<uint8_t>(header_.photometric == PHOTOMETRIC_PALETTE ? value
                                                                           : value * 255 / most);
  }

  TIFF* tiff_;
  const TiffInput& input_;
  const Header& header_;
  int used_;
  std::vector<uint8_t> values_;
};

// One pixel of samples to one of the raster.
void convert(const Header& header, const uint8_t* in, uint8_t* out) {
  switch (header.photometric) {
    case PHOTOMETRIC_MINISWHITE:
      std::fill_n(out, 3, static_cast<uint8_t>(255 - in[0]));
      break;
    case PHOTOMETRIC_MINISBLACK:
      std::fill_n(out, 3, in[0]);
      break;
    case PHOTOMETRIC_PALETTE:
      for (int c = 0; c < 3; ++c) out[c] = static_cast<uint8_t>(header.palette[c][in[0]] >> 8);
      break;
    case PHOTOMETRIC_SEPARATED:
      for (int c = 0; c < 4; ++c) out[c] = static_cast<uint8_t>(255 - in[c]);
      return;
    default:
      std::copy_n(in, 3, out);
  }
  if (!header.has_alpha) return;
  const uint8_t alpha = in[header.num_colors];
  out[3] = alpha;
  for (int c = 0; header.is_premultiplied && c < 3; ++c)
    out[c] = alpha == 0 ? 0 : static_cast<uint8_t>(std::min(255, out[c] * 255 / alpha));
}

}  // namespace

Raster read_tiff(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  TiffInput input{bytes};
  const Tiff tiff = open(input);
  const Header header = read_header(tiff.get(), input);
  check(header.width, header.height);
  Raster raster;
  raster.info.format = "tiff";
  raster.info.width = static_cast<int>(header.width);
  raster.info.height = static_cast<int>(header.height);
  raster.info.channels = header.used_samples();
  raster.info.bits = header.bits;
  raster.info.has_alpha = header.has_alpha;
  raster.info.is_animated = TIFFLastDirectory(tiff.get()) == 0;
  uint32_t profile_bytes = 0;
  void* profile = nullptr;
  raster.info.has_color_profile =
      TIFFGetField(tiff.get(), TIFFTAG_ICCPROFILE, &profile_bytes, &profile) == 1;
  const uint16_t orientation = field_or_default(tiff.get(), TIFFTAG_ORIENTATION);
  if (orientation >= 1 && orientation <= 8) raster.info.orientation = orientation;
  raster.layout = header.photometric == PHOTOMETRIC_SEPARATED ? Layout::kInvertedCmyk
                  : header.has_alpha                          ? Layout::kRgba
                                                              : Layout::kRgb;
  if (!pixels) return raster;
  const Samples samples(tiff.get(), input, header);
  const size_t count = size_t{header.width} * header.height;
  const int out_bytes = raster.bytes_per_pixel(), in_bytes = header.used_samples();
  raster.data.resize(count * out_bytes);
  for (size_t i = 0; i < count; ++i)
    convert(header, samples.values().data() + i * in_bytes, raster.data.data() + i * out_bytes);
  return raster;
}

}  // namespace atelier::media
