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
              weight->state().set_trainable(true);
              inputs.push_back(weight->state().leaf());
              reference_inputs.push_back(plain_w);
              if (with_bias) {
                bias->state().set_trainable(true);
                inputs.push_back(bias->state().leaf());
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

TEST_CASE("Groups, dilation and one axis are LibTorch's, with gradients", "[ops][conv]") {
  at::manual_seed(1);
  struct Case {
    std::vector<int64_t> x, w;
    ConvOptions options;
  };
  const Case cases[] = {
      {{2, 6, 9, 8}, {4, 3, 3, 3}, {.padding = 1, .groups = 2}},
      {{2, 6, 9, 8}, {6, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 6}},
      {{1, 2, 9, 8}, {3, 2, 3, 3}, {.padding = 2, .dilation = 3}},
      {{2, 3, 11}, {5, 3, 4}, {}},
      {{2, 4, 11}, {8, 2, 3}, {.stride = 2, .padding = 2, .dilation = 2, .groups = 2}},
  };
  for (const auto& [x_sizes, w_sizes, options] : cases) {
    INFO(at::IntArrayRef(x_sizes) << " by " << at::IntArrayRef(w_sizes));
    const Tensor w = test::trained(at::randn(w_sizes, at::kDouble)),
                 b = test::trained(at::randn({w_sizes[0]}, at::kDouble)),
                 x = test::trained(at::randn(x_sizes, at::kDouble));
    const WeightPtr weight = test::make_weight(w), bias = test::make_weight(b);
    weight->state().set_trainable(true);
    bias->state().set_trainable(true);
    const auto run = [&](const Tensor& input) {
      return x.dim() == 3 ? conv1d(input, weight, bias, options)
                          : conv2d(input, weight, bias, options);
    };
    const Tensor y = run(x);
    const Tensor want = x.dim() == 3 ? at::conv1d(x, w, b, options.stride, options.padding,
                                                  options.dilation, options.groups)
                                     : at::conv2d(x, w, b, options.stride, options.padding,
                                                  options.dilation, options.groups);
    CHECK(error(y, want) < 1e-13);
    CHECK(error(test::gradients({y}, {x, weight->state().leaf(), bias->state().leaf()}),
                test::gradients({want}, {x, w, b})) < 1e-13);
    // Without values the shapes are the same.
    const WeightPtr hollow = test::make_weight(at::empty(w_sizes, at::kMeta));
    const Tensor meta = at::empty(x_sizes, at::kMeta);
    CHECK((x.dim() == 3 ? conv1d(meta, hollow, nullptr, options)
                        : conv2d(meta, hollow, nullptr, options))
              .sizes() == want.sizes());
  }
}

TEST_CASE("A convolution over time equals LibTorch's, with gradients", "[ops][conv]") {
  at::manual_seed(3);
  const Conv3dOptions causal{.padding = {0, 1, 1}}, halving{.stride = {2, 1, 1}},
      all{.stride = {1, 2, 2}, .padding = {1, 0, 1}};
  for (auto [kernel, options] : {std::pair(std::array<int64_t, 3>{3, 3, 3}, causal),
                                 std::pair(std::array<int64_t, 3>{3, 1, 1}, halving),
                                 std::pair(std::array<int64_t, 3>{2, 3, 2}, all)}) {
    for (const bool train : {false, true}) {
      for (auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast3d}) {
        for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-13), std::pair(at::kFloat, 1e-5),
                                    std::pair(at::kBFloat16, 0.02)}) {
          INFO(at::IntArrayRef(kernel) << " trained " << train << " " << toString(dtype));
          const Tensor w =
              at::randn({5, 3, kernel[0], kernel[1], kernel[2]}, at::kDouble).to(dtype);
          const Tensor b = at::randn({5}, at::kDouble).to(dtype);
          const WeightPtr weight = test::make_weight(w), bias = test::make_weight(b);
          const Tensor x = test::trained(at::randn({2, 3, 5, 9, 8}, at::kDouble).to(dtype));
          Tensors inputs = {x},
                  wide = {test::trained(x.to(at::kDouble)), test::trained(w.to(at::kDouble)),
                          test::trained(b.to(at::kDouble))};
          if (train) {
            weight->state().set_trainable(true);
            bias->state().set_trainable(true);
            inputs.insert(inputs.end(), {weight->state().leaf(), bias->state().leaf()});
          }
          const auto run = [&] { return conv3d(x.contiguous(format), weight, bias, options); };
          const Tensor y = run();
          const Tensor want =
              at::conv3d(wide[0], wide[1], wide[2], options.stride, options.padding);
          CHECK(error(y, want) < bound);
          CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast3d));
          if (!train) wide.resize(1);
          CHECK(error(test::gradients({y}, inputs), test::gradients({want}, wide)) < bound);
          at::NoGradGuard no_grad;
          CHECK(at::equal(run(), y));
        }
      }
    }
  }
}

