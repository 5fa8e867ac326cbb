#include "host/media/clip_writer.h"

#include <functional>
#include <random>
#include <set>

#include "host/media/palette.h"
#include "host/media/text.h"
#include "support/files.h"

namespace atelier::media {
namespace {

// A picture of many colours.
Image noise(int width, int height) {
  Image image(width, height);
  std::mt19937 random(7);
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random() >> 24);
  return image;
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

TEST_CASE("Text becomes a comment in ASCII and comes back, and others' comments are kept",
          "[clip]") {
  const Text text = {{"atelier", "{\"seed\": 3}"}, {"parameters", "a \"cat\"\n一只猫"}};
  const std::string comment = to_comment(text);
  CHECK(std::ranges::all_of(comment, [](char c) { return c >= ' ' && c < 0x7f; }));
  CHECK(from_comment(comment) == text);
  CHECK(to_comment({}).empty());
  CHECK(from_comment("").empty());
  for (const char* other : {"made with GIMP", "{\"seed\": 3}", "[1]", "{"})
    CHECK(from_comment(other) == Text{{"comment", other}});
}

TEST_CASE("A clip's format is told by its name", "[clip]") {
  CHECK(find_clip_format("d/a.MP4")->extension == ".mp4");
  CHECK(find_clip_format("a.webp")->extension == ".webp");
  CHECK(find_clip_format("a.gif")->max_fps == 50);
  CHECK(find_clip_format("a.png") == nullptr);
  CHECK(find_clip_format("mp4") == nullptr);
}

TEST_CASE("Few colours are kept, and many become 256", "[clip]") {
  Image flag(30, 20);
  for (size_t i = 0; i < flag.rgb.size(); ++i) flag.rgb[i] = i % 90 < 45 ? 200 : 17;
  const IndexedImage kept = to_indexed(flag);
  CHECK(kept.colors.size() == 2);
  for (size_t i = 0; i < kept.indices.size(); ++i)
    CHECK(kept.colors.at(kept.indices[i])[0] == flag.rgb[3 * i]);
  CHECK(to_indexed(Image(1, 1)).colors.size() == 1);

  const IndexedImage many = to_indexed(noise(64, 64));
  CHECK(many.colors.size() == 256);
  CHECK(std::set(many.indices.begin(), many.indices.end()).size() > 200);
  CHECK(to_indexed(noise(64, 64)).indices == many.indices);
}

TEST_CASE("Frames of another size and disks that are full are told", "[clip]") {
  const test::Folder folder;
  for (const char* extension : {".mp4", ".webp", ".gif"}) {
    INFO(extension);
    const ClipFormat& format = *find_clip_format(std::string("a") + extension);
    const ClipSettings settings = {.width = 64, .height = 48, .fps = 16};
    const auto writer = create_clip(format, folder / (std::string("a") + extension), settings);
    CHECK(code_of([&] { writer->add(noise(48, 64)); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { create_clip(format, folder / "no/a", settings); }) ==
          ErrorCode::kEnvironment);
    CHECK(code_of([&] {
            const auto full = create_clip(format, "/dev/full", settings);
            for (int i = 0; i < 3; ++i) full->add(noise(64, 48));
            full->finish();
          }) == ErrorCode::kEnvironment);
  }
}

}  // namespace
}  // namespace atelier::media
