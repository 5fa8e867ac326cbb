// Every kernel with a thread for each lane, under the thread sanitizer. LibTorch is no part of this
// program: the sanitizer wants all code that threads run to be compiled with it.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "ops/cuda/column_totals.h"
#include "ops/cuda/launch.cuh"

namespace {

std::atomic<int> reported = 0;

}  // namespace

// The sanitizer's library calls these.
extern "C" [[gnu::visibility("default")]] void __tsan_on_report(void*) {
  ++reported;
}
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() {
  // Cases count what is reported, each in memory of its own.
  return "exitcode=0:suppress_equal_addresses=0";
}

namespace atelier::ops::cuda {

extern const RowKernel adamw_8bit_rows, channel_gradient_sums_rows, channel_gradients_rows,
    channel_sums_rows, draw_codes_rows, draw_packed_rows, gate_residual_backward_rows,
    gate_residual_norm_modulate_codes_rows, gate_residual_norm_modulate_rows, gate_residual_rows,
    gelu_tanh_backward_rows, gelu_tanh_codes_rows, gelu_tanh_rows, norm_modulate_backward_rows,
    norm_modulate_codes_rows, norm_modulate_rows, norm_rope_backward_rows, norm_rope_rows,
    quantize_rows_rows, rms_gate_residual_norm_modulate_backward_rows,
    rms_gate_residual_norm_modulate_rows, rms_scale_backward_rows, rms_scale_rows,
    scale_channels_rows, scale_sums_rows, swiglu_backward_rows, swiglu_rows;

namespace {

struct NamedKernel {
  const char* name;
  const RowKernel& kernel;
};

// All that .cu files define; tests/tree_test.py finds one that is missing here.
const NamedKernel kKernels[] = {
    {"adamw_8bit", adamw_8bit_rows},
    {"channel_gradient_sums", channel_gradient_sums_rows},
    {"channel_gradients", channel_gradients_rows},
    {"channel_sums", channel_sums_rows},
    {"draw_codes", draw_codes_rows},
    {"draw_packed", draw_packed_rows},
    {"gate_residual_backward", gate_residual_backward_rows},
    {"gate_residual_norm_modulate_codes", gate_residual_norm_modulate_codes_rows},
    {"gate_residual_norm_modulate", gate_residual_norm_modulate_rows},
    {"gate_residual", gate_residual_rows},
    {"gelu_tanh_backward", gelu_tanh_backward_rows},
    {"gelu_tanh_codes", gelu_tanh_codes_rows},
    {"gelu_tanh", gelu_tanh_rows},
    {"norm_modulate_backward", norm_modulate_backward_rows},
    {"norm_modulate_codes", norm_modulate_codes_rows},
    {"norm_modulate", norm_modulate_rows},
    {"norm_rope_backward", norm_rope_backward_rows},
    {"norm_rope", norm_rope_rows},
    {"quantize_rows", quantize_rows_rows},
    {"rms_gate_residual_norm_modulate_backward", rms_gate_residual_norm_modulate_backward_rows},
    {"rms_gate_residual_norm_modulate", rms_gate_residual_norm_modulate_rows},
    {"rms_scale_backward", rms_scale_backward_rows},
    {"rms_scale", rms_scale_rows},
    {"scale_channels", scale_channels_rows},
    {"scale_sums", scale_sums_rows},
    {"swiglu_backward", swiglu_backward_rows},
    {"swiglu", swiglu_rows},
};

constexpr int64_t kRows = 5;

// Rows of one sample, in a chunk of four and one of what is left.
RowGrid grid_of(int lanes, int rows_at_once, int packs, Element element) {
  RowGrid grid = {};
  grid.width = int64_t(lanes) * packs * (element == Element::kFloat32 ? 4 : 8);
  grid.lanes = lanes, grid.packs = packs, grid.rows_at_once = rows_at_once;
  grid.tiles = 1, grid.chunk_rows = 4, grid.chunks = 2;
  grid.samples.count = 1;
  grid.samples.offsets[1] = kRows;
  grid.samples.first_chunks[1] = grid.chunks;
  return grid;
}

// What any kernel reads and writes, each with memory of its own that has numbers between 1 and 2 in
// every type. A row has room for both halves of a head.
class Arrays {
 public:
  explicit Arrays(const RowGrid& grid)
      : stride_(2 * grid.width), words_(std::max<int64_t>(2 * kRows * stride_, 1 << 14)) {
    for (Input* rows : {&arguments.x, &arguments.y, &arguments.grad, &arguments.added})
      *rows = {words(), stride_, /*is_aligned=*/true, /*is_wide=*/false};
    for (Input* columns : {&arguments.weight, &arguments.by_sample, &arguments.shift,
                           &arguments.next_weight, &arguments.next_by_sample})
      *columns = {words(), 0, /*is_aligned=*/true, /*is_wide=*/false};
    for (Output* out : {&arguments.out, &arguments.second, &arguments.codes})
      *out = {words(), stride_, /*is_aligned=*/true};
    arguments.new_scales = floats();
    arguments.row_scales = floats();
    arguments.partial_sums = floats();
    arguments.heads = 1;
    arguments.cos = floats();
    arguments.sin = floats();
    arguments.are_angles_aligned = true;
    AdamWArguments& step = arguments.adamw;
    step.numel = kRows * grid.width;
    for (MomentArguments& moment : step.moments)
      moment = {bytes(), floats(), floats(), floats(), bytes(), grid.width, /*is_aligned=*/true};
    static constexpr float kZero = 0;
    step.is_skipped = &kZero;
    step.grad_scale = floats();
    step.corrections = floats();
    arguments.packed = {bytes(), Packing::kQ4_K, nullptr, nullptr, 0};
  }

