// How rows are shared out to the lanes of a GPU, and what kernels on rows are given.
//
// A block has the lanes of one row, or of several short ones. Each lane has one pack of 16 bytes of
// its row, or as many as its functor says, `step` columns apart. A block takes a chunk of rows of
// one sample, one after another; a row may also be cut into tiles, one for each block, where lanes
// need not add up.
#pragma once

#include "atelier/host/packing.h"

#include "ops/cuda/packs.h"

namespace atelier::ops::cuda {

inline constexpr int kWarp = 32;
// Registers of a block, and lanes of one row; a kernel may then use 128 registers.
inline constexpr int kBlockRegisters = 65536, kMostLanes = 512;
// Offsets of this many samples travel with the launch.
inline constexpr int kSamplesByValue = 64;

// Row offsets of samples, and the chunks that begin in each: [count + 1].
struct Samples {
  int64_t count;
  int64_t offsets[kSamplesByValue + 1], first_chunks[kSamplesByValue + 1];
  // Offsets of more samples, in memory of the device; else null.
  const int64_t *many_offsets, *many_first_chunks;

  ATELIER_LANE int64_t offset(int64_t s) const {
    return many_offsets != nullptr ? many_offsets[s] : offsets[s];
  }
  ATELIER_LANE int64_t first_chunk(int64_t s) const {
    return many_first_chunks != nullptr ? many_first_chunks[s] : first_chunks[s];
  }
  // The sample that has this chunk: the last that begins at or before it, as empty ones have none.
  ATELIER_LANE int64_t of_chunk(int64_t chunk) const {
    int64_t low = 0, high = count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_chunk(middle) <= chunk ? low : high) = middle;
    }
    return low;
  }
};

struct RowGrid {
  int64_t width;       // columns
  int lanes;           // of a row, or of a tile
  int packs;           // of a lane
  int rows_at_once;    // in a block
  int64_t tiles;       // of a row
  int64_t chunk_rows;  // at most, in a block
  int64_t chunks;
  Samples samples;

  ATELIER_LANE int threads() const { return lanes * rows_at_once; }
  ATELIER_LANE int64_t blocks() const { return chunks * tiles; }
};

// Rows of the kernel's element type, or where it `is_wide` of float32. Null: not there.
struct Input {
  const void* data;
  int64_t stride;  // in elements, from row to row or from sample to sample
  bool is_aligned, is_wide;
};
struct Output {
  void* data;
  int64_t stride;
  bool is_aligned;
};

// A moment of AdamW in 8 bits; see atelier/host/adamw_8bit.h.
struct MomentArguments {
  uint8_t* codes;
  float* absmax;
  const float *values, *borders;
  const uint8_t* first_codes;
  int64_t stride;  // of a block
  bool is_aligned;

  ATELIER_LANE Input codes_in() const { return {codes, stride, is_aligned, false}; }
  ATELIER_LANE Output codes_out() const { return {codes, stride, is_aligned}; }
};

// A step of AdamW, beside the gradient, `x`, and the parameter, `y` and `out`.
struct AdamWArguments {
  int64_t numel;
  float* master;  // null: the parameter itself is moved
  MomentArguments moments[2];
  const float *grad_scale, *is_skipped, *corrections;
  // The first moment becomes itself, or with `lerps_back` the gradient, plus lerp times what the
  // gradient is above it.
  float lerp;
  bool lerps_back;
  float beta2, rest2, eps, decay;
  uint32_t key[2], parameter, step;
  uint64_t first;
};

// Weights as blocks of small codes; see atelier/host/packed_codes.h.
struct PackedArguments {
  const uint8_t* codes;
  Packing packing;
  // What nf4 and fp4 have: numbers of the 16 codes, and a scale for each 2^block_bits values.
  const float *values, *scales;
  int block_bits;
};

// The tensors of every kernel on rows; each functor says which it reads and writes.
struct RowArguments {
  Input x, y, grad, added;
  // By column, stride 0, or by sample.
  Input weight, by_sample, shift, next_weight, next_by_sample;
  Output out, second;
  // Codes of 8 bits: int8, or e4m3. Scales are one a row.
  Output codes;
  float* new_scales;
  const float* row_scales;
  bool is_int8;
  // Sums over the rows of a chunk, [chunks * rows_at_once, sums, width]. Null: not wanted.
  float* partial_sums;
  float eps;
  bool is_gate;        // by_sample is a gate: its tanh counts, not 1 + it
  bool rounds_normal;  // before the weight
  bool is_channel;     // the norm is that over channels
  bool silu;           // behind that norm
  bool one_plus;       // by_sample is one less than the factor
  // Rotations of heads: x has rows [row, head], cos and sin [row] of half a head.
  int64_t heads, head_stride;
  const float *cos, *sin;
  bool halves, are_angles_aligned;
  // By sample: how many rows later than in x they are in `out`, or in `grad`. Null: none.
  const int64_t* rows_before;
  AdamWArguments adamw;
  PackedArguments packed;
};

