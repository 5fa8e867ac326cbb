#include "atelier/ops/attention.h"

#include "atelier/host/dry_run.h"

#include "support/tensors.h"
#include "support/use_backend.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;
using test::UseBackend;

// What a bias by offset adds to the scores of one sample: [H, L, S].
Tensor bias_of(const Tensor& by_offset, int64_t longest, int64_t rows, int64_t keys) {
  const Tensor offsets = at::arange(keys) - at::arange(rows).unsqueeze(1) + longest - 1;
  return by_offset.index_select(1, offsets.flatten()).unflatten(1, {rows, keys});
}

// Sample by sample, from products and a softmax.
Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& q_rows,
                 const Segments& k_rows, const AttentionOptions& options) {
  const double scale = options.scale == 0 ? 1 / std::sqrt(double(q.size(2))) : options.scale;
  const int64_t times = q.size(1) / k.size(1);
  Tensors parts;
  for (int64_t s = 0; s < q_rows.count(); ++s) {
    auto of = [&](const Tensor& t, const Segments& rows) {
      return t.narrow(0, rows.offset(s), rows.length(s));
    };
    auto heads = [&](const Tensor& t) {
      return of(t, k_rows).transpose(0, 1).repeat_interleave(times, 0);
    };
    Tensor weights = at::matmul(of(q, q_rows).transpose(0, 1) * scale, heads(k).transpose(1, 2));
    if (options.softcap > 0) weights = at::tanh(weights / options.softcap) * options.softcap;
    const int64_t length = q_rows.length(s), keys = k_rows.length(s);
    if (options.offset_bias.defined())
      weights = weights + bias_of(options.offset_bias, q_rows.longest(), length, keys);
    const Tensor all = at::ones({length, keys}, at::kBool);
    if (options.causal) weights = weights.masked_fill(all.triu(1), -INFINITY);
    if (options.window > 0) weights = weights.masked_fill(all.tril(-options.window), -INFINITY);
    Tensor seen = at::softmax(weights, -1);
    if (options.query_sees.defined()) {
      const Tensor apart = at::bitwise_and(of(options.query_sees, q_rows).unsqueeze(1),
                                           of(options.key_groups, k_rows)) == 0;
      // Rows that see nothing have weights of 0, and gradients of 0.
      seen = at::softmax(weights.masked_fill(apart, -1e300), -1).masked_fill(apart, 0);
    }
    parts.push_back(at::matmul(seen, heads(v)).transpose(0, 1).flatten(1));
  }
  return at::cat(parts);
}

Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                 const AttentionOptions& options) {
  return reference(q, k, v, rows, rows, options);
}

// Queries and keys of several samples, some without one or the other.
const std::vector<std::pair<Segments, Segments>> kCrossed = {
    {Segments({9}), Segments({5})},
    {Segments({6, 6}), Segments({3, 3})},
    {Segments({3, 0, 17, 5}), Segments({4, 2, 0, 9})},
    {Segments({4}), Segments({0})},
    {Segments({40, 300}), Segments({700, 8})},
};

Tensor sets(int64_t rows) {
  return at::randint(1, 8, {rows}, at::kLong);
}

