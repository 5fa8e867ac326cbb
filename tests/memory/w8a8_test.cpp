// Products of 8-bit codes: ops::linear on weights that rest in 8 bits and are multiplied so.
#include <cfloat>
#include <thread>

#include "atelier/host/scaled_products.h"
#include "atelier/ops/linear.h"

#include "memory/quantized_kinds.h"
#include "memory/quantized_store.h"
#include "memory/recompute.h"
#include "memory/toy_net.h"
#include "support/device_calls.h"
#include "support/tensors.h"

using namespace atelier;
using memory::Quantized;
using memory::QuantizedKind;
using memory::QuantizedStore;
using test::kKinds;
using test::same_bits;
using test::seeded;

namespace {

// Rows and columns of different sizes, as activations have them.
at::Tensor activations(int64_t rows, int64_t columns, uint64_t seed) {
  return seeded({rows, columns}, seed) * at::pow(10.0, at::linspace(-2, 2, rows)).unsqueeze(1) *
         at::linspace(0.2, 3, columns);
}

WeightPtr stored(const at::Tensor& value, QuantizedKind kind, at::ScalarType dtype, bool is_w8a8) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->state().set_store(
      std::make_shared<QuantizedStore>(memory::quantize(value, kind), dtype, is_w8a8));
  return weight;
}

const Quantized& value_of(const WeightPtr& weight) {
  return dynamic_cast<const QuantizedStore&>(*weight->state().store()).value();
}

// x quantised by row, as written in docs/storage.md: codes as float64, and scales.
struct Written {
  at::Tensor codes, scales;
};
Written quantized_rows(const at::Tensor& x, QuantizedKind kind) {
  const at::Tensor values = x.to(at::kFloat);
  const double limit = kind == QuantizedKind::kFp8 ? 448 : 127;
  const at::Tensor scales = at::clamp_min(values.abs().amax(1) / limit, FLT_MIN);
  at::Tensor codes = at::clamp(values / scales.unsqueeze(1), -limit, limit);
  codes =
      kind == QuantizedKind::kFp8 ? codes.to(at::kFloat8_e4m3fn).to(at::kFloat) : at::round(codes);
  return {codes.to(at::kDouble), scales.to(at::kDouble)};
}

// The product and its gradient in float64, from the same codes.
at::Tensor written_product(const at::Tensor& x, const Quantized& w, QuantizedKind kind) {
  const Written left = quantized_rows(x, kind);
  return at::mm(left.codes, w.codes.to(at::kDouble).t()) * left.scales.unsqueeze(1) *
         w.scales.to(at::kDouble);
}
at::Tensor written_gradient(const at::Tensor& grad, const Quantized& w, QuantizedKind kind) {
  const Written left = quantized_rows(grad.to(at::kFloat) * w.scales, kind);
  return at::mm(left.codes, w.codes.to(at::kDouble)) * left.scales.unsqueeze(1);
}

// Results of linear(x): y, and the gradients of x, a and b.
test::Tensors run(const at::Tensor& x, const WeightPtr& weight, const ops::Adapter& adapter) {
  const WeightPtr bias = test::make_weight(seeded({weight->sizes()[0]}, 2).to(x.scalar_type()));
  const at::Tensor y = ops::linear(x, weight, bias, {&adapter, 1});
  test::Tensors all = test::gradients({y}, {x, adapter.a, adapter.b});
  all.insert(all.begin(), y.detach());
  return all;
}

}  // namespace

TEST_CASE("Products of codes are what the written formula gives", "[w8a8]") {
  for (const QuantizedKind kind : kKinds) {
    for (const auto& [rows, in, out] : {std::array{6, 48, 24}, {1, 17, 5}, {40, 300, 33}}) {
      INFO(rows << " x " << in << " x " << out);
      const WeightPtr weight = stored(activations(out, in, 3), kind, at::kFloat, true);
      const at::Tensor x = test::trained(activations(rows, in, 4));
      const at::Tensor y = ops::linear(x, weight);
      CHECK(test::error(y, written_product(x, value_of(weight), kind)) < 1e-6);
      const at::Tensor grad = activations(rows, out, 5);
      const at::Tensor grad_x = torch::autograd::grad({y}, {x}, {grad})[0];
      CHECK(test::error(grad_x, written_gradient(grad, value_of(weight), kind)) < 1e-6);
      // Rounded once to the activations' dtype.
      const at::Tensor half = x.detach().to(at::kBFloat16);
      const at::Tensor exact = written_product(half, value_of(weight), kind);
      const at::Tensor far = (ops::linear(half, weight).to(at::kDouble) - exact).abs();
      CHECK((far <= exact.abs() / 256 + 1e-6 * exact.abs().amax()).all().item<bool>());
    }
  }
}

