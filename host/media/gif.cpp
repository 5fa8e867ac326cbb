#include <algorithm>
#include <array>
#include <cstring>
#include <gif_lib.h>
#include <memory>
#include <optional>

#include "host/media/codec.h"

namespace atelier::media {
namespace {

struct GifInput {
  std::span<const uint8_t> bytes;
};

int read_bytes(GifFileType* gif, GifByteType* out, int size) {
  auto& left = static_cast<GifInput*>(gif->UserData)->bytes;
  const size_t count = std::min(left.size(), static_cast<size_t>(size));
  std::memcpy(out, left.data(), count);
  left = left.subspan(count);
  return static_cast<int>(count);
}

struct Closer {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};
using Gif = std::unique_ptr<GifFileType, Closer>;

[[noreturn]] void fail(int error) {
  const char* message = GifErrorString(error);
  throw DecodeError(message ? message : "damaged GIF data");
}

void require(GifFileType* gif, int result) {
  if (result == GIF_ERROR) fail(gif->Error);
}

// Moves on to the next frame, over extensions; false at the end. `transparent` becomes the index
// that the last extension before the frame makes transparent.
bool find_frame(GifFileType* gif, std::optional<uint8_t>* transparent = nullptr) {
  for (;;) {
    GifRecordType record;
    require(gif, DGifGetRecordType(gif, &record));
    if (record == TERMINATE_RECORD_TYPE) return false;
    if (record == IMAGE_DESC_RECORD_TYPE) {
      require(gif, DGifGetImageDesc(gif));
      return true;
    }
    int code = 0;
    GifByteType* block = nullptr;  // its first byte is its length
    require(gif, DGifGetExtension(gif, &code, &block));
    const bool is_control = code == GRAPHICS_EXT_FUNC_CODE && block && block[0] >= 4;
    if (is_control && (block[1] & 1) != 0 && transparent) *transparent = block[4];
    while (block) require(gif, DGifGetExtensionNext(gif, &block));
  }
}

void skip_frame(GifFileType* gif) {
  int size = 0;
  GifByteType* block = nullptr;
  require(gif, DGifGetCode(gif, &size, &block));
  while (block) require(gif, DGifGetCodeNext(gif, &block));
}

// Indices that the palette lacks, or all without one, are shades of gray.
std::array<std::array<uint8_t, 4>, 256> palette_of(const GifFileType& gif,
                                                   std::optional<uint8_t> transparent) {
  std::array<std::array<uint8_t, 4>, 256> palette;
  for (int i = 0; i < 256; ++i) {
    const auto gray = static_cast<uint8_t>(i);
    palette[i] = {gray, gray, gray, 255};
  }
  const ColorMapObject* map = gif.Image.ColorMap ? gif.Image.ColorMap : gif.SColorMap;
  for (int i = 0; map && i < std::min(map->ColorCount, 256); ++i) {
    const GifColorType& color = map->Colors[i];
    palette[i] = {color.Red, color.Green, color.Blue, 255};
  }
  if (transparent) palette[*transparent][3] = 0;
  return palette;
}

// The indices of the frame on its canvas, which the frame may leave uncovered.
std::vector<uint8_t> read_indices(GifFileType* gif, int width, int height, uint8_t uncovered) {
  const GifImageDesc& frame = gif->Image;
  std::vector<uint8_t> indices(static_cast<size_t>(width) * height, uncovered);
  struct Pass {
    int first, step;
  };
  static constexpr Pass kWhole[] = {{0, 1}};
  static constexpr Pass kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const Pass& pass : frame.Interlace ? std::span<const Pass>(kInterlaced) : kWhole) {
    for (int y = pass.first; y < frame.Height; y += pass.step) {
      uint8_t* row = indices.data() + static_cast<size_t>(frame.Top + y) * width + frame.Left;
      require(gif, DGifGetLine(gif, row, frame.Width));
    }
  }
  return indices;
}

bool has_another_frame(GifFileType* gif) {
  try {
    return find_frame(gif);
  } catch (const DecodeError&) {
    return false;  // what comes behind the first frame is not looked at
  }
}

}  // namespace

Raster read_gif(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  GifInput input{bytes};
  int error = 0;
  const Gif gif(DGifOpen(&input, read_bytes, &error));
  if (!gif) fail(error);
  check(gif->SWidth, gif->SHeight);
  std::optional<uint8_t> transparent;
  if (!find_frame(gif.get(), &transparent)) throw DecodeError("holds no image");
  const GifImageDesc frame = gif->Image;
  if (frame.Width < 1 || frame.Height < 1) throw DecodeError("its first frame is empty");

  Raster raster;
  raster.info.format = "gif";
  raster.info.width = std::max(gif->SWidth, frame.Left + frame.Width);
  raster.info.height = std::max(gif->SHeight, frame.Top + frame.Height);
  raster.info.channels = 1;
  raster.info.has_alpha = transparent.has_value();
  raster.layout = transparent ? Layout::kRgba : Layout::kRgb;
  check(raster.info.width, raster.info.height);
  if (!pixels) {
    skip_frame(gif.get());
    raster.info.is_animated = has_another_frame(gif.get());
    return raster;
  }
  const auto palette = palette_of(*gif, transparent);
  const std::vector<uint8_t> indices =
      read_indices(gif.get(), raster.info.width, raster.info.height, transparent.value_or(0));
  const int bytes_per_pixel = raster.bytes_per_pixel();
  raster.data.resize(indices.size() * bytes_per_pixel);
  uint8_t* out = raster.data.data();
  for (const uint8_t index : indices)
    out = std::copy_n(palette[index].data(), bytes_per_pixel, out);
  return raster;
}

}  // namespace atelier::media
