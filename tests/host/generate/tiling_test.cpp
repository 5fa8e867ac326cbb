#include "host/generate/tiling.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::generate {
namespace {

using namespace order;

constexpr int64_t kStride = 8;

// Every cell becomes a block of equal pixels: a tile gives what the whole gives.
at::Tensor enlarge(const at::Tensor& latents) {
  return latents.repeat_interleave(kStride, -2).repeat_interleave(kStride, -1);
}

at::Tensor shrink(const at::Tensor& pixels) {
  return at::avg_pool2d(pixels, {kStride, kStride});
}

// A decoder whose output is wrong near its borders, as a convolution that pads is: the error falls
// from 1 at the border to nothing 32 pixels inside.
at::Tensor enlarge_with_borders(const at::Tensor& latents) {
  at::Tensor pixels = enlarge(latents);
  const auto ramp = [](int64_t length) {
    const at::Tensor i = at::arange(length, at::kFloat);
    const at::Tensor distance = at::minimum(i, (length - 1) - i);
    return (1.0 - distance / 32.0).clamp_min(0.0);
  };
  const at::Tensor rows = ramp(pixels.size(-2)).unsqueeze(1), columns = ramp(pixels.size(-1));
  return pixels + at::maximum(rows.expand({pixels.size(-2), pixels.size(-1)}), columns);
}

float largest(const at::Tensor& x) {
  return x.abs().max().item<float>();
}

TEST_CASE("Tiles cover a side evenly", "[tiling]") {
  REQUIRE(tile_starts(10, 32, 24) == std::vector<int64_t>{0});
  REQUIRE(tile_starts(32, 32, 24) == std::vector<int64_t>{0});
  REQUIRE(tile_starts(33, 32, 24) == std::vector<int64_t>{0, 1});
  REQUIRE(tile_starts(80, 32, 24) == std::vector<int64_t>{0, 24, 48});
  for (int64_t total = 1; total < 200; ++total) {
    const auto starts = tile_starts(total, 32, 24);
    REQUIRE(starts.front() == 0);
    REQUIRE(starts.back() == std::max<int64_t>(total - 32, 0));
    for (size_t i = 1; i < starts.size(); ++i) REQUIRE(starts[i] - starts[i - 1] <= 24);
  }
}

TEST_CASE("Tiled decoding and encoding give what the whole gives", "[tiling]") {
  at::manual_seed(1);
  for (const auto& [height, width] :
       std::vector<std::pair<int64_t, int64_t>>{{64, 88}, {33, 32}, {20, 97}, {7, 5}}) {
    const at::Tensor latents = at::randn({2, 4, 1, height, width});
    const at::Tensor whole = enlarge(latents);
    const at::Tensor tiled = decode_tiled(latents, {}, kStride, enlarge);
    REQUIRE(tiled.sizes() == whole.sizes());
    REQUIRE(largest(tiled - whole) < 2e-6f);

    const at::Tensor pixels = at::randn({3, 1, height * kStride, width * kStride});
    const at::Tensor encoded = encode_tiled(pixels, {}, kStride, shrink);
    REQUIRE(encoded.sizes() == at::IntArrayRef({3, 1, height, width}));
    REQUIRE(largest(encoded - shrink(pixels)) < 2e-6f);
  }
}

TEST_CASE("Tiles show no seams where the decoder is wrong at its borders", "[tiling]") {
  // Constant latents: every difference between neighbours comes from the tiles. A hard cut would be
  // a step of up to 1; the decoder's own error falls by 1/32 a pixel.
  const at::Tensor latents = at::zeros({1, 3, 1, 80, 104});
  const at::Tensor tiled = decode_tiled(latents, {}, kStride, enlarge_with_borders);
  const at::Tensor inside = tiled.slice(-2, 40, -40).slice(-1, 40, -40);
  for (const int64_t axis : {-2, -1}) {
    const at::Tensor steps = inside.slice(axis, 1) - inside.slice(axis, 0, inside.size(axis) - 1);
    REQUIRE(largest(steps) < 1.5f / 32.0f);
  }
  // In the middle of an overlap the tile that is far from its border counts more.
  REQUIRE(largest(inside) < 0.35f);
}

TEST_CASE("Tiled decoding of a batch equals that of its samples", "[tiling]") {
  at::manual_seed(2);
  const at::Tensor latents = at::randn({2, 4, 1, 40, 50});
  const at::Tensor batch = decode_tiled(latents, {}, kStride, enlarge);
  for (int64_t i = 0; i < 2; ++i) {
    REQUIRE(at::equal(batch[i], decode_tiled(latents[i], {}, kStride, enlarge)));
  }
}

TEST_CASE("Tiles report their progress", "[tiling]") {
  std::vector<int64_t> seen;
  decode_tiled(at::zeros({1, 4, 1, 64, 40}), {}, kStride, enlarge,
               [&](int64_t done, int64_t total) {
                 seen.push_back(done);
                 REQUIRE(total == 6);
               });
  REQUIRE(seen == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("Tiles that leave gaps or do not fit the stride are refused", "[tiling]") {
  REQUIRE_NOTHROW(check_tiling({256, 256}, kStride));
  REQUIRE_THROWS_AS(check_tiling({256, 264}, kStride), Error);
  REQUIRE_THROWS_AS(check_tiling({250, 192}, kStride), Error);
  REQUIRE_THROWS_AS(check_tiling({256, 100}, kStride), Error);
  REQUIRE_THROWS_AS(check_tiling({256, 0}, kStride), Error);
  REQUIRE_THROWS_AS(check_tiling({-8, -8}, kStride), Error);
}

}  // namespace
}  // namespace atelier::generate
