// Attention to several sets of keys under one softmax.
#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/ops/attention.h"

#include "support/tensors.h"
#include "support/use_backend.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;
using test::UseBackend;

// Queries and sets of keys, in float64 at first.
struct Case {
  Segments q_rows;
  Tensor q;
  std::vector<KeySet> sets;
  double scale = 0.0;

  Case(Segments rows, int64_t heads, int64_t width)
      : q_rows(std::move(rows)), q(at::randn({q_rows.total(), heads, width}, at::kDouble)) {}

  Case& add(const Segments& rows, int64_t key_heads, bool has_groups, double score_bias = 0.0) {
    const std::array<int64_t, 3> sizes = {rows.total(), key_heads, q.size(2)};
    KeySet set{at::randn(sizes, at::kDouble), at::randn(sizes, at::kDouble), rows};
    set.score_bias = score_bias;
    if (has_groups) {
      set.query_sees = at::randint(0, 8, {q_rows.total()}, at::kLong);  // some see no key
      set.key_groups = at::randint(1, 8, {rows.total()}, at::kLong);
    }
    sets.push_back(set);
    return *this;
  }

  // A case of these values in another dtype, with gradients.
  Case trained(at::ScalarType dtype) const {
    Case other = *this;
    other.q = test::trained(q.to(dtype));
    for (KeySet& set : other.sets) {
      set.k = test::trained(set.k.to(dtype));
      set.v = test::trained(set.v.to(dtype));
    }
    return other;
  }

  Tensor run() const { return attention(q, q_rows, sets, scale); }
  Tensors leaves() const {
    Tensors result = {q};
    for (const KeySet& set : sets) result.insert(result.end(), {set.k, set.v});
    return result;
  }
};

// Sample by sample, from products and one softmax over the keys of all sets.
Tensor reference(const Case& in) {
  const double scale = in.scale == 0 ? 1 / std::sqrt(double(in.q.size(2))) : in.scale;
  Tensors samples;
  for (int64_t s = 0; s < in.q_rows.count(); ++s) {
    const auto of = [&](const Tensor& t, const Segments& rows) {
      return t.narrow(0, rows.offset(s), rows.length(s));
    };
    const Tensor queries = of(in.q, in.q_rows).transpose(0, 1);  // [H, L, d]
    Tensors scores, apart, values;
    for (const KeySet& set : in.sets) {
      const int64_t times = in.q.size(1) / set.k.size(1);
      const auto heads = [&](const Tensor& t) {
        return of(t, set.rows).transpose(0, 1).repeat_interleave(times, 0);
      };
      scores.push_back(at::matmul(queries, heads(set.k).transpose(1, 2)) * scale + set.score_bias);
      values.push_back(heads(set.v));
      apart.push_back(set.query_sees.defined()
                          ? at::bitwise_and(of(set.query_sees, in.q_rows).unsqueeze(1),
                                            of(set.key_groups, set.rows)) == 0
                          : at::zeros({queries.size(1), set.rows.length(s)}, at::kBool));
    }
    const Tensor hidden = at::cat(apart, 1);
    // Rows that see nothing have weights of 0, and gradients of 0.
    const Tensor weights = at::softmax(at::cat(scores, 2).masked_fill(hidden, -1e300), -1);
    samples.push_back(
        at::matmul(weights.masked_fill(hidden, 0), at::cat(values, 1)).transpose(0, 1).flatten(1));
  }
  return at::cat(samples);
}

// Values and gradients of q and of all keys and values, and the pass without gradients.
void check(const Case& exact, at::ScalarType dtype, double bound) {
  const Case in = exact.trained(dtype), wide = in.trained(at::kDouble);
  INFO(in.q_rows.tensor() << in.sets.size() << " sets, " << toString(dtype));
  const Tensor out = in.run(), want = reference(wide);
  CHECK(out.sizes() == at::IntArrayRef({in.q.size(0), in.q.size(1) * in.q.size(2)}));
  CHECK(out.is_contiguous());
  CHECK(out.scalar_type() == dtype);
  CHECK(error(out, want) < bound);
  const Tensors gradients = test::gradients({out}, in.leaves());
  CHECK(error(gradients, test::gradients({want}, wide.leaves())) < bound);
  for (const Tensor& gradient : gradients) CHECK(gradient.scalar_type() == dtype);
  const at::NoGradGuard no_grad;
  CHECK(at::equal(in.run(), out));
}

void check(const Case& exact) {
  check(exact, at::kDouble, 1e-12);
  check(exact, at::kFloat, 1e-5);
  check(exact, at::kBFloat16, 0.03);
}

// A picture whose rows are seen by all beside texts of which each row sees some.
Case picture_and_texts() {
  Case in(Segments({6, 9}), 6, 8);
  in.scale = 0.4;
  in.add(Segments({6, 9}), 2, /*has_groups=*/false);
  in.add(Segments({4, 5}), 2, /*has_groups=*/true, 0.7);
  return in;
}

Error refused(const Case& in) {
  return test::error_of([&] { in.run(); });
}

}  // namespace

