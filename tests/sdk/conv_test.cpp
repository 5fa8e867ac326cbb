#include "atelier/ops/conv.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;

}  // namespace

TEST_CASE("A convolution equals LibTorch's, with gradients", "[ops][conv]") {
  at::manual_seed(0);
  for (bool temporal : {false, true}) {
    for (bool with_bias : {false, true}) {
      for (bool train : {false, true}) {
        for (auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
          for (auto [kernel, stride, padding] :
               {std::tuple(3, 1, 1), std::tuple(3, 2, 0), std::tuple(1, 1, 0)}) {
            INFO("temporal " << temporal << " bias " << with_bias << " trained " << train);
            const Tensor w = temporal ? at::randn({5, 3, 3, kernel, kernel}, at::kDouble)
                                      : at::randn({5, 3, kernel, kernel}, at::kDouble);
            const Tensor b = at::randn({5}, at::kDouble);
            const WeightPtr weight = test::make_weight(w);
            const WeightPtr bias = with_bias ? test::make_weight(b) : nullptr;
            const Tensor x = test::trained(at::randn({2, 3, 9, 8}, at::kDouble).contiguous(format));
            const Tensor plain_w = test::trained(w), plain_b = test::trained(b);
            Tensors inputs = {x}, reference_inputs = {x};
            if (train) {
              weight->set_trainable(true);
              inputs.push_back(weight->leaf());
              reference_inputs.push_back(plain_w);
              if (with_bias) {
                bias->set_trainable(true);
                inputs.push_back(bias->leaf());
                reference_inputs.push_back(plain_b);
              }
            }
            const Tensor y = conv2d(x, weight, bias, {stride, padding});
            const Tensor want = at::conv2d(x, temporal ? plain_w.select(2, 2) : plain_w,
                                           with_bias ? plain_b : Tensor(), stride, padding);
            CHECK(error(y, want) < 1e-13);
            CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast));
            CHECK(error(test::gradients({y}, inputs), test::gradients({want}, reference_inputs)) <
                  1e-13);
            at::NoGradGuard no_grad;
            CHECK(error(conv2d(x, weight, bias, {stride, padding}), want) < 1e-13);
          }
        }
      }
    }
  }
}

TEST_CASE("The temporal slice of a frozen weight is made once for each version", "[ops][conv]") {
  at::manual_seed(1);
  const Tensor x = at::randn({1, 2, 4, 4}), first = at::randn({3, 2, 3, 1, 1});
  const WeightPtr weight = test::make_weight(first);
  conv2d(x, weight, nullptr, {});
  const Tensor slice = weight->derived();
  REQUIRE(slice.defined());
  CHECK(at::equal(slice, first.select(2, 2)));
  conv2d(x, weight, nullptr, {});
  CHECK(weight->derived().is_same(slice));
  const Tensor second = at::randn({3, 2, 3, 1, 1});
  weight->set(second);
  CHECK_FALSE(weight->derived().defined());
  CHECK(error(conv2d(x, weight, nullptr, {}), at::conv2d(x, second.select(2, 2))) < 1e-6);
}

TEST_CASE("A lent convolution weight is given back after each product", "[ops][conv]") {
  at::manual_seed(2);
  for (bool temporal : {false, true}) {
    const Tensor w = temporal ? at::randn({3, 2, 2, 3, 3}) : at::randn({3, 2, 3, 3});
    const WeightPtr weight = test::make_leased(w);
    const Tensor x = test::trained(at::randn({1, 2, 6, 6}));
    const Tensor y = conv2d(x, weight, nullptr, {});
    CHECK(test::LeasedStore::live == 0);
    CHECK_FALSE(weight->derived().defined());
    const Tensor want = at::conv2d(x, temporal ? w.select(2, 1) : w);
    CHECK(error(test::gradients({y}, {x}), test::gradients({want}, {x})) < 1e-5);
    CHECK(test::LeasedStore::live == 0);
  }
}

TEST_CASE("A frozen convolution saves nothing", "[ops][conv]") {
  const WeightPtr weight = test::make_weight(at::randn({4, 3, 3, 3}));
  const Tensor source = test::trained(at::randn({1, 3, 16, 16}));
  test::Bytes bytes;
  Tensor x = source.clone();
  const Tensor y = conv2d(x, weight, nullptr, {1, 1});
  x.reset();
  CHECK(bytes.now() == static_cast<int64_t>(y.nbytes()));
}

TEST_CASE("A convolution names shapes that do not fit", "[ops][conv]") {
  const WeightPtr weight = test::make_weight(at::randn({4, 3, 3, 3}));
  const Error e = test::error_of([&] { conv2d(at::zeros({1, 2, 8, 8}), weight, nullptr, {}); });
  CHECK(e.code() == ErrorCode::kInvalidArgument);
  CHECK(test::mentions(e, "[4, 3, 3, 3]"));
}

}  // namespace atelier::ops
