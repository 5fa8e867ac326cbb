#include "memory/quantized_store.h"

#include <cfloat>

#include "atelier/ops/linear.h"

#include "memory/quantized_kinds.h"
#include "support/tensors.h"

using namespace atelier;
using memory::dequantize;
using memory::quantize;
using memory::Quantized;
using memory::QuantizedKind;
using memory::QuantizedStore;
using test::error_of;
using test::kKinds;
using test::mentions;
using test::same_bits;
using test::seeded;

namespace {

// Rows of very different sizes.
at::Tensor uneven(int64_t rows, int64_t columns) {
  return seeded({rows, columns}) * at::pow(10.0, at::linspace(-6, 4, rows)).unsqueeze(1);
}

double largest_of(QuantizedKind kind) {
  return kind == QuantizedKind::kFp8 ? 448 : 127;
}

WeightPtr stored(const at::Tensor& value, QuantizedKind kind, at::ScalarType dtype) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->state().set_store(std::make_shared<QuantizedStore>(quantize(value, kind), dtype));
  return weight;
}

}  // namespace

TEST_CASE("Each row is within half a step of its own scale", "[quantized]") {
  const at::Tensor weight = uneven(11, 300);
  for (const QuantizedKind kind : kKinds) {
    const Quantized quantized = quantize(weight, kind);
    REQUIRE(quantized.codes.sizes() == weight.sizes());
    CHECK(at::allclose(quantized.scales, weight.abs().amax(1) / largest_of(kind), 1e-6, 0));
    const at::Tensor scales = quantized.scales.unsqueeze(1);
    const at::Tensor far = (dequantize(quantized, at::kFloat) - weight).abs();
    // int8: half a code. e4m3: a sixteenth of the value, or half of its smallest step, 2^-9.
    const at::Tensor bound = kind == QuantizedKind::kInt8
                                 ? (scales * 0.5).expand_as(weight)
                                 : at::maximum(weight.abs() / 16, scales / 1024);
    CHECK((far <= bound * (1 + 1e-5)).all().item<bool>());
    // The largest value of a row is the largest code.
    CHECK(at::equal(quantized.codes.to(at::kFloat).abs().amax(1),
                    at::full({11}, largest_of(kind), at::kFloat)));
  }
}

TEST_CASE("Codes are rounded to the nearest, and of two to the even one", "[quantized]") {
  // A row with 127 has the scale 1.
  const at::Tensor halves =
      at::tensor({127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -127.0}).view({1, -1});
  CHECK(at::equal(quantize(halves, QuantizedKind::kInt8).codes.to(at::kFloat),
                  at::tensor({127.f, 0.f, 2.f, 2.f, 0.f, -2.f, 126.f, -127.f}).view({1, -1})));
  // From 16 on the values of e4m3 are 2 apart.
  const at::Tensor odd = at::tensor({448.0, 17.0, 19.0, -21.0, 18.9, 0.0}).view({1, -1});
  CHECK(at::equal(quantize(odd, QuantizedKind::kFp8).codes.to(at::kFloat),
                  at::tensor({448.f, 16.f, 20.f, -20.f, 18.f, 0.f}).view({1, -1})));
}

TEST_CASE("Zeros, tiny and huge rows stay finite", "[quantized]") {
  const at::Tensor weight =
      at::stack({at::zeros({32}), at::full({32}, FLT_MIN), at::full({32}, 1e-44f),
                 at::full({32}, 1e38f), at::full({32}, -1e38f)});
  for (const QuantizedKind kind : kKinds) {
    const at::Tensor drawn = dequantize(quantize(weight, kind), at::kFloat);
    CHECK(at::equal(drawn[0], weight[0]));
    CHECK(at::isfinite(drawn).all().item<bool>());
    CHECK(test::error(drawn[3], weight[3]) < 1e-6);
    CHECK(test::error(drawn[4], weight[4]) < 1e-6);
  }
  CHECK(quantize(at::zeros({0, 7}), QuantizedKind::kFp8).bytes() == 0);
  CHECK(quantize(at::zeros({3, 0}), QuantizedKind::kInt8).scales.numel() == 3);
}