TEST_CASE("Sets of keys have one softmax", "[ops][attention]") {
  at::manual_seed(6);
  for (const auto& [heads, key_heads] : {std::pair(4, 4), std::pair(6, 2)}) {
    const auto queries = [&](const Segments& rows) { return Case(rows, heads, 8); };
    const Segments one({9}), two({6, 6}), four({3, 0, 17, 5});
    check(queries(one).add(Segments({5}), key_heads, false).add(Segments({7}), key_heads, false));
    check(queries(one).add(Segments({5}), key_heads, true).add(Segments({7}), key_heads, true));
    check(queries(two)
              .add(two, key_heads, false)
              .add(Segments({3, 3}), key_heads, true)
              .add(Segments({2, 8}), key_heads, true));
    // Samples that lack keys in one set, or in all.
    check(queries(four)
              .add(Segments({4, 2, 0, 9}), key_heads, false)
              .add(Segments({0, 3, 6, 1}), key_heads, true));
    check(queries(four)
              .add(Segments({4, 2, 0, 9}), key_heads, false)
              .add(Segments({1, 1, 0, 0}), key_heads, false));
    check(queries(one).add(Segments({0}), key_heads, true).add(Segments({0}), key_heads, false));
    // Tiles of kernels.
    check(queries(Segments({40, 300}))
              .add(Segments({700, 8}), key_heads, false)
              .add(Segments({20, 90}), key_heads, true));
  }
}

TEST_CASE("Sets of keys have a scale, biases and key heads of their own", "[ops][attention]") {
  at::manual_seed(7);
  check(picture_and_texts());
  Case in(Segments({7, 4}), 6, 5);
  in.scale = 1.3;
  check(in.add(Segments({3, 8}), 1, false, -1.5)
            .add(Segments({5, 5}), 6, false, 2.0)
            .add(Segments({2, 9}), 3, true, 0.25));
}

TEST_CASE("Sets of keys are made tile by tile and give the same", "[ops][attention]") {
  at::manual_seed(8);
  Case in(Segments({1500}), 4, 8);  // with the groups' keys more scores than one tile holds
  in.add(Segments({900}), 2, false).add(Segments({1400}), 2, true, 0.5);
  check(in, at::kFloat, 1e-5);
}

TEST_CASE("A row that sees no key of a set sees those of the others", "[ops][attention]") {
  at::manual_seed(9);
  Case exact(Segments({3}), 2, 4);
  exact.add(Segments({2}), 2, true).add(Segments({3}), 2, true);
  exact.sets[0].query_sees = at::tensor({1, 0, 0}, at::kLong);
  exact.sets[0].key_groups = at::tensor({1, 1}, at::kLong);
  exact.sets[1].query_sees = at::tensor({0, 2, 0}, at::kLong);
  exact.sets[1].key_groups = at::tensor({1, 2, 1}, at::kLong);
  check(exact);
  const Case in = exact.trained(at::kFloat);
  const Tensor out = in.run();
  CHECK(at::allclose(out[1], in.sets[1].v[1].flatten()));  // the only key that it sees
  CHECK(at::equal(out[2], at::zeros({8})));
  const Tensors gradients = test::gradients({out}, in.leaves());
  CHECK(at::equal(gradients[0][2], at::zeros({2, 4})));
  CHECK(at::equal(gradients[3][0], at::zeros({2, 4})));
}

TEST_CASE("One set gives the bits of attention without sets", "[ops][attention]") {
  at::manual_seed(10);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool has_groups : {false, true}) {
      const Case in =
          Case(Segments({5, 7}), 4, 8).add(Segments({6, 2}), 2, has_groups, 0.5).trained(dtype);
      const KeySet& set = in.sets[0];
      const Tensor out = in.run();
      const Tensor want = attention(in.q, set.k, set.v, in.q_rows, set.rows,
                                    {.query_sees = set.query_sees, .key_groups = set.key_groups});
      CHECK(at::equal(out, want));
      CHECK(test::same_bits(test::gradients({out}, in.leaves()),
                            test::gradients({want}, in.leaves())));
    }
  }
}

TEST_CASE("Sets without gradients change none of the others", "[ops][attention]") {
  at::manual_seed(11);
  Case in = picture_and_texts().trained(at::kFloat);
  const Tensors all = test::gradients({in.run()}, in.leaves());
  in.sets[1].k = in.sets[1].k.detach();
  in.sets[1].v = in.sets[1].v.detach();
  const Tensors some = test::gradients({in.run()}, {in.q, in.sets[0].k, in.sets[0].v});
  CHECK(test::same_bits(some, {all[0], all[1], all[2]}));
  in.q = in.q.detach();
  in.sets[0].k = in.sets[0].k.detach();
  CHECK(test::same_bits(test::gradients({in.run()}, {in.sets[0].v}), {all[2]}));
  in.sets[0].v = in.sets[0].v.detach();
  CHECK_FALSE(in.run().requires_grad());
}

