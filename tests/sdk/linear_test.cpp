#include "atelier/ops/linear.h"

#include <numeric>

#include "atelier/nn/layers.h"
#include "atelier/ops/linears.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;

Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const std::vector<Adapter>& adapters) {
  Tensor y = at::linear(x, weight, bias);
  for (const Adapter& a : adapters) y = y + a.scale * at::linear(at::linear(x, a.a), a.b);
  return y;
}

std::vector<Adapter> make_adapters(int count, int64_t in, int64_t out, at::ScalarType dtype) {
  std::vector<Adapter> adapters;
  for (int i = 0; i < count; ++i) {
    adapters.push_back({test::trained(at::randn({3 + i, in}, dtype)),
                        test::trained(at::randn({out, 3 + i}, dtype)), 0.5 + i});
  }
  return adapters;
}

Tensors tensors_of(const std::vector<Adapter>& adapters) {
  Tensors result;
  for (const Adapter& a : adapters) result.insert(result.end(), {a.a, a.b});
  return result;
}

}  // namespace

TEST_CASE("A linear layer equals its expression, with any number of adapters", "[ops][linear]") {
  at::manual_seed(0);
  for (int count : {0, 1, 3}) {
    for (bool with_bias : {false, true}) {
      for (bool train_weight : {false, true}) {
        for (bool leased : {false, true}) {
          if (leased && train_weight) continue;
          INFO(count << " adapters, bias " << with_bias << ", trained " << train_weight);
          const Tensor w = at::randn({11, 7}, at::kDouble), b = at::randn({11}, at::kDouble);
          const WeightPtr weight = leased ? test::make_leased(w) : test::make_weight(w);
          const WeightPtr bias = !with_bias ? nullptr
                                 : leased   ? test::make_leased(b)
                                            : test::make_weight(b);
          const auto adapters = make_adapters(count, 7, 11, at::kDouble);
          Tensors inputs = tensors_of(adapters), reference_inputs = inputs;
          const Tensor x = test::trained(at::randn({2, 5, 7}, at::kDouble));
          inputs.push_back(x);
          reference_inputs.push_back(x);
          const Tensor plain_w = test::trained(w), plain_b = test::trained(b);
          if (train_weight) {
            weight->state().set_trainable(true);
            inputs.push_back(weight->state().leaf());
            reference_inputs.push_back(plain_w);
            if (with_bias) {
              bias->state().set_trainable(true);
              inputs.push_back(bias->state().leaf());
              reference_inputs.push_back(plain_b);
            }
          }
          const Tensor want = reference(x, plain_w, with_bias ? plain_b : Tensor(), adapters);
          const Tensor got = linear(x, weight, bias, adapters);
          CHECK(test::LeasedStore::live == 0);
          CHECK(got.is_contiguous());
          CHECK(error(got, want) < 1e-13);
          CHECK(error(test::gradients({got}, inputs), test::gradients({want}, reference_inputs)) <
                1e-13);
          CHECK(test::LeasedStore::live == 0);
          at::NoGradGuard no_grad;
          CHECK(at::equal(linear(x, weight, bias, adapters), got));
        }
      }
    }
  }
}

TEST_CASE("An adapter of scale 0 gives the base's bits back", "[ops][linear]") {
  at::manual_seed(1);
  const WeightPtr weight = test::make_weight(at::randn({16, 8}).to(at::kBFloat16));
  auto adapters = make_adapters(2, 8, 16, at::kFloat);
  const Tensor x = at::randn({4, 8}).to(at::kBFloat16);
  for (Adapter& a : adapters) a.scale = 0;
  CHECK(at::equal(linear(x, weight, nullptr, adapters), linear(x, weight)));
  adapters[1].scale = 1;
  CHECK_FALSE(at::equal(linear(x, weight, nullptr, adapters), linear(x, weight)));
}

