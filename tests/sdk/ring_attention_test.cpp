// Attention of ranks that do not divide the key heads.
#include "atelier/error.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/ops/attention.h"
#include "atelier/shared_rows.h"

#include "support/rank_threads.h"
#include "support/tensors.h"
#include "support/use_backend.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::RankThreads;
using test::Tensors;
using test::UseBackend;

struct RingCase {
  Segments rows;
  int64_t heads, key_heads, width;
};

// One sample and several; lengths that ranks cut anywhere; fewer rows than ranks; tiles of a
// kernel.
const std::vector<RingCase> kRingCases = {{Segments({24}), 3, 1, 8},
                                          {Segments({6, 6, 6, 6}), 5, 5, 7},
                                          {Segments({3, 0, 17, 5, 1}), 6, 1, 16},
                                          {Segments({2}), 2, 1, 4},
                                          {Segments({40, 1700}), 2, 1, 8}};

Tensors inputs_of(const RingCase& in, at::ScalarType dtype) {
  at::manual_seed(7);
  Tensors result;
  for (const int64_t heads : {in.heads, in.key_heads, in.key_heads})
    result.push_back(at::randn({in.rows.total(), heads, in.width}, at::kDouble).to(dtype));
  return result;
}

// The output, and gradients of q, k and v.
Tensors whole(const RingCase& in, const Tensors& inputs, const AttentionOptions& options) {
  Tensors leaves;
  for (const Tensor& t : inputs) leaves.push_back(test::trained(t.to(at::kDouble)));
  const Tensor out = attention(leaves[0], leaves[1], leaves[2], in.rows, options);
  Tensors result = test::gradients({out}, leaves);
  result.insert(result.begin(), out.detach());
  return result;
}

// Attention by ranks: each gives all rows of the output, and its part of the gradients.
Tensors shared(const RingCase& in, const Tensors& inputs, const AttentionOptions& options) {
  Tensors leaves;
  for (const Tensor& t : inputs) leaves.push_back(test::trained(t));
  const SharedRows rows(in.rows);
  const Tensor own = attention(rows.take(leaves[0]), rows.take(leaves[1]), rows.take(leaves[2]),
                               rows.rows(), options);
  const Tensor out = rows.gather(own);
  Tensors result = test::gradients({out}, leaves);
  result.insert(result.begin(), out.detach());
  return result;
}

void check(const RingCase& in, at::ScalarType dtype, double bound,
           const AttentionOptions& options) {
  const Tensors inputs = inputs_of(in, dtype), want = whole(in, inputs, options);
  for (const int64_t P : {2, 3, 4}) {
    if (in.key_heads % P == 0) continue;
    INFO(in.rows.tensor() << in.heads << "/" << in.key_heads << " heads of " << in.width << ", "
                          << toString(dtype) << ", " << P << " ranks");
    RankThreads threads(P);
    const auto ranks = threads.run([&] { return shared(in, inputs, options); });
    Tensors sums;
    for (size_t i = 0; i < want.size(); ++i) {
      Tensor sum = at::zeros_like(want[i]);
      for (const Tensors& rank : ranks) {
        CHECK(rank[i].scalar_type() == dtype);
        sum += rank[i];
      }
      sums.push_back(i == 0 ? ranks[0][0] : sum);
    }
    CHECK(error(sums[0], want[0]) < bound);
    for (size_t i = 1; i < want.size(); ++i) CHECK(error(sums[i], want[i]) < bound);
  }
}

}  // namespace

TEST_CASE("Keys that go around give values and gradients of whole ones", "[ring]") {
  for (const RingCase& in : kRingCases) {
    check(in, at::kDouble, 1e-12, {});
    check(in, at::kFloat, 1e-5, {});
    check(in, at::kBFloat16, 0.03, {});
    check(in, at::kDouble, 1e-12, {.scale = 0.7});
  }
}

TEST_CASE("Keys go around for kernels that are composed, too", "[ring]") {
  for (const RingCase& in : kRingCases) check(in, at::kDouble, 1e-12, {.softcap = 2.0});
  const UseBackend math(AttentionBackend::kMath);
  for (const RingCase& in : kRingCases) check(in, at::kFloat, 1e-5, {});
}