TEST_CASE("Sets of keys need no dense heads", "[ops][attention]") {
  at::manual_seed(12);
  Case in = picture_and_texts();
  const Tensor want = in.run();
  const auto turned = [](const Tensor& t) {
    return t.transpose(0, 2).contiguous().transpose(0, 2);
  };
  in.q = turned(in.q);
  for (KeySet& set : in.sets) set.k = turned(set.k), set.v = turned(set.v);
  REQUIRE(in.q.stride(2) != 1);
  CHECK(error(in.run(), want) < 1e-12);
}

TEST_CASE("A forced back end takes sets of keys, or says that it cannot", "[ops][attention]") {
  at::manual_seed(13);
  const Case in = picture_and_texts();
  for (const auto backend : {AttentionBackend::kMath, AttentionBackend::kFlash}) {
    const UseBackend use(backend);
    check(in);
  }
  for (const auto backend : {AttentionBackend::kCudnn, AttentionBackend::kEfficient}) {
    const UseBackend use(backend);
    const Error e = refused(in);
    CHECK(e.code() == ErrorCode::kUnsupported);
    CHECK(test::mentions(e, "needs a CUDA device"));
  }
}

TEST_CASE("Sets of keys keep their inputs, an output and one number a row and head",
          "[ops][attention]") {
  const Case in = picture_and_texts().trained(at::kFloat);
  const test::Bytes bytes;
  const Tensor out = in.run();
  CHECK(bytes.now() == static_cast<int64_t>(out.nbytes()) + in.q.size(0) * in.q.size(1) * 4);
}

TEST_CASE("Sets of keys are one item of what a block keeps", "[ops][attention][recompute]") {
  using Mode = RecomputeScope::Mode;
  at::manual_seed(14);
  const Case in = picture_and_texts().trained(at::kFloat);
  const Tensors want = test::gradients({in.run()}, in.leaves());
  for (const Action action : {Action::kRecompute, Action::kKeep, Action::kOffload, Action::kSkip}) {
    const ActionPlan plan = {action};
    std::vector<KeptOutput> kept;
    {
      const at::NoGradGuard no_grad;
      const RecomputeScope record(Mode::kRecord, plan, kept);
      in.run();
    }
    REQUIRE(kept.size() == 1);
    CHECK(kept[0].op == "attention.cpu_flash");
    const bool keeps = action == Action::kKeep || action == Action::kOffload;
    REQUIRE(kept[0].tensors.size() == (keeps ? 2 : 0));
    if (keeps) CHECK(kept[0].tensors[1].sizes() == at::IntArrayRef({in.q.size(0), in.q.size(1)}));
    const UseBackend in_between(AttentionBackend::kMath);
    const RecomputeScope replay(Mode::kReplay, plan, kept);
    CHECK(test::same_bits(test::gradients({in.run()}, in.leaves()), want));
  }
}

TEST_CASE("Sets of keys are counted without values", "[ops][attention][dry_run]") {
  const DryRun scope(at::kCPU);
  Case in = picture_and_texts();
  const auto meta = [](const Tensor& t) { return t.to(at::kFloat).to(at::kMeta); };
  in.q = meta(in.q).requires_grad_();
  for (KeySet& set : in.sets) {
    set.k = meta(set.k).requires_grad_();
    set.v = meta(set.v).requires_grad_();
    if (set.query_sees.defined()) {
      set.query_sees = set.query_sees.to(at::kMeta);
      set.key_groups = set.key_groups.to(at::kMeta);
    }
  }
  const Tensor out = in.run();
  CHECK(out.sizes() == at::IntArrayRef({15, 48}));
  const double flops = 4.0 * (6 * (6 + 4) + 9 * (9 + 5)) * 6 * 8;
  CHECK(scope.attention_flops() == flops);
  CHECK(scope.product_flops() == 0);
  const Tensors gradients = torch::autograd::grad({out}, in.leaves(), {at::empty_like(out)});
  CHECK(scope.attention_flops() == 3.5 * flops);
  CHECK(scope.product_flops() == 0);
  for (size_t i = 0; i < gradients.size(); ++i)
    CHECK(gradients[i].sizes() == in.leaves()[i].sizes());
}

TEST_CASE("Sets of keys that do not fit are refused", "[ops][attention]") {
  const auto says = [](const Case& in, const std::string& text) {
    const Error e = refused(in);
    CHECK(e.code() == ErrorCode::kInvalidArgument);
    CHECK(test::mentions(e, text));
  };
  says(Case(Segments({3}), 2, 4), "no set of keys");
  Case in = picture_and_texts();
  in.sets[1].score_bias = -INFINITY;
  says(in, "a score_bias of -inf");
  in = picture_and_texts();
  in.sets[1].key_groups = Tensor();
  says(in, "int64 [15] and [9]");
  in = picture_and_texts();
  in.sets[1].rows = Segments({4, 4});
  says(in, "segments of 15 and 8 rows");
  in = picture_and_texts();
  in.sets[0].rows = Segments({15});
  says(in, "2 and 1 segments");
  in = picture_and_texts();
  in.sets[0].v = in.sets[0].v.narrow(1, 0, 1);
  says(in, "do not fit");
}

}  // namespace atelier::ops