// Checks values and gradients of q, k, v and the bias, in three dtypes, and both passes without
// gradients.
void check_crossed(const Segments& q_rows, const Segments& k_rows, int64_t heads, int64_t key_heads,
                   int64_t width, const AttentionOptions& options) {
  const int64_t nq = q_rows.total(), nk = k_rows.total();
  Tensors exact = {at::randn({nq, heads, width}, at::kDouble),
                   at::randn({nk, key_heads, width}, at::kDouble),
                   at::randn({nk, key_heads, width}, at::kDouble)};
  if (options.offset_bias.defined()) exact.push_back(options.offset_bias);
  for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                              std::pair(at::kBFloat16, 0.03)}) {
    INFO(q_rows.tensor() << k_rows.tensor() << heads << "/" << key_heads << " heads of " << width
                         << ", " << toString(dtype));
    Tensors in, wide;
    for (const Tensor& t : exact) {
      in.push_back(test::trained(t.to(dtype)));
      wide.push_back(test::trained(in.back().to(at::kDouble)));
    }
    AttentionOptions narrow = options, reference_options = options;
    if (in.size() > 3) narrow.offset_bias = in[3], reference_options.offset_bias = wide[3];
    const auto run = [&] { return attention(in[0], in[1], in[2], q_rows, k_rows, narrow); };
    const Tensor out = run();
    CHECK(out.sizes() == at::IntArrayRef({nq, heads * width}));
    CHECK(out.scalar_type() == dtype);
    const Tensor want = reference(wide[0], wide[1], wide[2], q_rows, k_rows, reference_options);
    CHECK(error(out, want) < bound);
    const Tensors gradients = test::gradients({out}, in);
    CHECK(error(gradients, test::gradients({want}, wide)) < bound);
    for (const Tensor& gradient : gradients) CHECK(gradient.scalar_type() == dtype);
    at::NoGradGuard no_grad;
    CHECK(at::equal(run(), out));
  }
}

}  // namespace

TEST_CASE("Attention equals its expression within each sample", "[ops][attention]") {
  at::manual_seed(0);
  const std::vector<Segments> shapes = {Segments({9}), Segments({6, 6}), Segments({1, 1, 1}),
                                        Segments({3, 0, 17, 5}), Segments({40, 700})};
  for (const Segments& rows : shapes) {
    for (auto [heads, keys, width] :
         {std::tuple(4, 4, 16), std::tuple(6, 2, 7), std::tuple(2, 1, 33)}) {
      for (AttentionOptions options :
           {AttentionOptions{}, AttentionOptions{true, 0.0}, AttentionOptions{false, 0.3},
            AttentionOptions{.softcap = 1.5},
            AttentionOptions{.causal = true, .scale = 0.4, .softcap = 0.8, .window = 4}}) {
        const int64_t n = rows.total();
        if (options.softcap > 0 && n > 100) continue;
        const Tensors exact = {at::randn({n, heads, width}, at::kDouble),
                               at::randn({n, keys, width}, at::kDouble),
                               at::randn({n, keys, width}, at::kDouble)};
        for (auto backend : {AttentionBackend::kAuto, AttentionBackend::kMath}) {
          if (backend == AttentionBackend::kMath && n > 100) continue;
          UseBackend use(backend);
          for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                                      std::pair(at::kBFloat16, 0.03)}) {
            INFO(rows.tensor() << heads << "/" << keys << " heads of " << width << ", causal "
                               << options.causal << ", cap " << options.softcap << ", "
                               << toString(dtype));
            Tensors in, wide;
            for (const Tensor& t : exact) {
              in.push_back(test::trained(t.to(dtype)));
              wide.push_back(test::trained(in.back().to(at::kDouble)));
            }
            const Tensor out = attention(in[0], in[1], in[2], rows, options);
            CHECK(out.sizes() == at::IntArrayRef({n, heads * width}));
            CHECK(out.is_contiguous());
            CHECK(out.scalar_type() == dtype);
            const Tensor want = reference(wide[0], wide[1], wide[2], rows, options);
            CHECK(error(out, want) < bound);
            CHECK(error(test::gradients({out}, in), test::gradients({want}, wide)) < bound);
            at::NoGradGuard no_grad;
            CHECK(at::equal(attention(in[0], in[1], in[2], rows, options), out));
          }
        }
      }
    }
  }
}