TEST_CASE("An adapter's dropout is one mask, forward and backward", "[ops][linear]") {
  constexpr int64_t kRows = 500, kIn = 12, kOut = 9;
  const Tensor eye = at::eye(kIn, at::kDouble);
  at::manual_seed(11);
  const Tensor mask = linear(at::ones({kRows, kIn}, at::kDouble),
                             test::make_weight(at::zeros({kIn, kIn}, at::kDouble)), nullptr,
                             std::vector<Adapter>{{eye, eye, 1.0, /*dropout=*/0.25}});
  CHECK(((mask == 0) | (mask == 1 / 0.75)).all().item<bool>());
  CHECK(std::abs((mask == 0).to(at::kDouble).mean().item<double>() - 0.25) < 0.02);

  at::manual_seed(2);
  const Tensor w = at::randn({kOut, kIn}, at::kDouble);
  auto adapters = make_adapters(2, kIn, kOut, at::kDouble);
  adapters[0].dropout = 0.25;
  const Tensor x = test::trained(at::randn({kRows, kIn}, at::kDouble));
  Tensors inputs = tensors_of(adapters);
  inputs.push_back(x);
  at::manual_seed(11);
  const Tensor got = linear(x, test::make_weight(w), nullptr, adapters);
  const Tensor want =
      reference(x, w, {}, {adapters[1]}) +
      adapters[0].scale * at::linear(at::linear(x * mask, adapters[0].a), adapters[0].b);
  CHECK(error(got, want) < 1e-13);
  CHECK(error(test::gradients({got}, inputs), test::gradients({want}, inputs)) < 1e-13);
  const Tensor again = linear(x, test::make_weight(w), nullptr, adapters);
  CHECK_FALSE(at::equal(again, got));
}

namespace {

// Layers of one input, of different widths, as many adapters each as `counts` says.
struct SharedInput {
  SharedInput(std::vector<int> counts, int64_t in, at::ScalarType dtype, double dropout = 0)
      : x(test::trained(at::randn({2, 20, in}, dtype))) {
    for (const int count : counts) {
      const int64_t out = 6 + 3 * std::ssize(adapters);
      weights.push_back(test::make_weight(at::randn({out, in}, dtype)));
      biases.push_back(out == 9 ? nullptr : test::make_weight(at::randn({out}, dtype)));
      adapters.push_back(make_adapters(count, in, out, dtype));
      if (!adapters.back().empty()) adapters.back().back().dropout = dropout;
    }
  }

  Tensors together() const {
    std::vector<LinearTerms> terms;
    for (size_t i = 0; i < weights.size(); ++i)
      terms.push_back({weights[i], biases[i], adapters[i]});
    return linears(x, terms);
  }
  Tensors alone() const {
    Tensors result;
    for (size_t i = 0; i < weights.size(); ++i)
      result.push_back(linear(x, weights[i], biases[i], adapters[i]));
    return result;
  }
  // x and the adapters of some layers.
  Tensors trained(std::vector<size_t> layers) const {
    Tensors result{x};
    for (const size_t layer : layers) {
      for (const Tensor& t : tensors_of(adapters[layer])) result.push_back(t);
    }
    return result;
  }

  Tensor x;
  std::vector<WeightPtr> weights, biases;
  std::vector<std::vector<Adapter>> adapters;
};

}  // namespace

TEST_CASE("Layers of one input give together what each gives alone", "[ops][linear]") {
  for (const std::vector<int>& counts : {std::vector{1, 1, 1}, {2, 0, 1}, {0, 0}, {1}}) {
    for (const double dropout : {0.0, 0.25}) {
      at::manual_seed(5);
      const SharedInput layers(counts, 7, at::kDouble, dropout);
      at::manual_seed(6);
      const Tensors got = layers.together();
      at::manual_seed(6);
      const Tensors want = layers.alone();
      CHECK(error(got, want) < 1e-13);
      CHECK(got.back().is_contiguous());
      std::vector<size_t> all(counts.size());
      std::iota(all.begin(), all.end(), 0);
      CHECK(error(test::gradients(got, layers.trained(all)),
                  test::gradients(want, layers.trained(all))) < 1e-13);
    }
  }
}

TEST_CASE("Layers of one input are trained with it, and only some of them too", "[ops][linear]") {
  at::manual_seed(7);
  const SharedInput layers({1, 1, 1}, 8, at::kDouble);
  layers.weights[1]->state().set_trainable(true);
  const auto of_two = [&](const Tensors& y) {
    Tensors wanted = layers.trained({0, 1});
    wanted.push_back(layers.weights[1]->state().leaf());
    return test::gradients({y[0], y[1]}, wanted);
  };
  CHECK(error(of_two(layers.together()), of_two(layers.alone())) < 1e-13);
  const auto of_last = [&](const Tensors& y) {
    return test::gradients({y[2]}, layers.trained({2}));
  };
  CHECK(error(of_last(layers.together()), of_last(layers.alone())) < 1e-13);
}

TEST_CASE("Layers of one input without adapters have the bits of each alone", "[ops][linear]") {
  at::manual_seed(8);
  SharedInput layers({1, 1}, 64, at::kFloat);
  for (std::vector<Adapter>& own : layers.adapters) own[0].scale = 0;
  const Tensors got = layers.together(), want = layers.alone();
  CHECK(test::same_bits(got, want));
  CHECK(test::same_bits(test::gradients(got, {layers.x}), test::gradients(want, {layers.x})));
}