// A picture and texts, of which each row of the picture sees some, whole for all ranks or shared
// out.
struct SetsCase {
  Segments picture, text;
  int64_t heads, key_heads;
  bool shares_text;
};

// q, keys and values of picture and text, and groups of both.
struct SetsInputs {
  Tensors heads;
  Tensor sees, groups;

  SetsInputs(const SetsCase& in, at::ScalarType dtype) {
    at::manual_seed(9);
    const int64_t nq = in.picture.total(), nk = in.text.total();
    for (const auto& [rows, count] :
         {std::pair(nq, in.heads), std::pair(nq, in.key_heads), std::pair(nq, in.key_heads),
          std::pair(nk, in.key_heads), std::pair(nk, in.key_heads)})
      heads.push_back(at::randn({rows, count, 8}, at::kDouble).to(dtype));
    sees = at::randint(0, 4, {nq}, at::kLong);
    groups = at::randint(1, 4, {nk}, at::kLong);
  }
};

// All rows of the output, and this rank's part of the gradients of the inputs.
Tensors with_sets(const SetsCase& in, const SetsInputs& inputs) {
  Tensors leaves;
  for (const Tensor& t : inputs.heads) leaves.push_back(test::trained(t));
  const SharedRows picture(in.picture), text(in.text);
  const auto of_text = [&](const Tensor& t) { return in.shares_text ? text.take(t) : t; };
  const std::vector<KeySet> sets = {
      {picture.take(leaves[1]), picture.take(leaves[2]), picture.rows()},
      {of_text(leaves[3]), of_text(leaves[4]), in.shares_text ? text.rows() : in.text,
       picture.take(inputs.sees), of_text(inputs.groups), 0.6}};
  const Tensor out = picture.gather(attention(picture.take(leaves[0]), picture.rows(), sets, 0.5));
  Tensors result = test::gradients({out}, leaves);
  result.insert(result.begin(), out.detach());
  return result;
}

TEST_CASE("Sets of keys go around, and whole ones stay", "[ring]") {
  for (const bool shares_text : {true, false}) {
    for (const SetsCase& in :
         {SetsCase{Segments({24}), Segments({7}), 3, 1, shares_text},
          SetsCase{Segments({9, 0, 14}), Segments({2, 3, 0}), 4, 2, shares_text}}) {
      for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                                  std::pair(at::kBFloat16, 0.03)}) {
        const SetsInputs inputs(in, dtype);
        const Tensors want = with_sets(in, inputs);
        for (const int64_t P : {2, 3, 4}) {
          INFO(in.picture.tensor() << in.text.tensor() << toString(dtype) << ", " << P << " ranks");
          RankThreads threads(P);
          const auto ranks = threads.run([&] { return with_sets(in, inputs); });
          CHECK(error(ranks[0][0], want[0]) < bound);
          for (size_t i = 1; i < want.size(); ++i) {
            Tensor sum = at::zeros_like(want[i]);
            for (const Tensors& rank : ranks) sum += rank[i];
            CHECK(error(sum, want[i]) < bound);
          }
        }
      }
    }
  }
}

TEST_CASE("Groups of keys go around for as many ranks as there are key heads, too", "[ring]") {
  at::manual_seed(4);
  const Segments rows({5, 8});
  const Tensor q = at::randn({13, 2, 8}), sees = at::randint(0, 4, {13}, at::kLong),
               groups = at::randint(1, 4, {13}, at::kLong);
  const Tensor want = attention(q, q, q, rows, {.query_sees = sees, .key_groups = groups});
  RankThreads threads(2);
  const auto ranks = threads.run([&]() -> Tensors {
    const SharedRows shared(rows);
    const Tensor own = shared.take(q);
    return {shared.gather(
        attention(own, own, own, shared.rows(),
                  {.query_sees = shared.take(sees), .key_groups = shared.take(groups)}))};
  });
  for (const Tensors& rank : ranks) CHECK(error(rank[0], want) < 1e-6);
}

