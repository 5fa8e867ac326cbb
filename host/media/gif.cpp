#include <algorithm>
#include <array>
#include <cstring>
#include <gif_lib.h>
#include <memory>
#include <optional>
#include <string>

#include "host/media/animation.h"

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

// What the last extension before a frame says of it.
struct Control {
  std::optional<uint8_t> transparent;  // the index that shows what is below
  int disposal = 0;                    // what becomes of the frame when the next one comes
  int delay_cs = 0;                    // centiseconds
};

// Moves on to the next frame, over extensions; false at the end.
bool find_frame(GifFileType* gif, Control* control = nullptr) {
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
    if (control && code == GRAPHICS_EXT_FUNC_CODE && block && block[0] >= 4) {
      if ((block[1] & 1) != 0) control->transparent = block[4];
      control->disposal = block[1] >> 2 & 7;
      control->delay_cs = block[2] | block[3] << 8;
    }
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

// The indices of the frame, row by row.
std::vector<uint8_t> read_indices(GifFileType* gif) {
  const GifImageDesc& frame = gif->Image;
  std::vector<uint8_t> indices(static_cast<size_t>(frame.Width) * frame.Height);
  struct Pass {
    int first, step;
  };
  static constexpr Pass kWhole[] = {{0, 1}};
  static constexpr Pass kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const Pass& pass : frame.Interlace ? std::span<const Pass>(kInterlaced) : kWhole) {
    for (int y = pass.first; y < frame.Height; y += pass.step)
      require(gif,
              DGifGetLine(gif, indices.data() + static_cast<size_t>(y) * frame.Width, frame.Width));
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

// Draws the frame that was found over a canvas; transparent pixels and what lies outside are left.
void draw_frame(GifFileType* gif, const Control& control, Raster& canvas) {
  const GifImageDesc frame = gif->Image;
  const auto palette = palette_of(*gif, control.transparent);
  const std::vector<uint8_t> indices = read_indices(gif);
  const int pixel_bytes = canvas.bytes_per_pixel();
  const int width = std::min(frame.Width, canvas.info.width - frame.Left);
  const int height = std::min(frame.Height, canvas.info.height - frame.Top);
  for (int y = 0; y < height; ++y) {
    const uint8_t* in = indices.data() + static_cast<size_t>(y) * frame.Width;
    const size_t row = static_cast<size_t>(frame.Top + y) * canvas.info.width + frame.Left;
    uint8_t* out = canvas.data.data() + row * pixel_bytes;
    for (int x = 0; x < width; ++x, out += pixel_bytes) {
      if (in[x] != control.transparent) std::copy_n(palette[in[x]].data(), pixel_bytes, out);
    }
  }
}

// What the first frame leaves uncovered has its transparent index, or index 0.
void fill(GifFileType* gif, const Control& control, Raster& canvas) {
  const auto color = palette_of(*gif, control.transparent)[control.transparent.value_or(0)];
  const int pixel_bytes = canvas.bytes_per_pixel();
  canvas.data.resize(static_cast<size_t>(canvas.info.width) * canvas.info.height * pixel_bytes);
  for (size_t i = 0; i < canvas.data.size(); i += pixel_bytes)
    std::copy_n(color.data(), pixel_bytes, canvas.data.data() + i);
}

Gif open_file(GifInput& input, const CheckSize& check) {
  int error = 0;
  Gif gif(DGifOpen(&input, read_bytes, &error));
  if (!gif) fail(error);
  check(gif->SWidth, gif->SHeight);
  return gif;
}

// The size of the canvas, once the first frame is found.
void read_size(const GifFileType& gif, Raster& canvas, const CheckSize& check) {
  const GifImageDesc& frame = gif.Image;
  if (frame.Width < 1 || frame.Height < 1) throw DecodeError("its first frame is empty");
  canvas.info.width = std::max(gif.SWidth, frame.Left + frame.Width);
  canvas.info.height = std::max(gif.SHeight, frame.Top + frame.Height);
  check(canvas.info.width, canvas.info.height);
}

class GifAnimation : public Animation {
 public:
  GifAnimation(std::span<const uint8_t> bytes, CheckSize check)
      : input_{bytes}, check_(std::move(check)), gif_(open_file(input_, check_)) {
    canvas_.layout = Layout::kRgba;
    GifInput rest{bytes};
    const Gif all = open_file(rest, check_);
    Control control;
    // A file may lack the mark of its end.
    while (!rest.bytes.empty() && find_frame(all.get(), &control)) {
      if (durations_ms_.empty()) read_size(*all, canvas_, check_);
      skip_frame(all.get());
      // Browsers take what is too short to be meant as a tenth of a second.
      durations_ms_.push_back(control.delay_cs > 1 ? 10 * control.delay_cs : 100);
      control = {};
    }
    if (durations_ms_.empty()) throw DecodeError("holds no image");
  }

  const std::vector<int>& durations_ms() const override { return durations_ms_; }

  const Raster& next() override {
    if (is_begun_) dispose();
    control_ = {};
    if (!find_frame(gif_.get(), &control_)) throw DecodeError("the file ends before its frames do");
    check_(gif_->Image.Width, gif_->Image.Height);
    if (!is_begun_) fill(gif_.get(), control_, canvas_);
    is_begun_ = true;
    frame_ = gif_->Image;
    if (control_.disposal == kPrevious) before_ = canvas_.data;
    draw_frame(gif_.get(), control_, canvas_);
    return canvas_;
  }

 private:
  static constexpr int kBackground = 2, kPrevious = 3;

  // Does with the last frame what it asks for.
  void dispose() {
    if (control_.disposal == kPrevious) canvas_.data = before_;
    if (control_.disposal != kBackground) return;
    const int width = std::min(frame_.Width, canvas_.info.width - frame_.Left);
    const int bottom = std::min(frame_.Top + frame_.Height, canvas_.info.height);
    for (int y = frame_.Top; y < bottom && width > 0; ++y) {
      const size_t row = static_cast<size_t>(y) * canvas_.info.width + frame_.Left;
      std::fill_n(canvas_.data.begin() + static_cast<ptrdiff_t>(4 * row), 4 * width, uint8_t{0});
    }
  }

  GifInput input_;
  CheckSize check_;
  Gif gif_;
  Raster canvas_;
  std::vector<int> durations_ms_;
  Control control_;     // of the last frame
  GifImageDesc frame_;  // the same
  bool is_begun_ = false;
  std::vector<uint8_t> before_;  // the canvas under a frame that is taken away again
};

}  // namespace

Raster read_gif(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  GifInput input{bytes};
  const Gif gif = open_file(input, check);
  Control control;
  if (!find_frame(gif.get(), &control)) throw DecodeError("holds no image");
  Raster raster;
  raster.info.format = "gif";
  raster.info.channels = 1;
  raster.info.has_alpha = control.transparent.has_value();
  raster.layout = control.transparent ? Layout::kRgba : Layout::kRgb;
  read_size(*gif, raster, check);
  if (pixels) {
    fill(gif.get(), control, raster);
    draw_frame(gif.get(), control, raster);
    return raster;
  }
  skip_frame(gif.get());
  raster.info.is_animated = has_another_frame(gif.get());
  return raster;
}

std::unique_ptr<Animation> open_gif(std::span<const uint8_t> bytes, const CheckSize& check) {
  return std::make_unique<GifAnimation>(bytes, check);
}

}  // namespace atelier::media