TEST_CASE("Layers of one input save it once, and 16 bits stay near", "[ops][linear]") {
  at::manual_seed(9);
  const SharedInput layers({1, 2, 0}, 32, at::kFloat);
  const Tensor source = layers.x;
  SharedInput copy = layers;
  test::Bytes bytes;
  copy.x = source.clone();
  const Tensors y = copy.together();
  copy.x.reset();
  int64_t results = 0;
  for (const Tensor& t : y) results += static_cast<int64_t>(t.nbytes());
  CHECK(bytes.now() - results == 40 * 32 * 4 + 40 * (3 + 3 + 4) * 4);

  SharedInput narrow = layers;
  narrow.x = test::trained(source.detach().to(at::kBFloat16));
  for (auto* weights : {&narrow.weights, &narrow.biases}) {
    for (WeightPtr& weight : *weights)
      if (weight) weight = test::make_weight(weight->draw().to(at::kBFloat16));
  }
  CHECK(error(narrow.together(), layers.together()) < 0.02);
  CHECK(error(test::gradients(narrow.together(), narrow.trained({0, 1})),
              test::gradients(layers.together(), layers.trained({0, 1}))) < 0.02);
}

TEST_CASE("float32 adapters serve a bfloat16 layer and get float32 gradients", "[ops][linear]") {
  at::manual_seed(2);
  const Tensor w = at::randn({32, 16}).to(at::kBFloat16);
  const WeightPtr weight = test::make_weight(w);
  const auto adapters = make_adapters(2, 16, 32, at::kFloat);
  const Tensor x = test::trained(at::randn({6, 16}).to(at::kBFloat16));
  Tensors inputs = tensors_of(adapters);
  inputs.push_back(x);
  const Tensor y = linear(x, weight, nullptr, adapters);
  const Tensors grads = test::gradients({y}, inputs);
  for (size_t i = 0; i + 1 < grads.size(); ++i) CHECK(grads[i].scalar_type() == at::kFloat);

  const Tensor wide = test::trained(x.to(at::kDouble));
  Tensors wide_inputs;
  std::vector<Adapter> wide_adapters;
  for (const Adapter& a : adapters) {
    wide_adapters.push_back(
        {test::trained(a.a.to(at::kDouble)), test::trained(a.b.to(at::kDouble)), a.scale});
  }
  wide_inputs = tensors_of(wide_adapters);
  wide_inputs.push_back(wide);
  const Tensor want = reference(wide, w.to(at::kDouble), {}, wide_adapters);
  CHECK(y.scalar_type() == at::kBFloat16);
  CHECK(error(y, want) < 0.02);
  CHECK(error(grads, test::gradients({want}, wide_inputs)) < 0.02);
}

TEST_CASE("Only asked for gradients are computed, and only trained tensors get them",
          "[ops][linear]") {
  at::manual_seed(3);
  const WeightPtr weight = test::make_leased(at::randn({4, 6}));
  std::vector<Adapter> adapters = {
      {test::trained(at::randn({2, 6})), at::randn({4, 2}), 1.0},   // only a is trained
      {at::randn({2, 6}), test::trained(at::randn({4, 2})), 1.0}};  // only b
  const Tensor x = at::randn({5, 6});
  const Tensor y = linear(x, weight, nullptr, adapters);
  const int drawn = test::LeasedStore::drawn;
  const Tensors grads = test::gradients({y}, {adapters[0].a, adapters[1].b});
  // x needs no gradient, so the backward pass does not draw the weight.
  CHECK(test::LeasedStore::drawn == drawn);
  const Tensor want = reference(x, weight->draw(), {}, adapters);
  CHECK(error(grads, test::gradients({want}, {adapters[0].a, adapters[1].b})) < 1e-6);
}

TEST_CASE("A frozen layer saves nothing, adapters save x and the rank-r products",
          "[ops][linear]") {
  const WeightPtr weight = test::make_weight(at::randn({64, 32}));
  const Tensor source = test::trained(at::randn({100, 32}));
  auto alive = [&](const std::vector<Adapter>& adapters) {
    test::Bytes bytes;
    Tensor x = source.clone();
    Tensor y = linear(x, weight, nullptr, adapters);
    x.reset();
    return bytes.now() - static_cast<int64_t>(y.nbytes());
  };
  CHECK(alive({}) == 0);
  const auto adapters = make_adapters(1, 32, 64, at::kFloat);
  CHECK(alive(adapters) == 100 * 32 * 4 + 100 * 3 * 4);
  CHECK(alive({{adapters[0].a.detach(), adapters[0].b, 1.0}}) == 100 * 3 * 4);
  CHECK(alive({{adapters[0].a, adapters[0].b.detach(), 1.0}}) == 100 * 32 * 4);
}

