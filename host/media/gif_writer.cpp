#include <algorithm>
#include <exception>
#include <gif_lib.h>
#include <memory>

#include "atelier/error.h"

#include "host/media/clip_stream.h"
#include "host/media/clip_writer.h"
#include "host/media/palette.h"

namespace atelier::media {
namespace {

constexpr int64_t kTicks = 100;  // a second

struct CloseGif {
  void operator()(GifFileType* gif) const { EGifCloseFile(gif, nullptr); }
};
struct FreeMap {
  void operator()(ColorMapObject* map) const { GifFreeMapObject(map); }
};

// Each frame has a palette of its own.
class GifWriter final : public ClipWriter {
 public:
  GifWriter(const std::filesystem::path& path, const ClipSettings& settings)
      : settings_(settings), stream_(path) {
    int error = 0;
    gif_.reset(EGifOpen(this, &GifWriter::write, &error));
    if (!gif_) throw Error(ErrorCode::kOutOfMemory, "not enough memory to write a GIF");
    EGifSetGifVersion(gif_.get(), /*gif89=*/true);
    constexpr int kColorBits = 8;
    require(EGifPutScreenDesc(gif_.get(), settings.width, settings.height, kColorBits, 0, nullptr));
    repeat_forever();
    if (!settings.comment.empty()) require(EGifPutComment(gif_.get(), settings.comment.c_str()));
  }

  void add(const Image& frame) override {
    require_size(settings_, frame);
    IndexedImage indexed = to_indexed(frame);
    const std::unique_ptr<ColorMapObject, FreeMap> map = map_of(indexed);
    put_delay();
    require(EGifPutImageDesc(gif_.get(), 0, 0, frame.width, frame.height, /*interlaced=*/false,
                             map.get()));
    for (int y = 0; y < frame.height; ++y)
      require(EGifPutLine(gif_.get(), &indexed.indices[size_t(y) * frame.width], frame.width));
  }

  void finish() override {
    int error = 0;
    const int result = EGifCloseFile(gif_.release(), &error);
    rethrow();
    if (result == GIF_ERROR) fail(error);
    stream_.finish();
  }

 private:
  static int write(GifFileType* gif, const GifByteType* bytes, int count) {
    auto& self = *static_cast<GifWriter*>(gif->UserData);
    try {
      self.stream_.write({reinterpret_cast<const char*>(bytes), static_cast<size_t>(count)});
      return count;
    } catch (...) {
      self.failure_ = std::current_exception();  // not through C
      return 0;
    }
  }

  void rethrow() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  [[noreturn]] static void fail(int error) {
    const char* message = GifErrorString(error);
    throw Error(ErrorCode::kEnvironment,
                std::string("cannot be written: ") + (message ? message : "GIF"));
  }

  void require(int result) {
    rethrow();
    if (result == GIF_ERROR) fail(gif_->Error);
  }

  // As browsers read it since Netscape.
  void repeat_forever() {
    constexpr char kName[] = "NETSCAPE2.0";
    constexpr unsigned char kLoops[] = {1, 0, 0};
    require(EGifPutExtensionLeader(gif_.get(), APPLICATION_EXT_FUNC_CODE));
    require(EGifPutExtensionBlock(gif_.get(), sizeof kName - 1, kName));
    require(EGifPutExtensionBlock(gif_.get(), sizeof kLoops, kLoops));
    require(EGifPutExtensionTrailer(gif_.get()));
  }

  void put_delay() {
    const int64_t begin = ticks_of(frames_, settings_.fps, kTicks);
    const int64_t end = ticks_of(++frames_, settings_.fps, kTicks);
    GraphicsControlBlock control = {};
    control.DisposalMode = DISPOSE_DO_NOT;
    control.DelayTime = static_cast<int>(std::min<int64_t>(end - begin, 65'535));
    control.TransparentColor = NO_TRANSPARENT_COLOR;
    GifByteType bytes[4];
    require(EGifPutExtension(gif_.get(), GRAPHICS_EXT_FUNC_CODE,
                             static_cast<int>(EGifGCBToExtension(&control, bytes)), bytes));
  }

  static std::unique_ptr<ColorMapObject, FreeMap> map_of(const IndexedImage& indexed) {
    int size = 2;
    while (size < std::ssize(indexed.colors)) size *= 2;
    std::unique_ptr<ColorMapObject, FreeMap> map(GifMakeMapObject(size, nullptr));
    if (!map) throw Error(ErrorCode::kOutOfMemory, "not enough memory to write a GIF");
    for (size_t i = 0; i < indexed.colors.size(); ++i) {
      const auto& [red, green, blue] = indexed.colors[i];
      map->Colors[i] = {red, green, blue};
    }
    return map;
  }

  const ClipSettings settings_;
  ClipStream stream_;
  std::exception_ptr failure_;
  std::unique_ptr<GifFileType, CloseGif> gif_;
  int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipWriter> create_gif(const std::filesystem::path& path,
                                       const ClipSettings& settings) {
  return std::make_unique<GifWriter>(path, settings);
}

}  // namespace atelier::media
