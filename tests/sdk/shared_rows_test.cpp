#include "atelier/shared_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "support/catch.h"
#include "support/rank_threads.h"
#include "support/tensors.h"

namespace atelier {
namespace {

using test::RankThreads;
using torch::autograd::variable_list;

struct Streams {
  Segments text, image;
  int64_t heads = 8, key_heads = 4, width = 6;
};

// What a denoiser does: weights before and behind the rows, attention of both streams together.
// Returns the output, then the gradients of `leaves`.
variable_list joint(const Streams& in, const variable_list& given) {
  variable_list leaves;
  for (const at::Tensor& t : given) leaves.push_back(t.detach().clone().set_requires_grad(true));
  const auto& [text, image, into, scale] = std::tie(leaves[0], leaves[1], leaves[2], leaves[3]);
  const SharedRows text_rows(in.text), image_rows(in.image);
  const at::Tensor t = text_rows.take(text).matmul(into);
  const at::Tensor i = ops::norm_modulate(image_rows.take(image).matmul(into),
                                          at::zeros_like(scale), scale, image_rows.rows());
  const at::Tensor rows = join_rows(t, text_rows.rows(), i, image_rows.rows());
  const auto part = [&](int64_t first, int64_t count) {
    return rows.narrow(1, first * in.width, count * in.width).unflatten(1, {count, in.width});
  };
  const at::Tensor attended = ops::attention(part(0, in.heads), part(in.heads, in.key_heads),
                                             part(in.heads + in.key_heads, in.key_heads),
                                             join(text_rows.rows(), image_rows.rows()));
  const at::Tensor own = split_rows(attended, text_rows.rows(), image_rows.rows()).second;
  const at::Tensor out = image_rows.gather(own);
  const at::Tensor weights = at::linspace(-1, 2, out.numel(), out.options()).view(out.sizes());
  variable_list result = {out.detach()};
  for (at::Tensor& g : torch::autograd::grad({(out * weights).sum()}, leaves))
    result.push_back(std::move(g));
  return result;
}

variable_list inputs_of(const Streams& in) {
  at::manual_seed(3);
  const auto options = at::TensorOptions(at::kDouble);
  const int64_t columns = (in.heads + 2 * in.key_heads) * in.width;
  return {at::randn({in.text.total(), 5}, options), at::randn({in.image.total(), 5}, options),
          at::randn({5, columns}, options), at::randn({in.image.count(), columns}, options)};
}

bool are_close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() < 1e-11;
}

// Samples of several lengths; rows that ranks do not divide; fewer rows than ranks.
const std::vector<Streams> kCases = {{Segments({8}), Segments({24})},
                                     {Segments({5, 2, 9}), Segments({13, 13, 13})},
                                     {Segments({1, 2}), Segments({7, 30})},
                                     {Segments({1}), Segments({10})},
                                     {Segments({1, 1}), Segments({0, 2})}};

TEST_CASE("Rows that are shared out give values and gradients of whole ones", "[shared_rows]") {
  for (const Streams& in : kCases) {
    const variable_list leaves = inputs_of(in), alone = joint(in, leaves);
    for (const int64_t P : {1, 2, 3, 4, 5}) {  // of which 3 and 5 do not divide the key heads
      RankThreads threads(P);
      const auto ranks = threads.run([&] { return joint(in, leaves); });
      for (const variable_list& rank : ranks) REQUIRE(are_close(rank[0], alone[0]));
      for (size_t i = 1; i < alone.size(); ++i) {
        at::Tensor sum = at::zeros_like(alone[i]);
        for (const variable_list& rank : ranks) sum += rank[i];
        INFO("gradient " << i << " on " << P << " ranks");
        REQUIRE(are_close(sum, alone[i]));
      }
    }
  }
}

TEST_CASE("A pass of attention sends its share of queries, keys, values and outputs",
          "[shared_rows]") {
  const Streams in = {Segments({8}), Segments({24})};
  const variable_list leaves = inputs_of(in);
  for (const int64_t P : {2, 4}) {
    RankThreads threads(P);
    threads.run([&] { return joint(in, leaves); });
    const int64_t N = 32, pass = (P - 1) * N * 2 * (in.heads + in.key_heads) * in.width * 8 / P / P;
    REQUIRE(threads.bytes_sent == P * 2 * pass);  // of all ranks, forward and backward
  }
}

TEST_CASE("Queries that are shared out see whole keys as they are", "[shared_rows]") {
  const Segments rows({6, 11}), keys({3, 4});
  at::manual_seed(5);
  const at::Tensor q = at::randn({17, 3, 4}), k = at::randn({7, 3, 4}), v = at::randn({7, 3, 4});
  const at::Tensor alone = ops::attention(q, k, v, rows, keys, {});
  RankThreads threads(2);
  const auto ranks = threads.run([&]() -> variable_list {
    const SharedRows shared(rows);
    const at::Tensor own = ops::attention(shared.take(q), k, v, shared.rows(), keys, {});
    return {shared.gather(own)};
  });
  for (const variable_list& rank : ranks) REQUIRE(at::allclose(rank[0], alone, 0, 1e-6));
  REQUIRE(threads.bytes_sent == 0);
}

TEST_CASE("Stretches are cut as the rows are", "[shared_rows]") {
  const Segments rows({6, 11}), stretches({2, 4, 11});
  RankThreads threads(3);
  const auto ranks = threads.run([&]() -> variable_list {
    const SharedRows shared(rows);
    const Segments own = shared.cut(stretches);
    return {own.tensor(), shared.take(at::arange(17)), at::tensor(shared.rows().total())};
  });
  REQUIRE(at::equal(ranks[0][0], at::tensor({0, 2, 5, 5}, at::kLong)));
  REQUIRE(at::equal(ranks[1][0], at::tensor({0, 0, 1, 6}, at::kLong)));
  REQUIRE(at::equal(ranks[2][0], at::tensor({0, 0, 0, 6}, at::kLong)));
  REQUIRE(at::equal(ranks[2][1], at::arange(11, 17)));
  for (const variable_list& rank : ranks)
    REQUIRE(rank[0][-1].item<int64_t>() == rank[2].item<int64_t>());
}

TEST_CASE("What shared rows cannot do is refused", "[shared_rows]") {
  RankThreads threads(2);
  std::vector<std::vector<std::string>> said(2);
  threads.run([&]() -> variable_list {
    const SharedRows rows(Segments({4, 6})), others(Segments({2, 2}));
    const at::Tensor even = at::zeros({5, 2, 4}), odd = at::zeros({5, 3, 4});
    const auto hear = [&](auto&& call) {
      said[static_cast<size_t>(threads.rank())].push_back(test::error_of(call).message());
    };
    hear([&] { ops::attention(odd, even, even, rows.rows()); });
    hear([&] { ops::attention(even, even, even, rows.rows(), {.causal = true}); });
    hear([&] { ops::attention(even, even, even, Segments({2, 3}), rows.rows(), {}); });
    hear([&] { join(rows, others).gather(at::zeros({7, 2})); });
    hear([&] { join(rows.rows(), Segments({1, 1})); });
    hear([&] { rows.take(at::zeros({9, 2})); });
    return {};
  });
  const std::vector<std::string> expected = {
      "attention: q [5, 3, 4], k [5, 2, 4] and v [5, 2, 4] do not fit 2 and 2 segments of 5 and 5 "
      "rows",
      "attention: causal, window and bias are not for rows that are shared out",
      "attention: keys that are shared out among ranks, and queries that are not",
      "joined rows are not gathered",
      "join: rows that are shared out beside whole ones",
      "a tensor of shape [9, 2] has not the 10 rows that are shared out"};
  REQUIRE(said == std::vector{expected, expected});
}

TEST_CASE("Without other ranks all rows are this one's", "[shared_rows]") {
  const Segments all({3, 4});
  const SharedRows rows(all);
  const at::Tensor t = at::randn({7, 2});
  REQUIRE(rows.take(t).is_same(t));
  REQUIRE(rows.gather(t).is_same(t));
  REQUIRE(rows.rows().tensor().is_same(all.tensor()));
  REQUIRE_FALSE(rows.rows().is_shared());
}

}  // namespace
}  // namespace atelier