  RowArguments arguments = {};

  bool are_changed() const {
    return std::ranges::any_of(arrays_, [&](const auto& array) {
      return std::any_of(array.get(), array.get() + words_, [](uint32_t w) { return w != kWord; });
    });
  }

 private:
  static constexpr uint32_t kWord = 0x3f803f80;

  uint32_t* words() {
    arrays_.push_back(std::make_unique_for_overwrite<uint32_t[]>(words_));
    std::fill_n(arrays_.back().get(), words_, kWord);
    return arrays_.back().get();
  }
  float* floats() { return reinterpret_cast<float*>(words()); }
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(words()); }

  int64_t stride_, words_;
  std::vector<std::unique_ptr<uint32_t[]>> arrays_;
};

int reports_of(const auto& run) {
  const int before = reported;
  run();
  return reported - before;
}

enum class Between { kNothing, kShuffle, kBarrier };

// Each lane writes a number, and reads that of the lane whose index differs by the bit `far`.
template <Between kBetween>
__global__ void read_neighbour(unsigned far, float* out) {
  __shared__ float shared[2 * kWarp];
  shared[threadIdx.x] = float(threadIdx.x);
  if constexpr (kBetween == Between::kShuffle) __shfl_xor_sync(0xffffffffu, 0.0f, 1);
  if constexpr (kBetween == Between::kBarrier) __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x ^ far];
}

template <Between kBetween>
int reports_of_reading(unsigned far) {
  std::vector<float> out(2 * kWarp);
  return reports_of(
      [&] { queue_kernel(read_neighbour<kBetween>, 2, 2 * kWarp, nullptr, far, out.data()); });
}

}  // namespace

TEST_CASE("Reading what another lane wrote is reported where no barrier lies between") {
  CHECK(reports_of_reading<Between::kNothing>(kWarp) > 0);
  CHECK(reports_of_reading<Between::kShuffle>(1) > 0);
  CHECK(reports_of_reading<Between::kBarrier>(kWarp) == 0);
}

TEST_CASE("Lanes of no kernel race") {
  for (const auto& [name, kernel] : kKernels) {
    for (const Element element : {Element::kFloat32, Element::kBFloat16}) {
      const int packs = kernel.lane_packs[static_cast<int>(element)];
      // Two warps for each row, and four rows at once in a block of one warp.
      for (const RowGrid& grid :
           {grid_of(2 * kWarp, 1, packs, element), grid_of(kWarp / 4, 4, packs, element)}) {
        // AdamW's first lane overwrites a scale that all lanes of its warp have read, with what was
        // made of what they read. A warp has one stream of instructions, in which the load comes
        // before the store; the sanitizer wants a barrier.
        if (&kernel == &adamw_8bit_rows && grid.lanes <= kWarp) continue;
        INFO(name << ", element " << static_cast<int>(element) << ", " << grid.lanes << " lanes");
        Arrays arrays(grid);
        CHECK(reports_of([&, &kernel = kernel] {
                kernel.launch(element, grid, arrays.arguments, nullptr);
              }) == 0);
        CHECK(arrays.are_changed());
      }
    }
  }
}

TEST_CASE("Lanes that add up columns do not race") {
  const int64_t columns = 40, parts = 20;
  std::vector<float> values(parts * columns), totals(columns);
  std::iota(values.begin(), values.end(), 0.0f);
  TotalsArguments arguments = {values.data(), totals.data(), columns, 1, {}};
  arguments.samples.count = 1;
  arguments.samples.first_chunks[1] = parts;
  CHECK(reports_of([&] { atelier_cuda_column_totals(&arguments, nullptr); }) == 0);
  for (int64_t c = 0; c < columns; ++c)
    CHECK(totals[c] == float(parts * c + columns * parts * (parts - 1) / 2));
}

}  // namespace atelier::ops::cuda
