#include "host/generate/clip_file.h"

#include <filesystem>

#include "host/media/decode.h"
#include "support/files.h"

namespace atelier::generate {
namespace {

namespace fs = std::filesystem;
using test::Folder;

constexpr MediaTarget kClipTarget = {3, 16, 32};

size_t num_files(const Folder& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()));
}

TEST_CASE("A clip is there once it is whole", "[clip]") {
  const Folder folder;
  for (const char* name : {"a.gif", "a.webp", "a.mp4"}) {
    INFO(name);
    const std::string path = folder / name;
    ClipFile clip(path, kClipTarget, 16, {{"prompt", "a cat"}});
    clip.add(at::zeros({3, 1, 16, 32}));
    clip.add(at::ones({3, 2, 16, 32}));
    CHECK_FALSE(fs::exists(path));
    clip.finish();
    CHECK(fs::file_size(path) > 0);
    if (path.ends_with("mp4")) continue;
    const media::ImageInfo info = media::probe_image(fs::path(path));
    CHECK(info.is_animated);
    CHECK(info.width == 32);
    CHECK(media::read_text(path) == media::Text{{"prompt", "a cat"}});
  }
  CHECK(num_files(folder) == 3);
}

TEST_CASE("Of a clip that is not finished nothing stays, and what was there does", "[clip]") {
  const Folder folder;
  for (const char* name : {"a.gif", "a.webp", "a.mp4"}) {
    const std::string path = folder / name;
    test::write_bytes(path, "older");
    {
      ClipFile clip(path, kClipTarget, 16, {});
      clip.add(at::zeros({3, 2, 16, 32}));
      CHECK(num_files(folder) == 2);
    }
    CHECK(num_files(folder) == 1);
    CHECK(test::read_bytes(path) == "older");
    fs::remove(path);
  }
}

TEST_CASE("A clip's file that cannot be written is named", "[clip]") {
  const Folder folder;
  const Error error =
      test::error_of([&] { ClipFile clip(folder / "no/a.gif", kClipTarget, 16, {}); });
  CHECK_THAT(error.what(), Catch::Contains("no/a.gif"));
}

}  // namespace
}  // namespace atelier::generate
