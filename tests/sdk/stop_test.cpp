#include "atelier/host/stop.h"

#include <functional>

#include "atelier/error.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/conv.h"
#include "atelier/ops/linear.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;

Error stopped() {
  return {ErrorCode::kCancelled, "stopped"};
}

// How often `work` asks.
template <typename F>
int64_t asked_by(const F& work) {
  int64_t count = 0;
  const StopScope scope([&] { ++count; });
  work();
  return count;
}

}  // namespace

TEST_CASE("Work that asks outside of every scope goes on", "[stop]") {
  CHECK_NOTHROW(check_stop());
}

TEST_CASE("The innermost scope is asked, and the outer one again behind it", "[stop]") {
  const StopScope outer([] { throw stopped(); });
  {
    const StopScope inner([] {});
    CHECK_NOTHROW(check_stop());
  }
  CHECK_THROWS_AS(check_stop(), Error);
}

TEST_CASE("Products, convolutions and attention ask, forward and backward", "[stop]") {
  at::manual_seed(0);
  const WeightPtr matrix = test::make_weight(at::randn({8, 8}));
  const WeightPtr kernel = test::make_weight(at::randn({4, 3, 3, 3}));
  const Tensor rows = test::trained(at::randn({4, 8}));
  const Tensor image = test::trained(at::randn({1, 3, 8, 8}));
  const Tensor heads = test::trained(at::randn({6, 2, 8}));
  const std::pair<const char*, std::function<Tensor()>> works[] = {
      {"linear", [&] { return linear(rows, matrix, nullptr, {}); }},
      {"conv2d", [&] { return conv2d(image, kernel, nullptr, {.padding = 1}); }},
      {"attention", [&] { return attention(heads, heads, heads, Segments({6})); }},
      {"attention in tiles",
       [&] {
         return attention(heads, heads, heads, Segments({6}), {.causal = true, .softcap = 2.0});
       }},
  };
  for (const auto& [name, work] : works) {
    INFO(name);
    Tensor result;
    CHECK(asked_by([&] { result = work(); }) > 0);
    CHECK(asked_by([&] { result.sum().backward(); }) > 0);
    const StopScope scope([] { throw stopped(); });
    CHECK_THROWS_AS(work(), Error);
  }
}

TEST_CASE("A check that throws in a backward pass ends it with its own error", "[stop]") {
  const Tensor heads = test::trained(at::randn({6, 2, 8}));
  const Tensor loss = attention(heads, heads, heads, Segments({6})).sum();
  const StopScope scope([] { throw stopped(); });
  CHECK(test::error_of([&] { loss.backward(); }).code() == ErrorCode::kCancelled);
}

TEST_CASE("A large attention asks between its tiles, and gives the bits of one call", "[stop]") {
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  constexpr int64_t kRows = 3072, kHeads = 2, kWidth = 256;
  const Tensor q = at::randn({kRows, kHeads, kWidth}), k = at::randn({kRows, kHeads, kWidth}),
               v = at::randn({kRows, kHeads, kWidth});
  const auto dense = [](const Tensor& t) { return t.unsqueeze(0).transpose(1, 2); };
  for (const bool causal : {false, true}) {
    INFO("causal " << causal);
    Tensor out;
    const int64_t count = asked_by(
        [&] { out = attention(q, k, v, Segments({kRows}), AttentionOptions{.causal = causal}); });
    CHECK(count > 2);
    const Tensor whole = std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(dense(q), dense(k), dense(v), 0.0, causal));
    CHECK(at::equal(out, whole.transpose(1, 2).reshape({kRows, kHeads * kWidth})));
  }
}

TEST_CASE("A large attention has the gradients of one call", "[stop]") {
  at::manual_seed(2);
  constexpr int64_t kRows = 1300, kHeads = 8, kWidth = 128;
  test::Tensors in;
  for (int i = 0; i < 3; ++i) in.push_back(test::trained(at::randn({kRows, kHeads, kWidth})));
  const auto dense = [](const Tensor& t) { return t.unsqueeze(0).transpose(1, 2); };
  const Tensor out = attention(in[0], in[1], in[2], Segments({kRows}));
  const Tensor grad = at::randn(out.sizes());
  std::vector<Tensor> tiled;
  CHECK(asked_by([&] { tiled = torch::autograd::grad({out}, in, {grad}); }) > 2);
  const auto [whole, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      dense(in[0].detach()), dense(in[1].detach()), dense(in[2].detach()));
  const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dense(grad.view({kRows, kHeads, kWidth})), dense(in[0].detach()), dense(in[1].detach()),
      dense(in[2].detach()), whole, sums, 0.0, false);
  const auto packed = [](const Tensor& t) { return t.transpose(1, 2).squeeze(0); };
  CHECK(test::same_bits(tiled, {packed(grad_q), packed(grad_k), packed(grad_v)}));
}

}  // namespace atelier::ops