TEST_CASE("Attention between queries and keys equals its expression", "[ops][attention]") {
  at::manual_seed(2);
  for (const auto& [q_rows, k_rows] : kCrossed) {
    for (auto [heads, key_heads, width] : {std::tuple(4, 4, 16), std::tuple(6, 2, 7)}) {
      for (auto backend : {AttentionBackend::kAuto, AttentionBackend::kMath}) {
        UseBackend use(backend);
        check_crossed(q_rows, k_rows, heads, key_heads, width, {});
        check_crossed(q_rows, k_rows, heads, key_heads, width, {.scale = 0.3, .softcap = 1.5});
      }
    }
  }
}

TEST_CASE("A bias by offset and groups of keys equal their expressions", "[ops][attention]") {
  at::manual_seed(3);
  for (const auto& [q_rows, k_rows] : kCrossed) {
    const int64_t offsets = q_rows.longest() + k_rows.longest() - 1;
    for (auto [heads, key_heads] : {std::pair(4, 4), std::pair(6, 2)}) {
      const Tensor bias = at::randn({heads, offsets}, at::kDouble);
      const Tensor sees = sets(q_rows.total()), groups = sets(k_rows.total());
      check_crossed(q_rows, k_rows, heads, key_heads, 8, {.scale = 1.0, .offset_bias = bias});
      check_crossed(q_rows, k_rows, heads, key_heads, 8,
                    {.query_sees = sees, .key_groups = groups});
      check_crossed(
          q_rows, k_rows, heads, key_heads, 8,
          {.softcap = 2.0, .offset_bias = bias, .query_sees = sees, .key_groups = groups});
    }
  }
}

TEST_CASE("A causal sample takes a bias by offset", "[ops][attention]") {
  at::manual_seed(4);
  const Segments rows({7, 3});
  const Tensor q = test::trained(at::randn({10, 2, 8})), bias = test::trained(at::randn({2, 13}));
  const AttentionOptions options{.causal = true, .window = 4, .offset_bias = bias};
  const Tensor out = attention(q, q, q, rows, options), want = reference(q, q, q, rows, options);
  CHECK(error(out, want) < 1e-5);
  CHECK(error(test::gradients({out}, {q, bias}), test::gradients({want}, {q, bias})) < 1e-5);
}

TEST_CASE("A row that shares no group with a key gives zeros, and no gradient",
          "[ops][attention]") {
  at::manual_seed(5);
  const Tensor q = test::trained(at::randn({3, 2, 4})), k = test::trained(at::randn({4, 2, 4}));
  const AttentionOptions options{.query_sees = at::tensor({1, 0, 2}, at::kLong),
                                 .key_groups = at::tensor({1, 3, 1, 0}, at::kLong)};
  const Tensor out = attention(q, k, k, Segments({3}), Segments({4}), options);
  CHECK(at::equal(out[1], at::zeros({8})));
  CHECK(at::allclose(out[2], k[1].flatten()));  // the only key of its group
  const Tensors gradients = test::gradients({out}, {q, k});
  CHECK(at::equal(gradients[0][1], at::zeros({2, 4})));
  CHECK(at::equal(gradients[1][3], at::zeros({2, 4})));
  CHECK(gradients[0].isfinite().all().item<bool>());
}

TEST_CASE("Attention takes slices of a fused projection", "[ops][attention]") {
  at::manual_seed(1);
  for (const Segments& rows : {Segments({5, 5}), Segments({2, 8})}) {
    const Tensor qkv = test::trained(at::randn({10, 3, 2, 8}, at::kDouble));
    auto run = [&](auto f) { return f(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2)); };
    const Tensor out = run([&](auto q, auto k, auto v) { return attention(q, k, v, rows); });
    const Tensor want = run([&](auto q, auto k, auto v) { return reference(q, k, v, rows, {}); });
    CHECK(error(out, want) < 1e-12);
    CHECK(error(test::gradients({out}, {qkv}), test::gradients({want}, {qkv})) < 1e-12);
  }
  // The head axis need not be dense.
  const Tensor turned = at::randn({8, 2, 10}, at::kDouble).permute({2, 1, 0});
  const Segments rows({10});
  CHECK(error(attention(turned, turned, turned, rows),
              reference(turned, turned, turned, rows, {})) < 1e-12);
}