TEST_CASE("Each value of a layer is within its activations' rounding", "[w8a8]") {
  for (const QuantizedKind kind : kKinds) {
    const at::Tensor w = seeded({64, 256}, 3), x = activations(50, 256, 4);
    const WeightPtr codes = stored(w, kind, at::kFloat, true);
    const at::Tensor drawn = codes->draw().to(at::kDouble), exact = x.to(at::kDouble);
    const at::Tensor y = ops::linear(x, codes).to(at::kDouble);
    const at::Tensor plain = at::mm(exact, drawn.t());
    const at::Tensor largest = exact.abs().amax(1, true);
    // int8: half a code of the row. e4m3: a sixteenth of the value, or half of its smallest step.
    const at::Tensor rounding = kind == QuantizedKind::kInt8
                                    ? (largest / 254).expand_as(exact)
                                    : at::maximum(exact.abs() / 16, largest / 448 / 1024);
    const at::Tensor bound = at::mm(rounding, drawn.abs().t());
    CHECK(((y - plain).abs() <= bound * (1 + 1e-4)).all().item<bool>());
    // As a whole far less: errors cancel.
    const double whole = ((y - plain).norm() / plain.norm()).item<double>();
    CHECK(whole > 1e-4);
    CHECK(whole < (kind == QuantizedKind::kInt8 ? 0.015 : 0.04));
    const double beside =
        ((y - at::mm(exact, w.to(at::kDouble).t())).norm() / plain.norm()).item<double>();
    WARN((kind == QuantizedKind::kInt8 ? "int8" : "fp8")
         << ": relative error of a layer " << whole << " of stored weights' product, " << beside
         << " of plain ones'");
    CHECK(beside < (kind == QuantizedKind::kInt8 ? 0.02 : 0.055));
  }
}

TEST_CASE("Adapters and biases of 8-bit products are those of plain ones", "[w8a8]") {
  for (const QuantizedKind kind : kKinds) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor w = seeded({24, 40}), x = test::trained(seeded({6, 40}, 5).to(dtype));
      const ops::Adapter adapter = {.a = test::trained(seeded({4, 40}, 3)),
                                    .b = test::trained(seeded({24, 4}, 4)),
                                    .scale = 0.5};
      const WeightPtr codes = stored(w, kind, dtype, true);
      const test::Tensors eight = run(x, codes, adapter);
      const test::Tensors plain = run(x, stored(w, kind, dtype, false), adapter);
      CHECK_FALSE(at::equal(eight[0], plain[0]));
      CHECK(test::error(eight[0], plain[0]) < 0.05);
      CHECK(test::error(eight[1], plain[1]) < 0.05);
      CHECK(at::equal(eight[2], plain[2]));
      CHECK(at::equal(eight[3], plain[3]));
      // Only the sum is another: without the base both add the same.
      const ops::Adapter off = {.a = adapter.a, .b = adapter.b, .scale = 0};
      const at::Tensor base = ops::linear(x.detach(), codes);
      CHECK(at::equal(ops::linear(x.detach(), codes, nullptr, {&off, 1}), base));
      const at::Tensor added = ops::linear(x.detach(), codes, nullptr, {&adapter, 1}) - base;
      const at::Tensor low = at::mm(x.detach(), adapter.a.detach().to(dtype).t());
      CHECK(test::error(added, at::mm(low, adapter.b.detach().to(dtype).t()) * 0.5) <
            (dtype == at::kFloat ? 1e-5 : 2e-2));
    }
  }
}

TEST_CASE("A token's product does not depend on the others", "[w8a8]") {
  const WeightPtr weight = stored(seeded({32, 64}), QuantizedKind::kInt8, at::kFloat, true);
  const at::Tensor x = activations(9, 64, 4), together = ops::linear(x, weight);
  for (int64_t row = 0; row < 9; ++row)
    CHECK(at::equal(ops::linear(x.narrow(0, row, 1), weight)[0], together[row]));
}

TEST_CASE("Nothing, zeros and what is not finite pass through", "[w8a8]") {
  for (const QuantizedKind kind : kKinds) {
    const WeightPtr weight = stored(seeded({8, 32}), kind, at::kFloat, true);
    CHECK(ops::linear(at::zeros({0, 32}), weight).sizes() == at::IntArrayRef({0, 8}));
    at::Tensor x = seeded({4, 32}, 2);
    x[0].zero_(), x[1][3] = NAN, x[2][5] = INFINITY;
    const at::Tensor y = ops::linear(x, weight);
    CHECK(at::equal(y[0], at::zeros({8})));
    CHECK(y[1].isnan().all().item<bool>());
    CHECK_FALSE(y[2].isfinite().any().item<bool>());
    CHECK(y[3].isfinite().all().item<bool>());
  }
}

