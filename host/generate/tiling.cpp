#include "host/generate/tiling.h"

#include <algorithm>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

// One tile along one side, in latent cells, and its share of each place of the output.
struct Span {
  int64_t begin, length;
  std::vector<double> weights;
};

// Shares rise and fall over the overlap and add up to 1 in every place of the output, which has
// `out_scale` places for a cell.
std::vector<Span> make_spans(int64_t total, int64_t size, int64_t stride, int64_t out_scale) {
  const auto ramp = static_cast<double>(std::max<int64_t>((size - stride) * out_scale, 1));
  std::vector<double> sums(total * out_scale, 0.0);
  std::vector<Span> spans;
  for (const int64_t begin : tile_starts(total, size, stride)) {
    Span span = {begin, std::min(size, total - begin), {}};
    const int64_t out_length = span.length * out_scale;
    const bool is_first = begin == 0, is_last = begin + span.length == total;
    for (int64_t i = 0; i < out_length; ++i) {
      const double rise = is_first ? 1.0 : (static_cast<double>(i) + 0.5) / ramp;
      const double fall = is_last ? 1.0 : (static_cast<double>(out_length - i) - 0.5) / ramp;
      span.weights.push_back(std::min({rise, fall, 1.0}));
      sums[begin * out_scale + i] += span.weights.back();
    }
    spans.push_back(std::move(span));
  }
  for (Span& span : spans) {
    for (size_t i = 0; i < span.weights.size(); ++i) {
      span.weights[i] /= sums[span.begin * out_scale + i];
    }
  }
  return spans;
}

at::Tensor weight_tensor(const Span& span, at::Device device) {
  return at::tensor(span.weights, at::kDouble).to(device, at::kFloat);
}

struct Tile {
  const Span *row, *column;
};

// The tiles of one side by those of the other one.
std::vector<Tile> tiles_of(const std::vector<Span>& rows, const std::vector<Span>& columns) {
  std::vector<Tile> tiles;
  for (const Span& row : rows) {
    for (const Span& column : columns) tiles.push_back({&row, &column});
  }
  return tiles;
}

// A latent cell is `in_scale` places of `in` and `out_scale` places of what is returned, which is
// where `function` gives its tiles: on the host where `is_on_host`.
at::Tensor run_tiled(const at::Tensor& in, const order::Tiling& tiling, int64_t spatial_stride,
                     int64_t in_scale, int64_t out_scale, bool is_on_host,
                     const TileFunction& function, const TileDone& done, const TileRanks& ranks) {
  check_tiling(tiling, spatial_stride);
  const int64_t size = tiling.size / spatial_stride, stride = tiling.stride / spatial_stride;
  const int64_t height = in.size(-2) / in_scale, width = in.size(-1) / in_scale;
  const auto rows = make_spans(height, size, stride, out_scale);
  const auto columns = make_spans(width, size, stride, out_scale);
  const std::vector<Tile> tiles = tiles_of(rows, columns);
  const auto total = std::ssize(tiles);
  const auto run = [&](const Tile& tile) {
    const auto [row, column] = tile;
    return function(in.narrow(-2, row->begin * in_scale, row->length * in_scale)
                        .narrow(-1, column->begin * in_scale, column->length * in_scale)
                        .contiguous());
  };
  at::Tensor out;
  const auto add = [&](const at::Tensor& part, const Tile& tile) {
    std::optional<memory::HostScope> on_host;
    if (is_on_host) on_host.emplace();
    const auto [row, column] = tile;
    if (!out.defined()) {
      std::vector<int64_t> shape = part.sizes().vec();
      shape[shape.size() - 2] = height * out_scale;
      shape[shape.size() - 1] = width * out_scale;
      out = at::zeros(shape, part.options().dtype(at::kFloat));
    }
    const at::Tensor weights =
        weight_tensor(*row, part.device()).unsqueeze(1) * weight_tensor(*column, part.device());
    out.narrow(-2, row->begin * out_scale, row->length * out_scale)
        .narrow(-1, column->begin * out_scale, column->length * out_scale)
        .add_(part.to(at::kFloat) * weights);
  };
  for (int64_t first = 0; first < total; first += ranks.size) {
    // All tiles have one size. In the last round, ranks for which none is left make the last one.
    const at::Tensor own = run(tiles[std::min(first + ranks.rank, total - 1)]);
    const at::Tensor parts = ranks.size == 1 ? own.unsqueeze(0) : ranks.gather(own);
    const int64_t count = std::min(ranks.size, total - first);
    for (int64_t i = 0; i < count; ++i) add(parts[i], tiles[first + i]);
    if (done) done(first + count, total);
  }
  return out;
}

}  // namespace

void check_tiling(const order::Tiling& tiling, int64_t spatial_stride) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  const std::string multiple = " is no multiple of " + std::to_string(spatial_stride);
  if (tiling.size < spatial_stride || tiling.size % spatial_stride != 0) {
    refuse("--tile_size: " + std::to_string(tiling.size) + multiple);
  }
  if (tiling.stride < spatial_stride || tiling.stride % spatial_stride != 0) {
    refuse("--tile_stride: " + std::to_string(tiling.stride) + multiple);
  }
  if (tiling.stride > tiling.size) {
    refuse("--tile_stride: " + std::to_string(tiling.stride) + " leaves gaps between tiles of " +
           std::to_string(tiling.size));
  }
}

std::vector<int64_t> tile_starts(int64_t total, int64_t size, int64_t stride) {
  if (total <= size) return {0};
  const int64_t gaps = (total - size + stride - 1) / stride;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i <= gaps; ++i) starts.push_back((total - size) * i / gaps);
  return starts;
}

at::Tensor decode_tiled(const at::Tensor& latents, const order::Tiling& tiling,
                        int64_t spatial_stride, const TileFunction& decode, const TileDone& done,
                        const TileRanks& ranks) {
  return run_tiled(latents, tiling, spatial_stride, 1, spatial_stride, /*is_on_host=*/true, decode,
                   done, ranks);
}

at::Tensor encode_tiled(const at::Tensor& pixels, const order::Tiling& tiling,
                        int64_t spatial_stride, const TileFunction& encode, const TileDone& done,
                        const TileRanks& ranks) {
  return run_tiled(pixels, tiling, spatial_stride, spatial_stride, 1, /*is_on_host=*/false, encode,
                   done, ranks);
}

}  // namespace atelier::generate