TEST_CASE("One weight serves images and videos", "[ops][conv]") {
  at::manual_seed(4);
  const Tensor w = at::randn({3, 2, 3, 3, 3}), x = at::randn({1, 2, 1, 6, 6});
  const WeightPtr weight = test::make_weight(w);
  const Conv3dOptions options{.padding = {0, 1, 1}};
  const Tensor frames = at::constant_pad_nd(x, {0, 0, 0, 0, 2, 0});
  Tensor kernel;  // as the first video left it
  for (int i = 0; i < 2; ++i) {
    const Tensor image = conv2d(x.squeeze(2), weight, nullptr, {1, 1});
    const Tensor video = conv3d(frames, weight, nullptr, options);
    if (i == 0) kernel = weight->state().derived();
    CHECK(weight->state().derived().is_same(kernel));
    CHECK(error(video, at::conv3d(frames, w, {}, options.stride, options.padding)) < 1e-6);
    CHECK(error(image, video.squeeze(2)) < 1e-6);
  }
}

TEST_CASE("The temporal slice of a frozen weight is made once for each version", "[ops][conv]") {
  at::manual_seed(1);
  const Tensor x = at::randn({1, 2, 4, 4}), first = at::randn({3, 2, 3, 1, 1});
  const WeightPtr weight = test::make_weight(first);
  conv2d(x, weight, nullptr, {});
  const Tensor slice = weight->state().derived();
  REQUIRE(slice.defined());
  CHECK(at::equal(slice, first.select(2, 2)));
  conv2d(x, weight, nullptr, {});
  CHECK(weight->state().derived().is_same(slice));
  const Tensor second = at::randn({3, 2, 3, 1, 1});
  weight->set(second);
  CHECK_FALSE(weight->state().derived().defined());
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
    CHECK_FALSE(weight->state().derived().defined());
    const Tensor want = at::conv2d(x, temporal ? w.select(2, 1) : w);
    CHECK(error(test::gradients({y}, {x}), test::gradients({want}, {x})) < 1e-5);
    CHECK(test::LeasedStore::live == 0);
  }
}

TEST_CASE("A frozen convolution saves nothing", "[ops][conv]") {
  const WeightPtr weight = test::make_weight(at::randn({4, 3, 3, 3}));
  const Tensor source = test::trained(at::randn({1, 3, 16, 16}));
  conv2d(source, weight, nullptr, {1, 1});  // the kernel stays as it is needed
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
  const WeightPtr temporal = test::make_weight(at::randn({4, 3, 3, 3, 3}));
  for (const ConvOptions& options :
       {ConvOptions{.groups = 2}, ConvOptions{.groups = 0}, ConvOptions{.dilation = 8}}) {
    const WeightPtr grouped = test::make_weight(at::zeros({3, 2, 3, 3}));
    CHECK(test::error_of([&] {
            conv2d(at::zeros({1, 4, 8, 8}), grouped, nullptr, options);
          }).code() == ErrorCode::kInvalidArgument);
  }
  const auto refused = [](const Tensor& x, const WeightPtr& w, Conv3dOptions options) {
    const Error e = test::error_of([&] { conv3d(x, w, nullptr, options); });
    CHECK(e.code() == ErrorCode::kInvalidArgument);
    CHECK(test::mentions(e, "conv3d: x of shape"));
  };
  refused(at::zeros({1, 3, 8, 8}), temporal, {});
  refused(at::zeros({1, 3, 3, 8, 8}), weight, {});
  refused(at::zeros({1, 2, 3, 8, 8}), temporal, {});
  refused(at::zeros({1, 3, 2, 8, 8}), temporal, {.stride = {2, 1, 1}});  // fewer frames than 3
}

}  // namespace atelier::ops