TEST_CASE("What is not finite, and what is no matrix, is refused", "[quantized]") {
  for (const QuantizedKind kind : kKinds) {
    for (const double value : {NAN, INFINITY, -INFINITY}) {
      at::Tensor weight = seeded({4, 20});
      weight[2][7] = value;
      const Error error = error_of([&] { quantize(weight, kind); });
      CHECK(error.code() == ErrorCode::kNumerics);
      CHECK(mentions(error, "not finite"));
    }
    CHECK(error_of([&] {
            quantize(seeded({2, 3, 4}), kind);
          }).code() == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("Every code is drawn as its value times the row's scale, rounded once", "[quantized]") {
  const at::Tensor all = at::arange(256, at::kByte).expand({5, 256}).contiguous();
  const at::Tensor scales = at::tensor({1.0f, 0.37f, 1e-5f, 3.3e4f, 0.0078125f});
  for (const at::ScalarType codes : {at::kFloat8_e4m3fn, at::kChar}) {
    const Quantized quantized = {all.view(codes), scales};
    const at::Tensor exact = quantized.codes.to(at::kFloat) * scales.unsqueeze(1);
    const at::Tensor is_number = exact.isfinite();
    CHECK(is_number.sum().item<int64_t>() == 5 * (codes == at::kChar ? 256 : 254));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor drawn = dequantize(quantized, dtype);
      CHECK(drawn.scalar_type() == dtype);
      CHECK(at::equal(drawn.masked_select(is_number), exact.to(dtype).masked_select(is_number)));
      // As a device does it without a table.
      const at::Tensor composed = quantized.codes.to(dtype).mul_(scales.unsqueeze(1));
      CHECK(at::equal(drawn.masked_select(is_number), composed.masked_select(is_number)));
    }
    CHECK(dequantize(quantized, at::kFloat).isnan().equal(is_number.logical_not()));
  }
}

TEST_CASE("Rows are drawn alone", "[quantized]") {
  for (const QuantizedKind kind : kKinds) {
    const WeightPtr weight = stored(uneven(20, 48), kind, at::kBFloat16);
    const at::Tensor index = at::tensor({3, 19, 0, 3}, at::kLong).view({2, 2});
    CHECK(at::equal(weight->draw_rows(index), weight->draw().index_select(0, index.view({-1}))));
  }
}

TEST_CASE("Products with stored weights and their gradients are those of the drawn ones",
          "[quantized]") {
  for (const QuantizedKind kind : kKinds) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const WeightPtr weight = stored(seeded({24, 40}), kind, dtype);
      const WeightPtr plain = test::make_weight(weight->draw());
      const WeightPtr bias = test::make_weight(seeded({24}, 2).to(dtype));
      const at::Tensor a = test::trained(seeded({4, 40}, 3)), b = test::trained(seeded({24, 4}, 4));
      const ops::Adapter adapter = {.a = a, .b = b, .scale = 0.5};
      const at::Tensor x = test::trained(seeded({6, 40}, 5).to(dtype));
      const auto run = [&](const WeightPtr& from) {
        const at::Tensor y = ops::linear(x, from, bias, {&adapter, 1});
        test::Tensors all = test::gradients({y}, {x, a, b});
        all.push_back(y.detach());
        return all;
      };
      CHECK(same_bits(run(weight), run(plain)));
    }
  }
}

TEST_CASE("Between forward and backward nobody holds a drawn weight", "[quantized]") {
  constexpr int64_t kWidth = 256, kRows = 3;
  const WeightPtr weight = stored(seeded({kWidth, kWidth}), QuantizedKind::kFp8, at::kBFloat16);
  const at::Tensor a = test::trained(seeded({2, kWidth}, 3)),
                   b = test::trained(seeded({kWidth, 2}, 4));
  const ops::Adapter adapter = {.a = a, .b = b};
  const at::Tensor x = test::trained(seeded({kRows, kWidth}, 5).to(at::kBFloat16));
  ops::linear(x, weight, nullptr, {&adapter, 1});  // what is made once is made
  const test::Bytes bytes;
  const at::Tensor y = ops::linear(x, weight, nullptr, {&adapter, 1});
  const int64_t held = bytes.now();
  CHECK(held >= kRows * kWidth * 2);        // y
  CHECK(held < kRows * kWidth * 2 + 4096);  // and products of rank 2
  CHECK(held < kWidth * kWidth * 2 / 16);   // a drawn weight is far more
  const auto* store = dynamic_cast<const QuantizedStore*>(weight->state().store().get());
  REQUIRE(store != nullptr);
  CHECK(store->value().bytes() == kWidth * kWidth + 4 * kWidth);
  torch::autograd::grad({y}, {x}, {at::ones_like(y)});
}

TEST_CASE("A stored weight cannot be trained itself", "[quantized]") {
  const WeightPtr weight = stored(seeded({4, 16}), QuantizedKind::kInt8, at::kFloat);
  CHECK(error_of([&] { weight->state().set_trainable(true); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("A stored weight is the same over copies of its codes and scales", "[quantized]") {
  const WeightPtr weight = stored(seeded({4, 16}), QuantizedKind::kInt8, at::kFloat);
  const WeightStore& store = *weight->state().store();
  const std::vector<at::Tensor> parts = store.parts();
  REQUIRE(parts.size() == 2);
  const auto copy = store.over({parts[0].clone(), parts[1].clone()});
  CHECK(at::equal(copy->draw(), weight->draw()));
  CHECK_FALSE(store.is_resident());
}