// A kernel on rows, as an operator's .cu file defines it.
struct RowKernel {
  // Queues it on a stream of the current device; the CUDA error, 0 for none.
  int (*launch)(Element, const RowGrid&, const RowArguments&, void* stream);
  int lane_packs[3];  // by Element
};

// Where a lane is.
struct Place {
  int64_t row, sample, column, step, width;
  bool is_active;  // false where the block has more lanes than rows are left

  ATELIER_LANE int64_t column_of(int pack) const { return column + pack * step; }
  // Elements of this pack that are in the row.
  template <typename T>
  ATELIER_LANE int count(int pack) const {
    const int64_t left = width - column_of(pack);
    if (!is_active || left <= 0) return 0;
    return left < kPackElements<T> ? int(left) : kPackElements<T>;
  }
};

// The block's part of the grid, and a lane's place in it. `block` is its number, `thread` the
// lane's.
struct Chunk {
  int64_t index, sample, first_row, end_row;
  Place place;

  ATELIER_LANE Chunk(const RowGrid& grid, int64_t block, int thread, int pack_elements) {
    index = block / grid.tiles;
    sample = grid.samples.of_chunk(index);
    first_row =
        grid.samples.offset(sample) + (index - grid.samples.first_chunk(sample)) * grid.chunk_rows;
    const int64_t sample_end = grid.samples.offset(sample + 1);
    end_row = first_row + grid.chunk_rows < sample_end ? first_row + grid.chunk_rows : sample_end;
    const int64_t tile = block % grid.tiles;
    place.sample = sample;
    place.step = int64_t(grid.lanes) * pack_elements;
    place.column = tile * grid.packs * place.step + int64_t(thread % grid.lanes) * pack_elements;
    place.width = grid.width;
    place.is_active = true;
    place.row = first_row + thread / grid.lanes;
  }
  // The row that the lane has when the block is at `base`.
  ATELIER_LANE void move_to(const RowGrid& grid, int64_t base, int thread) {
    place.row = base + thread / grid.lanes;
    place.is_active = place.row < end_row;
  }
};

// --- what functors read and write ---

template <typename T>
ATELIER_LANE Pack load_row(const Input& from, const Place& place, int pack) {
  using Bits = typename T::Bits;
  const Bits* row = static_cast<const Bits*>(from.data) + place.row * from.stride;
  return load_pack<T>(row + place.column_of(pack), place.count<T>(pack), from.is_aligned);
}

template <typename T>
ATELIER_LANE void store_row(const Output& to, const Place& place, int pack, const Pack& values) {
  using Bits = typename T::Bits;
  Bits* row = static_cast<Bits*>(to.data) + place.row * to.stride;
  store_pack<T>(row + place.column_of(pack), values, place.count<T>(pack), to.is_aligned);
}

// As many float32 as a pack has elements, in rows `stride` apart.
template <typename T>
ATELIER_LANE void store_wide(float* to, int64_t stride, bool is_aligned, const Place& place,
                             int pack, const float (&v)[kPackElements<T>]) {
  const int count = place.count<T>(pack);
  float* elements = to + place.row * stride + place.column_of(pack);
  ATELIER_UNROLL
  for (int part = 0; part < kPackElements<T> / 4; ++part) {
    const float four[4] = {v[4 * part], v[4 * part + 1], v[4 * part + 2], v[4 * part + 3]};
    store_pack<Float32>(elements + 4 * part, narrow<Float32>(four), count - 4 * part, is_aligned);
  }
}

// Values of the place's sample, in float32, whichever type it has.
template <typename T>
ATELIER_LANE void load_sample(const Input& from, const Place& place, int pack,
                              float (&v)[kPackElements<T>]) {
  const int count = place.count<T>(pack);
  const int64_t first = place.sample * from.stride + place.column_of(pack);
  if (!from.is_wide) {
    using Bits = typename T::Bits;
    widen<T>(load_pack<T>(static_cast<const Bits*>(from.data) + first, count, from.is_aligned), v);
    return;
  }
  const float* elements = static_cast<const float*>(from.data) + first;
  ATELIER_UNROLL
  for (int part = 0; part < kPackElements<T> / 4; ++part) {
    float four[4];
    widen<Float32>(load_pack<Float32>(elements + 4 * part, count - 4 * part, from.is_aligned),
                   four);
    ATELIER_UNROLL
    for (int i = 0; i < 4; ++i) v[4 * part + i] = four[i];
  }
}

// What lanes have added up over the rows of a chunk, one row of [sums, width] in each group of
// lanes.
template <typename T>
ATELIER_LANE void store_sums(float* to, const Place& place, int pack,
                             const float (&v)[kPackElements<T>]) {
  const int count = place.count<T>(pack);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) {
    if (i < count) to[place.column_of(pack) + i] = v[i];
  }
}

}  // namespace atelier::ops::cuda
