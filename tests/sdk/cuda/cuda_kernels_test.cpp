// The kernels of GPUs, played on the CPU. pointwise_test.cpp, which is part of this program, runs
// all of its cases on them.
#include <ATen/Context.h>

#include "atelier/ops/pointwise.h"

#include "ops/cuda/row_plan.h"
#include "sdk/cuda/row_player.h"
#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;

// at::empty gives NaN: what a kernel leaves out shows.
const bool is_strict = [] {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  return true;
}();

double bound(at::ScalarType dtype) {
  return dtype == at::kFloat ? 5e-6 : dtype == at::kHalf ? 2e-3 : 1.6e-2;
}

// Values and gradients of the kernels, beside those of the composed form in float64.
void check(const std::string& name, const Tensors& inputs,
           const std::function<Tensors(const Tensors&)>& run) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    INFO(name << ", " << toString(dtype));
    Tensors given, exact;
    for (const Tensor& t : inputs) {
      given.push_back(test::trained(t.to(dtype)));
      exact.push_back(test::trained(given.back().to(at::kDouble)));
    }
    const int64_t before = cuda::played().launches;
    const Tensors values = run(given), gradients = test::gradients(values, given);
    CHECK(cuda::played().launches >= before + 2);
    const Tensors want = run(exact), want_gradients = test::gradients(want, exact);
    CHECK(error(values, want) < bound(dtype));
    CHECK(error(gradients, want_gradients) < 2 * bound(dtype));
  }
}

Tensor kernel_noise(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

// Rows whose values are apart: the norm of a nearly constant row follows the last bit of its
// values.
Tensor spread(int64_t rows, int64_t width) {
  return kernel_noise({rows, width}) + 4.0 * at::arange(width, at::kDouble).remainder(2);
}

// `t` at an address that is no multiple of 16 bytes.
Tensor shifted(const Tensor& t) {
  Tensor room = at::empty({t.numel() + 1}, t.options());
  return room.narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
}

void check_all(const Segments& rows, int64_t width, bool is_shifted) {
  const int64_t n = rows.total(), s = rows.count();
  const std::string name = c10::str(s, " samples, width ", width, is_shifted ? ", shifted" : "");
  const auto placed = [&](const Tensor& t) { return is_shifted ? shifted(t) : t; };
  check("norm_modulate, " + name, {kernel_noise({n, width}) + 0.5, kernel_noise({s, 3 * width})},
        [&](const Tensors& in) {
          return Tensors{norm_modulate(placed(in[0]), in[1].narrow(1, 0, width),
                                       in[1].narrow(1, width, width), rows)};
        });
  check("gate_residual_norm_modulate, " + name,
        {spread(n, width), kernel_noise({n, width}), 0.5 * kernel_noise({s, 3 * width})},
        [&](const Tensors& in) {
          auto [sum, out] = gate_residual_norm_modulate(
              placed(in[0]), in[1], in[2].narrow(1, 0, width), in[2].narrow(1, width, width),
              in[2].narrow(1, 2 * width, width), rows);
          return Tensors{sum, out};
        });
  check("rms_gate_residual_norm_modulate, " + name,
        {kernel_noise({n, width}), kernel_noise({n, width}), kernel_noise({width}),
         kernel_noise({s, width}), kernel_noise({width}), kernel_noise({s, width})},
        [&](const Tensors& in) {
          auto [sum, out] = rms_gate_residual_norm_modulate(in[0], placed(in[1]), in[2], in[3],
                                                            placed(in[4]), in[5], rows, 1e-5);
          return Tensors{sum, out};
        });
  check("rms_norm_modulate, " + name,
        {kernel_noise({n, width}), kernel_noise({width}), kernel_noise({s, width})},
        [&](const Tensors& in) {
          return Tensors{rms_norm_modulate(in[0], placed(in[1]), in[2], rows)};
        });
  check("swiglu, " + name, {kernel_noise({n, width}), kernel_noise({n, width})},
        [&](const Tensors& in) { return Tensors{swiglu(placed(in[0]), in[1])}; });
}

Segments uneven(int64_t samples) {
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < samples; ++s) lengths.push_back(s % 3 == 1 ? 0 : 1 + s % 4);
  return Segments(lengths);
}

}  // namespace

TEST_CASE("Played kernels take any number of samples, widths and addresses", "[ops][cuda]") {
  at::manual_seed(11);
  for (const int64_t samples : {1, 2, 3, 17, 63, 64, 65, 70}) check_all(uneven(samples), 24, false);
  for (const int64_t width : {1, 2, 8, 9, 31, 256, 264, 1000}) {
    check_all(Segments({3, 0, 2}), width, false);
    check_all(Segments({3, 0, 2}), width, true);
  }
}