TEST_CASE("8-bit products draw no weight and hold nothing of it", "[w8a8]") {
  // The codes alone.
  class Codes final : public WeightStore {
   public:
    explicit Codes(Quantized value) : value_(std::move(value)) {}
    at::Tensor draw() const override { throw Error(ErrorCode::kInternal, "drawn"); }
    std::optional<RowCodes> draw_codes() const override {
      return RowCodes{value_.codes, value_.scales};
    }

   private:
    Quantized value_;
  };
  constexpr int64_t kWidth = 256, kRows = 3;
  for (const QuantizedKind kind : kKinds) {
    auto weight = std::make_shared<Weight>("weight", std::vector<int64_t>{kWidth, kWidth});
    weight->state().set_store(
        std::make_shared<Codes>(memory::quantize(seeded({kWidth, kWidth}), kind)));
    const ops::Adapter adapter = {.a = test::trained(seeded({2, kWidth}, 3)),
                                  .b = test::trained(seeded({kWidth, 2}, 4))};
    const at::Tensor x = test::trained(seeded({kRows, kWidth}, 5).to(at::kBFloat16));
    ops::linear(x, weight, nullptr, {&adapter, 1});  // what is made once is made
    const test::Bytes bytes;
    const at::Tensor y = ops::linear(x, weight, nullptr, {&adapter, 1});
    CHECK(bytes.now() < kRows * kWidth * 2 + 4096);
    torch::autograd::grad({y}, {x}, {at::ones_like(y)});
  }
}

TEST_CASE("Blocks of 8-bit products are recomputed to the bit", "[w8a8]") {
  using memory::RecomputeRunner;
  using ops::Action;
  for (const QuantizedKind kind : kKinds) {
    test::Net net(test::Train::kAdapters, 0.1);
    for (const auto& block : net.blocks) {
      block->visit([&](nn::Module& module) {
        if (auto* layer = dynamic_cast<nn::Linear*>(&module))
          layer->weight->state().set_store(std::make_shared<QuantizedStore>(
              memory::quantize(layer->weight->draw(), kind), at::kFloat, true));
      });
    }
    DirectRunner direct;
    const test::Tensors want = net.step(direct);
    for (const unsigned mask : {0u, 0xffu, 0x5au, 0xa5u}) {
      ops::ActionPlan plan;
      for (int i = 0; i < test::kOperators; ++i)
        plan.push_back(mask >> i & 1 ? Action::kKeep : Action::kRecompute);
      RecomputeRunner runner(direct, [&](const Block&) { return plan; });
      CHECK(same_bits(net.step(runner), want));
    }
  }
}

TEST_CASE("A LoRA learns over 8-bit products", "[w8a8]") {
  const at::Tensor x = seeded({64, 32}, 6), w = seeded({16, 32}, 7) / 6;
  const at::Tensor target =
      at::mm(x, (w + at::mm(seeded({16, 2}, 8), seeded({2, 32}, 9)) / 12).t());
  for (const QuantizedKind kind : kKinds) {
    const auto learn = [&](bool is_w8a8) {
      const WeightPtr weight = stored(w, kind, at::kFloat, is_w8a8);
      ops::Adapter adapter = {.a = test::trained(seeded({2, 32}, 10) / 6),
                              .b = test::trained(at::zeros({16, 2}))};
      double loss = 0;
      for (int step = 0; step < 300; ++step) {
        const at::Tensor error =
            (ops::linear(x, weight, nullptr, {&adapter, 1}) - target).square().mean();
        loss = error.item<double>();
        const auto grads = torch::autograd::grad({error}, {adapter.a, adapter.b});
        const at::NoGradGuard no_grad;
        adapter.a.sub_(grads[0], 2.0);
        adapter.b.sub_(grads[1], 2.0);
      }
      return loss;
    };
    const double before = (at::mm(x, w.t()) - target).square().mean().item<double>();
    const double plain = learn(false), eight = learn(true);
    INFO(before << " before, " << plain << " plain, " << eight << " in 8 bits");
    CHECK(plain < 0.05 * before);
    CHECK(eight < 0.05 * before);
  }
}

TEST_CASE("A device may add up in fewer bits where it is allowed to, and nowhere else", "[w8a8]") {
  const Quantized codes = memory::quantize(seeded({32, 32}), QuantizedKind::kFp8);
  // Calls of the device's product, and those that ask for it. What comes of them here is no matter.
  const auto asked = [&] {
    const test::DeviceCalls calls;
    at::Tensor out = at::empty({32, 32}, at::kBFloat16);
    try {
      ops::scaled_product({codes.codes, codes.scales}, {codes.codes, codes.scales}, {}, out);
    } catch (const c10::Error&) {
      // Not every CPU has it.
    }
    return std::pair(calls.scaled_products(), calls.fast_products());
  };
  CHECK(asked() == std::pair(1, 0));
  {
    const ops::FastSums images;
    CHECK(asked() == std::pair(1, 1));
    {
      const ops::FastSums more;
      CHECK(asked() == std::pair(1, 1));
    }
    CHECK(asked() == std::pair(1, 1));
    std::thread([&] { CHECK(asked() == std::pair(1, 0)); }).join();
  }
  CHECK(asked() == std::pair(1, 0));
}