TEST_CASE("Attention keeps q, k, v, its output and one number a row and head", "[ops][attention]") {
  const Tensor q = test::trained(at::randn({24, 4, 8}));
  for (const Segments& rows : {Segments({12, 12}), Segments({20, 4})}) {
    test::Bytes bytes;
    const Tensor out = attention(q, q, q, rows);
    CHECK(bytes.now() == static_cast<int64_t>(out.nbytes()) + 24 * 4 * 4);
  }
}

TEST_CASE("An attention back end that cannot run here says so", "[ops][attention]") {
  const Tensor q = at::randn({4, 2, 8});
  for (auto backend : {AttentionBackend::kCudnn, AttentionBackend::kEfficient}) {
    UseBackend use(backend);
    const Error e = test::error_of([&] { attention(q, q, q, Segments({4})); });
    CHECK(e.code() == ErrorCode::kUnsupported);
    CHECK(test::mentions(e, "needs a CUDA device"));
  }
  UseBackend use(AttentionBackend::kFlash);
  CHECK(attention(q, q, q, Segments({4})).defined());
}

TEST_CASE("Attention names shapes that do not fit", "[ops][attention]") {
  const Tensor q = at::randn({4, 6, 8});
  auto code = [&](const Tensor& k, const Segments& rows) {
    return test::error_of([&] { attention(q, k, k, rows); }).code();
  };
  CHECK(code(at::randn({4, 4, 8}), Segments({4})) == ErrorCode::kInvalidArgument);
  CHECK(code(q, Segments({5})) == ErrorCode::kInvalidArgument);
  CHECK(code(at::randn({4, 6, 7}), Segments({4})) == ErrorCode::kInvalidArgument);
  CHECK(attention(q.narrow(0, 0, 0), q.narrow(0, 0, 0), q.narrow(0, 0, 0), Segments({0})).sizes() ==
        at::IntArrayRef({0, 48}));
}

TEST_CASE("Scores with a cap are made tile by tile and give the same", "[ops][attention]") {
  at::manual_seed(1);
  const int64_t n = 2100;  // 4 heads: more scores than one tile holds
  const Segments rows({n});
  const Tensors in = {test::trained(at::randn({n, 4, 8})), test::trained(at::randn({n, 2, 8})),
                      test::trained(at::randn({n, 2, 8}))};
  const AttentionOptions options{.causal = true, .softcap = 2.0, .window = 100};
  const Tensor out = attention(in[0], in[1], in[2], rows, options);
  const Tensor want = reference(in[0], in[1], in[2], rows, options);
  CHECK(error(out, want) < 1e-5);
  CHECK(error(test::gradients({out}, in), test::gradients({want}, in)) < 1e-5);
}

TEST_CASE("A bias by offset and groups are made tile by tile and give the same",
          "[ops][attention]") {
  at::manual_seed(1);
  const int64_t nq = 1500, nk = 1400;  // 4 heads: more scores than one tile holds
  const Tensors in = {test::trained(at::randn({nq, 4, 8})), test::trained(at::randn({nk, 2, 8})),
                      test::trained(at::randn({nk, 2, 8})),
                      test::trained(at::randn({4, nq + nk - 1}))};
  const AttentionOptions options{
      .offset_bias = in[3], .query_sees = sets(nq), .key_groups = sets(nk)};
  const Tensor out = attention(in[0], in[1], in[2], Segments({nq}), Segments({nk}), options);
  const Tensor want = reference(in[0].to(at::kDouble), in[1].to(at::kDouble), in[2].to(at::kDouble),
                                Segments({nq}), Segments({nk}), options);
  CHECK(error(out, want) < 1e-5);
  CHECK(error(test::gradients({out}, in), test::gradients({want}, in)) < 1e-5);
}

