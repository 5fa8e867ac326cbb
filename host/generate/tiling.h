// Large images through the VAE in overlapping tiles, blended so that no seams show.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/order/settings.h"

namespace atelier::generate {

// Throws Error{kInvalidArgument} when the tiles leave gaps, or do not fit the VAE's stride.
void check_tiling(const order::Tiling& tiling, int64_t spatial_stride);

// First cells of the tiles along one side, evenly spread, the last one ending at `total`.
std::vector<int64_t> tile_starts(int64_t total, int64_t size, int64_t stride);

// Maps one tile: [..., h, w] in, [..., h * scale, w * scale] out.
using TileFunction = std::function<at::Tensor(const at::Tensor& tile)>;
// Processes that deal out the tiles among them; by default this one has all.
struct TileRanks {
  int64_t rank = 0, size = 1;
  // Maps this rank's tile to the tiles of all ranks, [size, ...].
  std::function<at::Tensor(const at::Tensor& tile)> gather = {};
};
// Called after each tile.
using TileDone = std::function<void(int64_t done, int64_t total)>;

// Decodes latents [..., H, W] into pixels, float32 [..., H * spatial_stride, W * spatial_stride],
// on the host, where `decode` gives its tiles. Several ranks all get the whole, to the bits that
// one gets.
at::Tensor decode_tiled(const at::Tensor& latents, const order::Tiling& tiling,
                        int64_t spatial_stride, const TileFunction& decode,
                        const TileDone& done = {}, const TileRanks& ranks = {});

// Encodes pixels [..., H, W] into latents, float32 [..., H / spatial_stride, W / spatial_stride].
at::Tensor encode_tiled(const at::Tensor& pixels, const order::Tiling& tiling,
                        int64_t spatial_stride, const TileFunction& encode,
                        const TileDone& done = {}, const TileRanks& ranks = {});

}  // namespace atelier::generate
