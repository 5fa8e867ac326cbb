// Attention on a device, with every back end that runs there, and in float64 on the CPU.
#include "atelier/ops/attention.h"

#include <optional>

#include "gpu/device.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::noise;
using test::Operator;
using test::Tensors;
using test::Traced;

struct Heads {
  int64_t queries, keys, width;
};

// Heads of Qwen-Image and of Lumina-Image 2.0.
std::vector<Heads> some_heads() {
  if (test::has_model_shapes()) return {{24, 24, 128}, {24, 8, 96}};
  return {{4, 4, 32}, {6, 2, 24}};
}

int64_t times() {
  return test::has_model_shapes() ? 16 : 1;
}

// Rows of queries and of keys.
struct Rows {
  std::string name;
  Segments queries, keys;
};

std::vector<Rows> kinds_of_rows() {
  const int64_t t = times();
  const auto alike = [](std::string name, const Segments& rows) {
    return Rows{std::move(name), rows, rows};
  };
  return {alike("equal lengths", Segments({40 * t, 40 * t})),
          alike("unequal lengths", Segments({37 * t, 3, 50 * t})),
          alike("a sample without rows", Segments({17 * t, 0, 21 * t})),
          {"keys of another length", Segments({30 * t, 8 * t}), Segments({11 * t, 26 * t})}};
}

Operator attention_of(const Rows& rows, const Heads& heads, const AttentionOptions& options) {
  const auto run = [rows, options](const Tensors& in) {
    AttentionOptions there = options;
    for (Tensor* t : {&there.query_sees, &there.key_groups}) {
      if (t->defined()) *t = t->to(in[0].device());
    }
    Tensors inputs(in.begin(), in.begin() + 3);
    if (in.size() > 3) {
      there.offset_bias = in[3];
      inputs.push_back(in[3]);
    }
    return Traced{{attention(in[0], in[1], in[2], rows.queries, rows.keys, there)}, inputs};
  };
  const int64_t nq = rows.queries.total(), nk = rows.keys.total();
  return {c10::str("attention, ", rows.name, ", ", heads.queries, " and ", heads.keys, " heads of ",
                   heads.width),
          {noise({nq, heads.queries, heads.width}), noise({nk, heads.keys, heads.width}),
           noise({nk, heads.keys, heads.width})},
          run,
          /*slack=*/2.0,
          /*repeats=*/false};
}

// Nothing where the back end says that it cannot run there.
std::optional<test::Comparison> compared_there(const Operator& op, at::ScalarType dtype) {
  try {
    return test::compare(op, dtype, test::device());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return std::nullopt;
  }
}

struct Forced {
  explicit Forced(AttentionBackend backend) { set_attention_backend(backend); }
  ~Forced() { set_attention_backend(AttentionBackend::kAuto); }
};

// `op` in float64 is that of the CPU's formula, whatever is forced. Returns whether bfloat16 ran.
bool check_backend(AttentionBackend backend, const Operator& op) {
  bool ran = false;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Operator forced = op;
    forced.run = [&](const Tensors& in) {
      const bool is_exact = in[0].scalar_type() == at::kDouble;
      const Forced choice(is_exact ? AttentionBackend::kMath : backend);
      return op.run(in);
    };
    const std::optional<test::Comparison> found = compared_there(forced, dtype);
    if (!found) continue;
    ran |= dtype == at::kBFloat16;
    INFO(op.name << ", back end " << static_cast<int>(backend) << ", " << toString(dtype)
                 << ": values " << found->value_error << ", gradients " << found->gradient_error);
    CHECK(found->value_error <= test::bound(dtype) * op.slack);
    CHECK(found->gradient_error <= 2 * test::bound(dtype) * op.slack);
    CHECK(found->values_repeat);
  }
  return ran;
}

}  // namespace

TEST_CASE("Attention equals float64 on the CPU", "[gpu][attention]") {
  at::manual_seed(1);
  for (const Heads& heads : some_heads()) {
    for (const Rows& rows : kinds_of_rows()) test::check(attention_of(rows, heads, {}));
    const Rows rows = kinds_of_rows()[1];
    test::check(attention_of(rows, heads, {.causal = true, .scale = 0.3}));
  }
}

TEST_CASE("Each back end that a device has equals float64 on the CPU", "[gpu][attention]") {
  at::manual_seed(2);
  using enum AttentionBackend;
  int known = 0;
  for (const AttentionBackend backend : {kFlash, kEfficient, kCudnn, kMath}) {
    for (const Heads& heads : some_heads()) {
      for (const Rows& rows : {kinds_of_rows()[0], kinds_of_rows()[1]}) {
        known += check_backend(backend, attention_of(rows, heads, {}));
      }
    }
  }
  CHECK(known >= (test::device().is_cpu() ? 8 : 12));
}

TEST_CASE("Caps, windows, biases and groups of keys equal float64 on the CPU", "[gpu][attention]") {
  at::manual_seed(3);
  const Heads heads = some_heads()[1];
  const Rows rows = kinds_of_rows()[1];
  const int64_t longest = rows.queries.longest();
  const auto groups = [](const Segments& of) {
    return at::bitwise_left_shift(at::ones({of.total()}, at::kLong),
                                  at::randint(3, {of.total()}, at::kLong));
  };
  test::check(attention_of(rows, heads, {.softcap = 2.0}));
  test::check(attention_of(rows, heads, {.causal = true, .window = 9}));
  Operator biased = attention_of(rows, heads, {});
  biased.inputs.push_back(noise({heads.queries, 2 * longest - 1}));
  test::check(biased);
  test::check(attention_of(rows, heads,
                           {.query_sees = groups(rows.queries), .key_groups = groups(rows.keys)}));
}

TEST_CASE("Sets of keys under one softmax equal float64 on the CPU", "[gpu][attention]") {
  at::manual_seed(4);
  for (const Heads& heads : some_heads()) {
    const Rows rows = kinds_of_rows()[1];
    const int64_t nq = rows.queries.total(), nk = rows.keys.total();
    const Tensor sees = at::randint(0, 4, {nq}, at::kLong),
                 groups = at::randint(1, 4, {nk}, at::kLong);
    Operator merged = attention_of(rows, heads, {});
    for (int i = 0; i < 2; ++i) merged.inputs.push_back(noise({nk, heads.keys, heads.width}));
    merged.run = [=](const Tensors& in) {
      const at::Device device = in[0].device();
      const std::vector<KeySet> sets = {
          {in[1], in[2], rows.keys},
          {in[3], in[4], rows.keys, sees.to(device), groups.to(device), 0.5}};
      return Traced{{attention(in[0], rows.queries, sets)}, in};
    };
    test::check(merged);
  }
}

}  // namespace atelier::ops
