// Every operator but attention and 8-bit products, on a device and in float64 on the CPU.
#include "atelier/ops/conv.h"
#include "atelier/ops/linear.h"
#include "atelier/ops/linears.h"
#include "atelier/ops/pointwise.h"

#include "gpu/device.h"
#include "host/tune/kernel_proofs.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::noise;
using test::Operator;
using test::Tensors;
using test::Traced;
using test::weight_of;

Segments some_rows() {
  return test::has_model_shapes() ? Segments({512, 0, 333, 77}) : Segments({24, 0, 33, 7});
}

int64_t some_width() {
  return test::has_model_shapes() ? 3072 : 96;
}

// An operator of all that it is given.
Operator plain(std::string name, Tensors inputs, std::function<Tensors(const Tensors&)> run) {
  return {std::move(name), std::move(inputs), [run](const Tensors& in) {
            return Traced{run(in), in};
          }};
}

Operator linear_layer(int adapters, bool is_trained) {
  const int64_t n = some_rows().total(), in_width = some_width(), out_width = some_width();
  Tensors inputs = {noise({n, in_width}),
                    noise({out_width, in_width}) / std::sqrt(double(in_width)), noise({out_width})};
  for (int i = 0; i < adapters; ++i) {
    inputs.push_back(noise({4 << i, in_width}) / std::sqrt(double(in_width)));
    inputs.push_back(noise({out_width, 4 << i}));
  }
  const auto run = [adapters, is_trained](const Tensors& in) {
    Traced traced = {{}, {in[0]}};
    Tensors* leaves = is_trained ? &traced.inputs : nullptr;
    const WeightPtr weight = weight_of(in[1], leaves), bias = weight_of(in[2], leaves);
    std::vector<Adapter> added;
    for (int i = 0; i < adapters; ++i) {
      added.push_back({in[3 + 2 * i], in[4 + 2 * i], 0.5 + i});
      traced.inputs.insert(traced.inputs.end(), {in[3 + 2 * i], in[4 + 2 * i]});
    }
    traced.outputs = {linear(in[0], weight, bias, added)};
    return traced;
  };
  return {c10::str("linear, ", adapters, " adapters, trained ", is_trained), inputs, run};
}

// Three layers of one input, the second without adapters and the third with two.
Operator layers_of_one_input() {
  const int64_t n = some_rows().total(), width = some_width();
  Tensors inputs = {noise({n, width})};
  for (int i = 0; i < 3; ++i) inputs.push_back(noise({width, width}) / std::sqrt(double(width)));
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(noise({8, width}) / std::sqrt(double(width)));
    inputs.push_back(noise({width, 8}));
  }
  const auto run = [](const Tensors& in) {
    const std::vector<Adapter> first = {{in[4], in[5], 0.5}},
                               last = {{in[6], in[7], 1.5}, {in[8], in[9], -1.0}};
    const LinearTerms layers[] = {{weight_of(in[1], nullptr), nullptr, first},
                                  {weight_of(in[2], nullptr), nullptr, {}},
                                  {weight_of(in[3], nullptr), nullptr, last}};
    Traced traced = {linears(in[0], layers), {in[0]}};
    traced.inputs.insert(traced.inputs.end(), in.begin() + 4, in.end());
    return traced;
  };
  return {"linears", inputs, run};
}

std::vector<Operator> convolutions() {
  const int64_t side = test::has_model_shapes() ? 24 : 9, in = test::has_model_shapes() ? 96 : 6,
                out = 2 * in;
  std::vector<Operator> all;
  for (const auto& [kernel, stride, padding] :
       {std::tuple(3, 1, 1), std::tuple(3, 2, 0), std::tuple(1, 1, 0)}) {
    const auto options = ConvOptions{stride, padding};
    all.push_back(
        {c10::str("conv2d of ", kernel),
         {noise({2, in, side, side}),
          noise({out, in, kernel, kernel}) / (kernel * std::sqrt(double(in))), noise({out})},
         [options](const Tensors& given) {
           Traced traced = {{}, {given[0]}};
           const WeightPtr weight = weight_of(given[1], &traced.inputs),
                           bias = weight_of(given[2], &traced.inputs);
           traced.outputs = {conv2d(given[0], weight, bias, options)};
           return traced;
         },
         /*slack=*/1.0,
         /*repeats=*/false});
  }
  const Conv3dOptions causal{.padding = {0, 1, 1}}, halving{.stride = {1, 2, 2}};
  for (const Conv3dOptions& options : {causal, halving})
    all.push_back({"conv3d",
                   {noise({1, in, 5, side, side}), noise({out, in, 3, 3, 3}) / std::sqrt(27.0 * in),
                    noise({out})},
                   [options](const Tensors& given) {
                     Traced traced = {{}, {given[0]}};
                     const WeightPtr weight = weight_of(given[1], &traced.inputs),
                                     bias = weight_of(given[2]);
                     traced.outputs = {conv3d(given[0], weight, bias, options)};
                     return traced;
                   },
                   /*slack=*/1.0,
                   /*repeats=*/false});
  return all;
}

}  // namespace

