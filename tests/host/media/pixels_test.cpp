#include "host/media/pixels.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "support/catch.h"

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

TEST_CASE("Pixels that are not numbers are refused", "[image]") {
  const at::Tensor pixels = at::zeros({3, 2, 2});
  pixels[0][1][1] = std::nan("");
  REQUIRE_THROWS_AS(to_image(pixels), Error);
}

}  // namespace
}  // namespace atelier::media
