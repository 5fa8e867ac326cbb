#include "atelier/ops/attention.h"

#include "atelier/ops/dry_run.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;

// Sample by sample, from products and a softmax.
Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                 AttentionOptions options) {
  const double scale = options.scale == 0 ? 1 / std::sqrt(double(q.size(2))) : options.scale;
  const int64_t times = q.size(1) / k.size(1);
  Tensors parts;
  for (int64_t s = 0; s < rows.count(); ++s) {
    auto heads = [&](const Tensor& t) {
      return t.narrow(0, rows.offset(s), rows.length(s)).transpose(0, 1);
    };
    const Tensor keys = heads(k).repeat_interleave(times, 0);
    Tensor weights = at::matmul(heads(q) * scale, keys.transpose(1, 2));
    if (options.softcap > 0) weights = at::tanh(weights / options.softcap) * options.softcap;
    const Tensor all = at::ones({rows.length(s), rows.length(s)}, at::kBool);
    if (options.causal) weights = weights.masked_fill(all.triu(1), -INFINITY);
    if (options.window > 0) weights = weights.masked_fill(all.tril(-options.window), -INFINITY);
    parts.push_back(at::matmul(at::softmax(weights, -1), heads(v).repeat_interleave(times, 0))
                        .transpose(0, 1)
                        .flatten(1));
  }
  return at::cat(parts);
}

struct UseBackend {
  explicit UseBackend(AttentionBackend backend) { set_attention_backend(backend); }
  ~UseBackend() { set_attention_backend(AttentionBackend::kAuto); }
};

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