TEST_CASE("Norms, gates, rotary embeddings and norms of images equal float64 on the CPU",
          "[gpu][operators][kernels]") {
  at::manual_seed(1);
  const tune::Sizes model = {{512, 0, 333, 77}, 3072, 256, 3, 128, 64, 128};
  const auto sizes = test::has_model_shapes() ? std::span(&model, 1) : tune::small_sizes();
  for (const tune::KernelProof& proof : tune::kernel_proofs()) {
    for (const tune::Sizes& each : sizes) {
      for (const Operator& op : proof.cases(each, noise)) test::check(op);
    }
  }
}

TEST_CASE("Linear layers equal float64 on the CPU, with any adapters", "[gpu][operators]") {
  at::manual_seed(4);
  for (const int adapters : {0, 1, 3}) {
    for (const bool is_trained : {false, true}) test::check(linear_layer(adapters, is_trained));
  }
  test::check(layers_of_one_input());
}

TEST_CASE("Convolutions equal float64 on the CPU", "[gpu][operators]") {
  at::manual_seed(5);
  for (const Operator& op : convolutions()) test::check(op);
}

TEST_CASE("Embeddings, and rows that are joined and parted, equal the CPU's", "[gpu][operators]") {
  at::manual_seed(6);
  const Tensor ids = at::randint(50, {some_rows().total()}, at::kLong);
  test::check({"embedding",
               {noise({50, 24})},
               [ids](const Tensors& in) {
                 Traced traced;
                 const WeightPtr table = weight_of(in[0], &traced.inputs);
                 traced.outputs = {embedding(ids.to(in[0].device()), table)};
                 return traced;
               },
               /*slack=*/1.0,
               /*repeats=*/false});
  const Segments rows = some_rows(), others = Segments({5, 3, 0, 9});
  test::check(plain("join_rows and split_rows",
                    {noise({rows.total(), 24}), noise({others.total(), 24})},
                    [=](const Tensors& in) {
                      const Tensor joined = join_rows(in[0], rows, in[1], others);
                      const auto [a, b] = split_rows(2 * joined, rows, others);
                      return Tensors{joined, a, b};
                    }));
}

TEST_CASE("A wrong value, gradient or bit is found", "[gpu][comparison]") {
  at::manual_seed(7);
  const Tensor x = noise({40, 64});
  const auto judged = [&](std::function<Tensor(const Tensor&)> run) {
    return test::compare(
        plain("wrong", {x}, [run](const Tensors& in) { return Tensors{run(in[0])}; }), at::kFloat,
        test::device());
  };
  const test::Comparison right = judged([](const Tensor& t) { return gelu_tanh(t); });
  CHECK(right.value_error <= test::bound(at::kFloat));
  CHECK(right.gradient_error <= 2 * test::bound(at::kFloat));
  CHECK(right.values_repeat);
  CHECK(right.gradients_repeat);

  // What is exact in float64 gets one wrong value in float32.
  const Tensor spot = at::zeros({40, 64});
  spot[3][5] = 0.01;
  const auto is_judged = [](const Tensor& t) { return t.scalar_type() == at::kFloat; };
  const test::Comparison value = judged([&](const Tensor& t) {
    return is_judged(t) ? gelu_tanh(t) + spot.to(t.device()) : gelu_tanh(t);
  });
  CHECK(value.value_error > 10 * test::bound(at::kFloat));
  CHECK(value.gradient_error <= 2 * test::bound(at::kFloat));

  const test::Comparison gradient = judged([&](const Tensor& t) {
    const Tensor y = gelu_tanh(t);
    return is_judged(t) ? y + 100 * spot.to(t.device()) * (t - t.detach()) : y;
  });
  CHECK(gradient.value_error <= test::bound(at::kFloat));
  CHECK(gradient.gradient_error > 20 * test::bound(at::kFloat));

  int calls = 0;
  const test::Comparison drifting = judged([&](const Tensor& t) {
    return is_judged(t) ? gelu_tanh(t) * (1 + 1e-6 * calls++) : gelu_tanh(t);
  });
  CHECK(drifting.value_error <= test::bound(at::kFloat));
  CHECK_FALSE(drifting.values_repeat);
  CHECK_FALSE(drifting.gradients_repeat);
  CHECK(judged([&](const Tensor& t) { return is_judged(t) ? t.narrow(0, 0, 1) : t; }).value_error ==
        INFINITY);
}

}  // namespace atelier::ops