TEST_CASE("Played kernels take the widest rows", "[ops][cuda]") {
  at::manual_seed(12);
  for (const int64_t width : {2056, 4096}) check_all(Segments({2, 1}), width, false);
  const Tensor x = at::randn({3, 8192}).to(at::kBFloat16), row = at::zeros({1, 8192}, x.options());
  const Tensor out = norm_modulate(x, row, row, Segments({3}));
  CHECK(cuda::played().grid.lanes * cuda::played().grid.packs * 8 >= 8192);
  const Tensor wide = x.to(at::kDouble);
  CHECK(error(out, at::layer_norm(wide, {8192}, {}, {}, 1e-6)) < bound(at::kBFloat16));
}

TEST_CASE("What the kernels do not take runs composed", "[ops][cuda]") {
  set_kernels(Kernels::kFused);
  const Segments rows({2});
  const auto launches_of = [](const auto& run) {
    const int64_t before = cuda::played().launches;
    run();
    return cuda::played().launches - before;
  };
  const auto normed = [&](int64_t width, at::ScalarType type) {
    const Tensor x = at::randn({2, width}, type), row = at::zeros({1, width}, type);
    return launches_of([&] { norm_modulate(x, row, row, rows); });
  };
  CHECK(normed(4096, at::kFloat) == 1);
  CHECK(normed(4097, at::kFloat) == 0);
  CHECK(normed(16, at::kDouble) == 0);
  CHECK(launches_of([] { gelu_tanh(at::randn({2, 9000})); }) == 1);
  set_kernels(Kernels::kAuto);
}

TEST_CASE("Sums over many chunks of rows come out the same whatever lies between", "[ops][cuda]") {
  at::manual_seed(13);
  const Segments rows({700, 0, 1300});
  const Tensor x = at::randn({2000, 40}), weight = at::randn({40}), scale = at::randn({3, 40});
  Tensors first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Tensors in = {test::trained(x), test::trained(weight), test::trained(scale)};
    const Tensors gradients = test::gradients({rms_norm_modulate(in[0], in[1], in[2], rows)}, in);
    CHECK((gradients[2][1] == 0).all().item<bool>());
    if (repeat == 0)
      first = gradients;
    else
      CHECK(test::same_bits(gradients, first));
  }
}

namespace cuda {

TEST_CASE("Launches cover every row and column once, within CUDA's limits", "[ops][cuda]") {
  for (const int64_t width : {1, 7, 8, 64, 255, 256, 257, 2304, 4096, 4104, 8192}) {
    for (const bool has_sums : {false, true}) {
      const std::vector<int64_t> offsets = {0, 5, 5, 1029, 1030};
      const RowPlan plan = plan_rows({width, 2, 3, true, has_sums}, offsets.data(), 4);
      const RowGrid& grid = plan.grid;
      INFO("width " << width);
      CHECK(grid.lanes * grid.packs * 8 >= width);
      CHECK(grid.lanes <= kMostLanes);
      CHECK((grid.lanes % kWarp == 0 || kWarp % grid.lanes == 0));
      CHECK(grid.threads() % kWarp == 0);
      CHECK(grid.threads() <= kMostLanes);
      std::vector<int> seen(1030);
      for (int64_t block = 0; block < grid.blocks(); ++block) {
        const Chunk chunk(grid, block, 0, 8);
        CHECK(chunk.first_row < chunk.end_row);
        CHECK(chunk.end_row <= offsets[chunk.sample + 1]);
        CHECK(chunk.first_row >= offsets[chunk.sample]);
        for (int64_t row = chunk.first_row; row < chunk.end_row; ++row) ++seen[row];
      }
      CHECK(std::count(seen.begin(), seen.end(), 1) == 1030);
    }
  }
}

TEST_CASE("Offsets of huge tensors do not overflow, and blocks stay countable", "[ops][cuda]") {
  // One row of 2^40 values.
  const int64_t one[] = {0, 1}, width = int64_t(1) << 40;
  const RowGrid flat = plan_rows({width, 2, 2, false, false}, one, 1).grid;
  CHECK(flat.blocks() <= kMostBlocks);
  CHECK(flat.tiles * flat.lanes * flat.packs * 8 >= width);
  const Place last = Chunk(flat, flat.blocks() - 1, flat.threads() - 1, 8).place;
  CHECK(last.column >= width - flat.lanes * flat.packs * 8);
  CHECK(last.column > int64_t(1) << 39);

  // 2^36 rows: more than there may be blocks.
  const int64_t rows = int64_t(1) << 36, many[] = {0, 1, rows};
  const RowGrid tall = plan_rows({512, 2, 3, true, false}, many, 2).grid;
  CHECK(tall.blocks() <= kMostBlocks);
  const Chunk end(tall, tall.blocks() - 1, 0, 8);
  CHECK(end.end_row == rows);
  CHECK(end.sample == 1);
  const RowGrid summed = plan_rows({3072, 2, 2, true, true}, many, 2).grid;
  CHECK(summed.chunks <= 514);
}

}  // namespace cuda
}  // namespace atelier::ops
