#include "host/optim/blockwise.h"

#include <ATen/ATen.h>

#include "support/catch.h"

namespace atelier::optim {
namespace {

Blockwise make_blockwise(int64_t size, bool is_signed) {
  return {at::zeros({size}, at::kByte), at::zeros({(size + kQuantizedBlock - 1) / kQuantizedBlock}),
          is_signed};
}

// Values over nine decades, blocks of different sizes, one of them zero, and a ragged end.
at::Tensor many_values(bool is_signed) {
  at::manual_seed(5);
  at::Tensor values = at::randn({100 * kQuantizedBlock + 77});
  values.mul_(at::pow(10.0, at::rand_like(values).mul_(-9)));
  values.slice(0, 3 * kQuantizedBlock, 4 * kQuantizedBlock).zero_();
  values.slice(0, 4 * kQuantizedBlock, 5 * kQuantizedBlock).mul_(1e-20);
  return is_signed ? values : values.abs();
}

const at::Tensor kWrites = at::zeros({}, at::kBool);
const at::Tensor kKeeps = at::ones({}, at::kBool);

// What the 256 codes stand for in a block whose largest magnitude is 1.
at::Tensor map_of(bool is_signed) {
  const Blockwise codes = {
      .codes = at::arange(256).to(at::kByte), .absmax = at::ones({1}), .is_signed = is_signed};
  return dequantize(codes);
}

TEST_CASE("The dynamic map has 256 rising values with zero and one", "[optim]") {
  for (const bool is_signed : {true, false}) {
    const at::Tensor map = map_of(is_signed);
    REQUIRE(map.sizes() == at::IntArrayRef{256});
    CHECK(map.diff().gt(0).all().item<bool>());
    CHECK(map.eq(0).sum().item<int64_t>() == 1);
    CHECK(map[255].item<float>() == 1.0f);
  }
  // Means of neighbours of linspace(0.1, 1, 65), the finest decade with a sign.
  CHECK(map_of(true)[254].item<double>() == Approx(1.0 - 0.9 / 64 / 2));
  CHECK(map_of(true)[0].item<double>() == Approx(-(1.0 - 0.9 / 64 / 2)));
  CHECK(map_of(false)[1].item<double>() == Approx(1e-6 * (0.1 + 0.9 / 4)));
}

TEST_CASE("Values get the code of the nearest value of the map", "[optim]") {
  for (const bool is_signed : {true, false}) {
    const at::Tensor map = map_of(is_signed);
    at::Tensor values = at::linspace(is_signed ? -1 : 0, 1, 512 * kQuantizedBlock);
    values = at::cat({values, values * 1e-3, values * 1e-6});
    values.view({-1, kQuantizedBlock}).select(1, 7).fill_(1.0);  // absmax of every block
    Blockwise quantized = make_blockwise(values.numel(), is_signed);
    quantize(values, kWrites, quantized);
    const at::Tensor found = map.index_select(0, quantized.codes.to(at::kInt));
    const at::Tensor code = quantized.codes.to(at::kLong);
    const at::Tensor below = map.index_select(0, (code - 1).clamp_min(0));
    const at::Tensor above = map.index_select(0, (code + 1).clamp_max(255));
    const at::Tensor error = (found - values).abs();
    CHECK(error.le((below - values).abs() + 1e-7).all().item<bool>());
    CHECK(error.le((above - values).abs() + 1e-7).all().item<bool>());
    CHECK(quantized.absmax.eq(1).all().item<bool>());
  }
}

TEST_CASE("The table and the composed operators give the same codes", "[optim]") {
  for (const bool is_signed : {true, false}) {
    const at::Tensor values = many_values(is_signed);
    Blockwise table = make_blockwise(values.numel(), is_signed);
    Blockwise composed = make_blockwise(values.numel(), is_signed);
    quantize(values, kWrites, table);
    quantize_composed(values, kWrites, composed);
    CHECK(table.codes.equal(composed.codes));
    CHECK(table.absmax.equal(composed.absmax));
    const at::Tensor back = dequantize(table);
    CHECK(back.equal(dequantize_composed(composed)));
    CHECK(back.isfinite().all().item<bool>());
    CHECK(back.slice(0, 3 * kQuantizedBlock, 4 * kQuantizedBlock).eq(0).all().item<bool>());
    const double error = (back - values).norm().item<double>();
    CHECK(error < 0.01 * values.norm().item<double>());
  }
}

TEST_CASE("Quantised values that are kept stay to the bit", "[optim]") {
  for (const auto function : {&quantize, &quantize_composed}) {
    Blockwise quantized = make_blockwise(1000, true);
    function(at::randn({1000}), kWrites, quantized);
    const at::Tensor codes = quantized.codes.clone(), absmax = quantized.absmax.clone();
    function(at::full({1000}, NAN), kKeeps, quantized);
    CHECK(quantized.codes.equal(codes));
    CHECK(quantized.absmax.equal(absmax));
    function(at::randn({1000}), kWrites, quantized);
    CHECK_FALSE(quantized.codes.equal(codes));
  }
}

}  // namespace
}  // namespace atelier::optim