// What each rank's keys give is rounded, of which the mean is as far off as one rounding, and then
// the mean: the square root of 2. Rounded at each of 8 ranks it would be off by 2.3.
TEST_CASE("What the keys of all ranks give is rounded once", "[ring]") {
  const RingCase in = {Segments({512}), 2, 1, 8};
  const Tensors inputs = inputs_of(in, at::kBFloat16), want = whole(in, inputs, {});
  const auto far = [&](int64_t P) {
    RankThreads threads(P);
    const Tensor out = threads.run([&] { return shared(in, inputs, {}); })[0][0];
    return (out.to(at::kDouble) - want[0]).abs().mean().item<double>();
  };
  const double alone = far(1);
  for (const int64_t P : {2, 4, 8}) CHECK(far(P) < 1.6 * alone);
}

TEST_CASE("A pass sends keys and values around, and back twice as much", "[ring]") {
  const RingCase in = {Segments({48}), 6, 1, 8};
  for (const auto& [dtype, bytes] : {std::pair(at::kFloat, 4), std::pair(at::kBFloat16, 2)}) {
    const Tensors inputs = inputs_of(in, dtype);
    for (const int64_t P : {2, 3, 4}) {
      RankThreads threads(P);
      threads.run([&]() -> Tensors {
        const at::NoGradGuard no_grad;
        const SharedRows rows(in.rows);
        return {attention(rows.take(inputs[0]), rows.take(inputs[1]), rows.take(inputs[2]),
                          rows.rows())};
      });
      const int64_t pass = 2 * (P - 1) * 48 / P * in.key_heads * in.width * bytes;
      CHECK(threads.bytes_sent == P * pass);  // of all ranks
      threads.bytes_sent = 0;
      threads.run([&] { return shared(in, inputs, {}); });
      CHECK(threads.bytes_sent == P * 3 * pass);
    }
  }
}

TEST_CASE("What a block keeps of keys that went around is not sent again", "[ring][recompute]") {
  using Mode = RecomputeScope::Mode;
  const RingCase in = {Segments({13, 8}), 4, 1, 8};
  const Tensors inputs = inputs_of(in, at::kFloat);
  for (const Action action : {Action::kKeep, Action::kRecompute}) {
    RankThreads threads(3);
    std::vector<int64_t> sent;
    const auto ranks = threads.run([&]() -> Tensors {
      const ActionPlan plan = {action};
      std::vector<KeptOutput> kept;
      Tensors leaves;
      for (const Tensor& t : inputs) leaves.push_back(test::trained(t));
      const SharedRows rows(in.rows);
      const auto run = [&] {
        return attention(rows.take(leaves[0]), rows.take(leaves[1]), rows.take(leaves[2]),
                         rows.rows());
      };
      const Tensors direct = test::gradients({run()}, leaves);
      threads.gather(at::zeros({1}));
      if (threads.rank() == 0) sent.push_back(threads.bytes_sent);
      threads.gather(at::zeros({1}));
      {
        const at::NoGradGuard no_grad;
        const RecomputeScope scope(Mode::kRecord, plan, kept);
        run();
      }
      const RecomputeScope scope(Mode::kReplay, plan, kept);
      const Tensors again = test::gradients({run()}, leaves);
      return {at::tensor(int64_t{test::same_bits(again, direct)})};
    });
    for (const Tensors& rank : ranks) CHECK(rank[0].item<int64_t>() == 1);
    const int64_t pass = sent.at(0) / 3;  // forward once, backward twice as much
    CHECK(threads.bytes_sent - sent[0] == (action == Action::kKeep ? 3 : 4) * pass);
  }
}

TEST_CASE("A back end that cannot run is refused by all ranks", "[ring]") {
  const UseBackend forced(AttentionBackend::kEfficient);
  const RingCase in = kRingCases.front();
  const Tensors inputs = inputs_of(in, at::kFloat);
  RankThreads threads(2);
  std::vector<std::string> said(2);
  threads.run([&]() -> Tensors {
    const Error refused = test::error_of([&] { shared(in, inputs, {}); });
    said[static_cast<size_t>(threads.rank())] = refused.message();
    return {};
  });
  CHECK(said ==
        std::vector<std::string>(2, "attention: the efficient back end needs a CUDA device"));
}

}  // namespace atelier::ops