TEST_CASE("A trained weight that was stepped before the backward pass is an error",
          "[ops][linear]") {
  const WeightPtr weight = test::make_weight(at::randn({4, 6}));
  weight->state().set_trainable(true);
  const Tensor x = test::trained(at::randn({5, 6}));
  const Tensor y = linear(x, weight);
  {
    at::NoGradGuard no_grad;
    weight->state().leaf().mul_(2);
  }
  const Error e = test::error_of([&] { test::gradients({y}, {x}); });
  CHECK(e.code() == ErrorCode::kInternal);
  CHECK(test::mentions(e, "changed between"));
}

TEST_CASE("A linear layer takes any shape of rows, none at all too", "[ops][linear]") {
  const WeightPtr weight = test::make_weight(at::randn({4, 6}, at::kDouble));
  const Tensor w = weight->draw();
  const Tensor permuted = at::randn({6, 3, 5}, at::kDouble).permute({2, 1, 0});
  CHECK(error(linear(permuted, weight), at::linear(permuted, w)) < 1e-14);
  CHECK(linear(at::zeros({6}, at::kDouble), weight).sizes() == at::IntArrayRef{4});
  CHECK(linear(at::zeros({0, 6}, at::kDouble), weight).sizes() == at::IntArrayRef({0, 4}));
  const Error e = test::error_of([&] { linear(at::zeros({3, 5}, at::kDouble), weight); });
  CHECK(e.code() == ErrorCode::kInvalidArgument);
  CHECK(test::mentions(e, "[3, 5]"));
}

TEST_CASE("Rows of a table are gathered, and its gradient comes back", "[ops][embedding]") {
  at::manual_seed(4);
  const Tensor table = at::randn({10, 6}, at::kDouble);
  const Tensor ids = at::tensor({3, 1, 3, 9}, at::kLong).view({2, 2});
  const WeightPtr weight = test::make_weight(table);
  CHECK(at::equal(embedding(ids, weight), at::embedding(table, ids)));
  CHECK(at::equal(embedding(ids, test::make_leased(table)), at::embedding(table, ids)));
  CHECK(test::LeasedStore::live == 0);
  weight->state().set_trainable(true);
  const Tensor plain = test::trained(table);
  CHECK(error(test::gradients({embedding(ids, weight)}, {weight->state().leaf()}),
              test::gradients({at::embedding(plain, ids)}, {plain})) < 1e-14);
  CHECK(test::error_of([&] { embedding(ids.to(at::kInt), weight); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("Layers own their weights under the published names", "[nn]") {
  struct Net : nn::Module {
    nn::Linear linear{this, "linear", 4, 6};
    nn::Linear plain{this, "plain", 6, 6, /*bias=*/false};
    nn::Embedding table{this, "table", 10, 4};
    nn::RMSNorm norm{this, "norm", 6};
    nn::Conv2d conv{this, "conv", 3, 5, 3, {.stride = 2, .padding = 1}};
    Net() : Module(nullptr, "") {}
  } net;
  std::string names;
  net.visit_weights([&](const std::string& path, Weight& weight) {
    names += path + " ";
    at::manual_seed(weight.numel());
    weight.set(at::randn(weight.sizes()));
  });
  CHECK(names ==
        "linear.weight linear.bias plain.weight table.weight norm.weight conv.weight "
        "conv.bias ");
  const Tensor ids = at::tensor({1, 2}, at::kLong);
  const Tensor y = net.plain.forward(net.linear.forward(net.table.forward(ids)));
  const Tensor want = at::linear(at::linear(at::embedding(net.table.weight->draw(), ids),
                                            net.linear.weight->draw(), net.linear.bias->draw()),
                                 net.plain.weight->draw());
  CHECK(error(y, want) < 1e-6);
  const Tensor rms = y * at::rsqrt(y.square().mean(-1, true) + 1e-6) * net.norm.weight->draw();
  CHECK(error(net.norm.forward(y), rms) < 1e-6);
  const Tensor image = at::randn({1, 3, 8, 8});
  CHECK(error(net.conv.forward(image),
              at::conv2d(image, net.conv.weight->draw(), net.conv.bias->draw(), 2, 1)) < 1e-5);
  CHECK(net.linear.in_features() == 4);
  CHECK(net.linear.out_features() == 6);
}

}  // namespace atelier::ops