TEST_CASE("A bias by offset and groups are counted without values", "[ops][attention]") {
  const ops::DryRun scope(at::kCPU);
  const auto meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const Tensor q = at::empty({9, 4, 8}, meta).requires_grad_();
  const Tensor k = at::empty({11, 2, 8}, meta).requires_grad_();
  const Tensor bias = at::empty({4, 6 + 7 - 1}, meta).requires_grad_();
  const AttentionOptions options{.offset_bias = bias,
                                 .query_sees = at::empty({9}, meta.dtype(at::kLong)),
                                 .key_groups = at::empty({11}, meta.dtype(at::kLong))};
  const Tensor out = attention(q, k, k, Segments({6, 3}), Segments({4, 7}), options);
  CHECK(out.sizes() == at::IntArrayRef({9, 32}));
  CHECK(scope.attention_flops() == 4.0 * (6 * 4 + 3 * 7) * 4 * 8);
  const Tensors gradients = torch::autograd::grad({out}, {q, k, bias}, {at::empty_like(out)});
  CHECK(gradients[0].sizes() == q.sizes());
  CHECK(gradients[1].sizes() == k.sizes());
  CHECK(gradients[2].sizes() == bias.sizes());
}

TEST_CASE("Queries and keys that do not fit are refused", "[ops][attention]") {
  const Tensor q = at::zeros({4, 2, 8}), k = at::zeros({6, 2, 8});
  const Segments q_rows({4}), k_rows({6});
  const auto refused = [&](const Segments& queries, const Segments& keys,
                           const AttentionOptions& options, const std::string& text) {
    const Error e = test::error_of([&] { attention(q, k, k, queries, keys, options); });
    CHECK(e.code() == ErrorCode::kInvalidArgument);
    CHECK(test::mentions(e, text));
  };
  refused(Segments({2, 2}), k_rows, {}, "2 and 1 segments of 4 and 6 rows");
  refused(q_rows, q_rows, {}, "segments of 4 and 4 rows");
  refused(q_rows, k_rows, {.causal = true}, "causal");
  refused(q_rows, k_rows, {.offset_bias = at::zeros({2, 10})}, "expected [2, 9]");
  refused(q_rows, k_rows, {.offset_bias = at::zeros({2, 9}, at::kLong)}, "Long[2, 9]");
  const Tensor four = at::zeros({4}, at::kLong), six = at::zeros({6}, at::kLong);
  refused(q_rows, k_rows, {.query_sees = four}, "int64 [4] and [6]");
  refused(q_rows, k_rows, {.key_groups = six}, "int64 [4] and [6]");
  refused(q_rows, k_rows, {.query_sees = six, .key_groups = four}, "int64 [4] and [6]");
  refused(q_rows, k_rows, {.query_sees = four.to(at::kInt), .key_groups = six}, "int64");
}

TEST_CASE("Scores with a cap and a window are counted without values", "[ops][attention]") {
  const ops::DryRun scope(at::kCPU);
  const auto meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const Tensor q = at::empty({9, 4, 8}, meta), k = at::empty({9, 2, 8}, meta);
  const Tensor out =
      ops::attention(q, k, k, Segments({6, 3}), {.causal = true, .softcap = 50.0, .window = 4});
  CHECK(out.sizes() == at::IntArrayRef({9, 32}));
  CHECK(scope.attention_flops() > 0);
}

TEST_CASE("A window without causal and a negative cap are refused", "[ops][attention]") {
  const Tensor x = at::zeros({3, 1, 4});
  const Segments rows({3});
  for (const AttentionOptions& options :
       {AttentionOptions{.window = 2}, AttentionOptions{.causal = true, .window = -1},
        AttentionOptions{.softcap = -1}}) {
    const Error e = test::error_of([&] { attention(x, x, x, rows, options); });
    CHECK(e.code() == ErrorCode::kInvalidArgument);
  }
}

}  // namespace atelier::ops
