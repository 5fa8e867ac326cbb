#include "host/media/pixels.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/media/decode.h"
#include "host/media/jpeg.h"
#include "host/media/text.h"
#include "support/files.h"

namespace atelier::media {
namespace {

TEST_CASE("Bytes survive the way to pixels and back", "[image]") {
  Image image(16, 32);
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(i * 7);
  const at::Tensor pixels = to_pixels(image);
  REQUIRE(pixels.sizes() == at::IntArrayRef({3, 32, 16}));
  REQUIRE(pixels.is_contiguous());
  REQUIRE(pixels[1][2][3].item<float>() ==
          Approx(image.row(2)[3 * 3 + 1] / 255.0 * 2 - 1).margin(1e-6));
  REQUIRE(pixels.min().item<float>() == -1.0f);
  REQUIRE(pixels.max().item<float>() == 1.0f);
  REQUIRE(to_image(pixels).rgb == image.rgb);
}

TEST_CASE("Pixels outside the range are clamped, and others rounded", "[image]") {
  const at::Tensor pixels = at::zeros({3, 1, 2});
  pixels[0] = -3.0;
  pixels[1] = 1.5;
  pixels[2][0][1] = 2.0 * 10.6 / 255.0 - 1.0;
  REQUIRE(to_image(pixels).rgb == std::vector<uint8_t>{0, 255, 128, 0, 255, 11});
  REQUIRE(to_image(pixels.to(at::kBFloat16)).rgb[0] == 0);
}

TEST_CASE("A JPEG holds nearly the same picture, and what is said of it", "[image]") {
  Image image(40, 24);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width * 3; ++x) image.row(y)[x] = static_cast<uint8_t>(3 * x / 2 + y);
  }
  const test::Folder folder;
  const std::string path = folder / "a.jpg";
  const Text text = {{"parameters", "a fox, \xc3\xa9t\xc3\xa9"}, {"atelier", "{}"}};
  test::write_bytes(path, encode_jpeg(image, text));
  const Image read = decode_image(path);
  REQUIRE(read.rgb.size() == image.rgb.size());
  for (size_t i = 0; i < read.rgb.size(); ++i) CHECK(std::abs(read.rgb[i] - image.rgb[i]) <= 8);
  Text said = read_text(path);
  std::ranges::reverse(said);  // members of JSON come in the order of their names
  CHECK(said == text);
  CHECK(encode_jpeg(image, text) == encode_jpeg(image, text));
  const std::string plain = encode_jpeg(image);
  CHECK(encode_jpeg(image, {{"long", std::string(70'000, 'a')}}) == plain);
  test::write_bytes(path, plain);
  CHECK(read_text(path).empty());
  CHECK_THROWS_AS(encode_jpeg(Image(65'501, 1)), Error);
}

TEST_CASE("Pixels that are not numbers are refused", "[image]") {
  const at::Tensor pixels = at::zeros({3, 2, 2});
  pixels[0][1][1] = std::nan("");
  REQUIRE_THROWS_AS(to_image(pixels), Error);
}

}  // namespace
}  // namespace atelier::media
