#include "atelier/ops/pointwise.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;
using Expression = std::function<Tensors(const Tensors&)>;

struct Case {
  std::string name;
  Tensors inputs;  // float64, all differentiable
  Expression run;
};

struct Outcome {
  Tensors values, gradients;
};

Outcome outcome(const Case& c, Kernels choice, at::ScalarType dtype) {
  set_kernels(choice);
  Tensors inputs;
  for (const Tensor& t : c.inputs) inputs.push_back(test::trained(t.to(dtype)));
  Outcome result;
  result.values = c.run(inputs);
  result.gradients = test::gradients(result.values, inputs);
  set_kernels(Kernels::kAuto);
  return result;
}

// The composed form in float64 of inputs rounded to `dtype`.
Outcome exact(const Case& c, at::ScalarType dtype) {
  Case rounded = c;
  for (Tensor& t : rounded.inputs) t = t.to(dtype).to(at::kDouble);
  return outcome(rounded, Kernels::kComposed, at::kDouble);
}

Tensor noise(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

// As many samples of other lengths, every third one empty.
Segments beside(const Segments& rows) {
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < rows.count(); ++s) lengths.push_back(s % 3 == 2 ? 0 : 3 + s);
  return Segments(lengths);
}

RopeStream stream(const Tensor& x, const Tensor& weight, const Tensor& angle,
                  const Segments& rows) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {x, weight, angle.cos().to(type), angle.sin().to(type), rows};
}

std::vector<Case> cases_of(const Segments& rows, int64_t width) {
  const int64_t n = rows.total(), s = rows.count();
  std::vector<Case> cases;
  cases.push_back(
      {"norm_modulate",
       {noise({n, width}) + 0.5, noise({s, width}), noise({s, width})},
       [rows](const Tensors& in) { return Tensors{norm_modulate(in[0], in[1], in[2], rows)}; }});
  // Six modulations in one tensor, as a linear layer gives them.
  cases.push_back({"norm_modulate of strided rows",
                   {noise({n, width}), noise({s, 6 * width})},
                   [rows, width](const Tensors& in) {
                     return Tensors{norm_modulate(in[0], in[1].narrow(1, width, width),
                                                  in[1].narrow(1, 4 * width, width), rows)};
                   }});
  cases.push_back(
      {"gate_residual",
       {noise({n, width}), noise({n, width}), noise({s, width})},
       [rows](const Tensors& in) { return Tensors{gate_residual(in[0], in[1], in[2], rows)}; }});
  cases.push_back({"gate_residual_norm_modulate",
                   {noise({n, width}), noise({n, width}), noise({s, width}), noise({s, width}),
                    noise({s, width})},
                   [rows](const Tensors& in) {
                     auto [sum, out] =
                         gate_residual_norm_modulate(in[0], in[1], in[2], in[3], in[4], rows);
                     return Tensors{sum, out};
                   }});
  cases.push_back({"gate_residual_norm_modulate, only the second used",
                   {noise({n, width}), noise({n, width}), noise({s, width}), noise({s, width}),
                    noise({s, width})},
                   [rows](const Tensors& in) {
                     return Tensors{std::get<1>(
                         gate_residual_norm_modulate(in[0], in[1], in[2], in[3], in[4], rows))};
                   }});
  cases.push_back({"layer_norm",
                   {noise({n, width}) + 0.5, noise({width}), noise({width})},
                   [](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2])}; }});
  cases.push_back({"layer_norm of a transposed tensor",
                   {noise({width, n, 2}), noise({width}), noise({width})},
                   [](const Tensors& in) {
                     return Tensors{layer_norm(in[0].permute({2, 1, 0}), in[1], in[2], 1e-6)};
                   }});
  cases.push_back({"rms_norm", {noise({n, width}), noise({width})}, [](const Tensors& in) {
                     return Tensors{rms_norm(in[0], in[1])};
                   }});
  cases.push_back({"rms_norm of a transposed tensor",
                   {noise({width, n, 2}), noise({width})},
                   [](const Tensors& in) {
                     return Tensors{rms_norm(in[0].permute({2, 1, 0}), in[1])};
                   }});
  const auto modulated = [rows](const Tensor& x, const Tensor& weight, const Tensor& scale) {
    return Tensors{rms_norm_modulate(x, weight, scale, rows, 1e-5)};
  };
  cases.push_back({"rms_norm_modulate",
                   {noise({n, width}), noise({width}), noise({s, width})},
                   [=](const Tensors& in) { return modulated(in[0], in[1], in[2]); }});
  cases.push_back({"rms_norm_modulate of a strided scale",
                   {noise({n, width}), noise({width}), noise({s, 4 * width})},
                   [=](const Tensors& in) {
                     return modulated(in[0], in[1], in[2].narrow(1, 2 * width, width));
                   }});
  cases.push_back({"rms_norm_modulate without scale",
                   {noise({n, width}), noise({width})},
                   [=](const Tensors& in) { return modulated(in[0], in[1], Tensor()); }});
  cases.push_back({"rms_gate_residual",
                   {noise({n, width}), noise({n, width}), noise({width}), noise({s, width})},
                   [rows](const Tensors& in) {
                     return Tensors{rms_gate_residual(in[0], in[1], in[2], in[3], rows, 1e-5)};
                   }});
  cases.push_back({"rms_gate_residual without gate",
                   {noise({n, width}), noise({n, width}), noise({width})},
                   [rows](const Tensors& in) {
                     return Tensors{rms_gate_residual(in[0], in[1], in[2], Tensor(), rows, 1e-5)};
                   }});
  for (const bool both : {true, false}) {
    cases.push_back({both ? "rms_gate_residual_norm_modulate"
                          : "rms_gate_residual_norm_modulate, only the second used",
                     {noise({n, width}), noise({n, width}), noise({width}), noise({s, width}),
                      noise({width}), noise({s, width})},
                     [rows, both](const Tensors& in) {
                       auto [sum, out] = rms_gate_residual_norm_modulate(in[0], in[1], in[2], in[3],
                                                                         in[4], in[5], rows, 1e-5);
                       return both ? Tensors{sum, out} : Tensors{out};
                     }});
  }
  cases.push_back({"rms_gate_residual_norm_modulate without gate and scale",
                   {noise({n, width}), noise({n, width}), noise({width}), noise({width})},
                   [rows](const Tensors& in) {
                     auto [sum, out] = rms_gate_residual_norm_modulate(
                         in[0], in[1], in[2], Tensor(), in[3], Tensor(), rows, 1e-5);
                     return Tensors{sum, out};
                   }});
  cases.push_back({"swiglu", {noise({n, width}) * 4, noise({n, width})}, [](const Tensors& in) {
                     return Tensors{swiglu(in[0], in[1])};
                   }});
  cases.push_back({"swiglu of halves", {noise({n, 3, 2 * width})}, [](const Tensors& in) {
                     auto parts = in[0].chunk(2, -1);
                     return Tensors{swiglu(parts[0], parts[1])};
                   }});
  cases.push_back({"gelu_tanh", {noise({n, width}) * 4}, [](const Tensors& in) {
                     return Tensors{gelu_tanh(in[0])};
                   }});
  for (RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalves}) {
    const Tensor angle = noise({n, width});
    auto rope = [layout, angle](const Tensor& x, const Tensor& weight) {
      const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      return Tensors{norm_rope(x, weight, angle.cos().to(type), angle.sin().to(type), layout)};
    };
    cases.push_back({"norm_rope",
                     {noise({n, 3, 2 * width}), noise({2 * width})},
                     [rope](const Tensors& in) { return rope(in[0], in[1]); }});
    cases.push_back({"rope alone, of a slice",
                     {noise({n, 3, 3, 2 * width})},
                     [rope](const Tensors& in) { return rope(in[0].select(1, 1), Tensor()); }});
    cases.push_back({"norm_rope of a slice",
                     {noise({n, 3, 3, 2 * width}), noise({2 * width})},
                     [rope](const Tensors& in) { return rope(in[0].select(1, 2), in[1]); }});
    const Segments others = beside(rows);
    const int64_t m = others.total();
    const Tensor other_angle = noise({m, width});
    const auto joined = [=](const Tensor& a, const Tensor& a_weight, const Tensor& b,
                            const Tensor& b_weight) {
      return Tensors{joined_norm_rope(stream(a, a_weight, angle, rows),
                                      stream(b, b_weight, other_angle, others), layout)};
    };
    cases.push_back({"joined_norm_rope",
                     {noise({n, 3, 2 * width}), noise({2 * width}), noise({m, 3, 2 * width}),
                      noise({2 * width})},
                     [joined](const Tensors& in) { return joined(in[0], in[1], in[2], in[3]); }});
    cases.push_back({"joined_norm_rope of slices, one without a norm",
                     {noise({n, 3, 3, 2 * width}), noise({m, 3, 3, 2 * width}), noise({2 * width})},
                     [joined](const Tensors& in) {
                       return joined(in[0].select(1, 1), Tensor(), in[1].select(1, 2), in[2]);
                     }});
  }
  for (bool silu : {false, true}) {
    cases.push_back(
        {"channel_norm", {noise({2, width, n, 3}), noise({width})}, [silu](const Tensors& in) {
           return Tensors{
               channel_norm(in[0].contiguous(at::MemoryFormat::ChannelsLast), in[1], silu)};
         }});
    cases.push_back(
        {"channel_norm, channels first",
         {noise({2, width, n, 3}), noise({width})},
         [silu](const Tensors& in) { return Tensors{channel_norm(in[0], in[1], silu)}; }});
  }
  return cases;
}

std::vector<Case> all_cases() {
  at::manual_seed(3);
  std::vector<Case> all;
  const std::vector<std::pair<Segments, int64_t>> shapes = {
      {Segments({5}), 7},       {Segments({4, 4}), 64}, {Segments({3, 0, 70, 1}), 33},
      {Segments({130, 70}), 4}, {Segments({200}), 300}, {Segments({0}), 8},
  };
  for (const auto& [rows, width] : shapes) {
    for (Case& c : cases_of(rows, width)) all.push_back(std::move(c));
  }
  return all;
}

}  // namespace

TEST_CASE("Fused kernels give the values and gradients of the composed form", "[ops][pointwise]") {
  for (const Case& c : all_cases()) {
    INFO(c.name << " on " << c.inputs[0].sizes());
    for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-11), std::pair(at::kFloat, 5e-6)}) {
      const Outcome fused = outcome(c, Kernels::kFused, dtype), want = exact(c, dtype);
      CHECK(error(fused.values, want.values) < bound);
      CHECK(error(fused.gradients, want.gradients) < bound);
      for (const Tensor& t : fused.values) CHECK(t.scalar_type() == dtype);
    }
  }
}

TEST_CASE("Fused kernels are at least as exact as the composed form in 16 bits",
          "[ops][pointwise]") {
  for (const Case& c : all_cases()) {
    INFO(c.name << " on " << c.inputs[0].sizes());
    for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Outcome want = exact(c, dtype), fused = outcome(c, Kernels::kFused, dtype);
      const Outcome composed = outcome(c, Kernels::kComposed, dtype);
      // One rounding of the result is the floor.
      const double floor = dtype == at::kHalf ? 6e-4 : 5e-3;
      CHECK(error(fused.values, want.values) <=
            std::max(floor, 1.05 * error(composed.values, want.values)));
      CHECK(error(fused.gradients, want.gradients) <=
            std::max(2 * floor, 1.05 * error(composed.gradients, want.gradients)));
    }
  }
}

TEST_CASE("Two streams that are rotated into their join have the bits of each joined behind it",
          "[ops][pointwise]") {
  at::manual_seed(5);
  for (const auto& a_rows : {Segments({70}), Segments({9, 9}), Segments({3, 0, 70, 1})}) {
    const Segments b_rows = beside(a_rows);
    const Tensor a_angle = noise({a_rows.total(), 8}), b_angle = noise({b_rows.total(), 8});
    for (const Kernels choice : {Kernels::kFused, Kernels::kComposed}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        set_kernels(choice);
        const Tensors in = {test::trained(noise({a_rows.total(), 2, 16}).to(dtype)),
                            test::trained(noise({b_rows.total(), 2, 16}).to(dtype)),
                            test::trained(noise({16}).to(dtype)),
                            test::trained(noise({16}).to(dtype))};
        const RopeStream a = stream(in[0], in[2], a_angle, a_rows),
                         b = stream(in[1], in[3], b_angle, b_rows);
        const auto layout = RopeLayout::kInterleaved;
        const Tensor joined = joined_norm_rope(a, b, layout),
                     apart = join_rows(norm_rope(a.x, a.weight, a.cos, a.sin, layout), a_rows,
                                       norm_rope(b.x, b.weight, b.cos, b.sin, layout), b_rows);
        CHECK(at::equal(joined, apart));
        const Tensors given = test::gradients({joined}, in), want = test::gradients({apart}, in);
        CHECK(test::same_bits({given[0], given[1]}, {want[0], want[1]}));
        // Kernels of a GPU add up the rows of each sample first.
        CHECK(error(given, want) < (dtype == at::kFloat ? 1e-6 : 8e-3));
        const at::NoGradGuard no_grad;
        CHECK(at::equal(joined_norm_rope(a, b, layout), apart));
        set_kernels(Kernels::kAuto);
      }
    }
  }
}

TEST_CASE("A frozen stream beside a trained one gets no gradient", "[ops][pointwise]") {
  at::manual_seed(6);
  const Segments rows({4, 2}), others({1, 3});
  const Tensor angle = noise({6, 4}), other_angle = noise({4, 4});
  const Tensor frozen = at::randn({6, 2, 8}), weight = at::randn({8});
  const Tensors in = {test::trained(at::randn({4, 2, 8})), test::trained(weight)};
  for (const Kernels choice : {Kernels::kFused, Kernels::kComposed}) {
    set_kernels(choice);
    const Tensor joined =
        joined_norm_rope(stream(frozen, weight, angle, rows),
                         stream(in[0], in[1], other_angle, others), RopeLayout::kHalves);
    const Tensors given = test::gradients({joined}, in);
    const Tensor apart = join_rows(norm_rope(frozen, weight, angle.cos().to(at::kFloat),
                                             angle.sin().to(at::kFloat), RopeLayout::kHalves),
                                   rows,
                                   norm_rope(in[0], in[1], other_angle.cos().to(at::kFloat),
                                             other_angle.sin().to(at::kFloat), RopeLayout::kHalves),
                                   others);
    CHECK(error(given, test::gradients({apart}, in)) < 1e-6);
    set_kernels(Kernels::kAuto);
  }
  CHECK(test::error_of([&] {
          joined_norm_rope(stream(frozen, weight, angle, rows),
                           stream(in[0], in[1], other_angle, Segments({4})), RopeLayout::kHalves);
        }).code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("Modulations and affine weights of float32 beside 16 bits are not rounded",
          "[ops][pointwise]") {
  at::manual_seed(7);
  for (const auto& rows : {Segments({40}), Segments({12, 12}), Segments({3, 0, 70, 1})}) {
    for (const Case& c : cases_of(rows, 48)) {
      const bool is_affine = c.name.starts_with("layer_norm");
      if (!is_affine && (c.inputs[0].dim() != 2 || c.name.find("modulate") == std::string::npos) &&
          c.name != "gate_residual" && c.name != "rms_gate_residual")
        continue;
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        INFO(c.name << " on " << c.inputs[0].sizes() << " " << toString(dtype));
        // Samples' rows, which are few, stay float32; so do the weights of a layer norm.
        const auto is_wide = [&](const Tensor& t) {
          return is_affine ? t.dim() == 1 : t.dim() == 2 && t.size(0) == rows.count();
        };
        Tensors mixed, exact;
        for (const Tensor& t : c.inputs) {
          mixed.push_back(test::trained(t.to(is_wide(t) ? at::kFloat : dtype)));
          exact.push_back(test::trained(mixed.back().to(at::kDouble)));
        }
        set_kernels(Kernels::kComposed);
        const Tensors want = c.run(exact), want_gradients = test::gradients(want, exact);
        for (const Kernels choice : {Kernels::kFused, Kernels::kComposed}) {
          set_kernels(choice);
          const Tensors values = c.run(mixed), gradients = test::gradients(values, mixed);
          const double floor = dtype == at::kHalf ? 1e-3 : 8e-3;
          CHECK(error(values, want) < floor);
          for (const Tensor& value : values) CHECK(value.scalar_type() == dtype);
          for (size_t i = 0; i < mixed.size(); ++i) {
            CHECK(gradients[i].scalar_type() == mixed[i].scalar_type());
            CHECK(error(gradients[i], want_gradients[i]) < 3 * floor);
          }
        }
        set_kernels(Kernels::kAuto);
      }
    }
  }
  // A step of a scale that 16 bits do not show.
  const Tensor x = at::randn({4, 8}).to(at::kBFloat16), zero = at::zeros({1, 8});
  const Tensor fine = at::full({1, 8}, 1.0 / 1024), rounded = (1 + fine).to(at::kBFloat16) - 1;
  REQUIRE(rounded.abs().max().item<double>() == 0);
  const Tensor normal = at::layer_norm(x.to(at::kFloat), {8}, {}, {}, 1e-6);
  CHECK(at::equal(norm_modulate(x, zero, fine, Segments({4})),
                  (normal * (1 + fine)).to(at::kBFloat16)));
}

TEST_CASE("Without gradients the same values come and no graph", "[ops][pointwise]") {
  for (const Case& c : all_cases()) {
    INFO(c.name << " on " << c.inputs[0].sizes());
    Tensors inputs;
    for (const Tensor& t : c.inputs) inputs.push_back(t.to(at::kFloat).requires_grad_());
    const Tensors tracked = c.run(inputs);
    at::NoGradGuard no_grad;
    const Tensors plain = c.run(inputs);
    CHECK(test::same_bits(tracked, plain));
    for (const Tensor& t : plain) CHECK_FALSE(t.requires_grad());
  }
}

TEST_CASE("Sums over rows do not depend on the number of threads", "[ops][pointwise][threads]") {
  at::manual_seed(5);
  for (const Case& c : cases_of(Segments({300, 500}), 48)) {
    INFO(c.name);
    const Outcome one = outcome(c, Kernels::kFused, at::kFloat);
    at::set_num_threads(2);
    const Outcome two = outcome(c, Kernels::kFused, at::kFloat);
    at::set_num_threads(1);
    CHECK(test::same_bits(one.values, two.values));
    CHECK(test::same_bits(one.gradients, two.gradients));
  }
}

TEST_CASE("Fused operators keep nothing but their inputs and outputs", "[ops][pointwise]") {
  at::manual_seed(0);
  for (const Case& c : cases_of(Segments({40, 24}), 32)) {
    INFO(c.name);
    Tensors inputs;
    for (const Tensor& t : c.inputs) inputs.push_back(test::trained(t.to(at::kFloat)));
    if (c.name.find("channel_norm") == 0) {
      inputs[0] = test::trained(inputs[0].contiguous(at::MemoryFormat::ChannelsLast));
    }
    test::Bytes bytes;
    Tensors outputs = c.run(inputs);
    int64_t expected = 0;
    for (const Tensor& t : outputs) expected += t.nbytes();
    // This one has saved its sum.
    if (c.name == "gate_residual_norm_modulate, only the second used")
      expected += inputs[0].nbytes();
    // The angles that norm_rope got are made inside the expression, and those of a second stream.
    if (c.name.find("rope") != std::string::npos) expected += 2 * 64 * 32 * 4;
    if (c.name.find("joined") == 0) expected += 2 * beside(Segments({40, 24})).total() * 32 * 4;
    CHECK(bytes.now() == expected);
    outputs.clear();
    CHECK(bytes.now() == 0);
  }
}

TEST_CASE("The exponential of the fused kernels holds over the whole range", "[ops][pointwise]") {
  const Tensor x = at::cat({at::linspace(-200, 200, 40001), at::linspace(-1, 1, 20001)});
  const Tensor one = at::ones_like(x);
  const Tensor want = at::silu(x.to(at::kDouble));
  const Tensor got = swiglu(x, one).to(at::kDouble);
  const Tensor tiny = want.abs() < 1e-30;
  CHECK((((got - want) / want).abs().masked_fill(tiny | (x == 0), 0).max().item<double>()) < 1e-6);
  CHECK((got - want).abs().masked_select(tiny).max().item<double>() < 1e-30);
  const Tensor odd = at::tensor({NAN, INFINITY, -1e30f});
  const Tensor values = gelu_tanh(odd);
  CHECK(std::isnan(values[0].item<float>()));
  CHECK(values[1].item<float>() == INFINITY);
  CHECK(std::abs(values[2].item<float>()) == 0);
}

TEST_CASE("bfloat16 results are rounded to the nearest, ties to even", "[ops][pointwise]") {
  // x + gate * y with gate = 2^-9: half a unit in the last place of 1 and of 1 + 2^-7.
  const Tensor x = at::tensor({1.0f, 1.0078125f, 1.0f}).to(at::kBFloat16).view({1, 3});
  const Tensor y = at::tensor({2.0f, 2.0f, 2.5f}).to(at::kBFloat16).view({1, 3});
  const Tensor gate = at::full({1, 3}, 0.001953125, at::kBFloat16);
  const Tensor out = gate_residual(x, y, gate, Segments({1})).to(at::kFloat);
  CHECK(at::equal(out, at::tensor({1.0f, 1.015625f, 1.0078125f}).view({1, 3})));
}

TEST_CASE("float16 values are read and rounded as LibTorch does, all of them", "[ops][pointwise]") {
  const Tensor bits = at::arange(65536, at::kInt).to(at::kShort).view({1, 65536});
  const Tensor x = bits.view(at::kHalf), zero = at::zeros_like(x);
  const Segments row({1});
  const Tensor same = gate_residual(x, zero, zero, row);
  CHECK(at::equal(same.isnan(), x.isnan()));
  CHECK(at::equal(same.nan_to_num(), x.nan_to_num()));
  // Products of every exponent: subnormal, exact halves between two values, too large.
  at::manual_seed(6);
  for (int i = 0; i < 20; ++i) {
    const Tensor y = x.nan_to_num(1, 2, 3),
                 gate = at::randn({1, 65536}).mul_(i - 10).exp2_().to(at::kHalf);
    const Tensor want = (y.to(at::kFloat) * gate.to(at::kFloat)).to(at::kHalf);
    CHECK(at::equal(gate_residual(zero, y, gate, row).nan_to_num(), want.nan_to_num()));
  }
}

TEST_CASE("RMS norm rounds the normal value before the weight", "[ops][pointwise]") {
  at::manual_seed(1);
  const Tensor x = at::randn({50, 96}).to(at::kBFloat16), w = at::randn({96}).to(at::kBFloat16);
  const Tensor wide = x.to(at::kFloat);
  const Tensor normal = (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-6)).to(at::kBFloat16);
  // A sum in another order moves a value across a rounding boundary now and then.
  CHECK((rms_norm(x, w) != normal * w).sum().item<int64_t>() < 5);
}

TEST_CASE("Pointwise operators name what does not fit", "[ops][pointwise]") {
  const Segments rows({2, 3});
  const Tensor x = at::zeros({5, 8}), m = at::zeros({2, 8});
  auto code = [](auto run) { return test::error_of(run).code(); };
  CHECK(code([&] { norm_modulate(x, m, at::zeros({3, 8}), rows); }) == ErrorCode::kInvalidArgument);
  CHECK(code([&] { norm_modulate(at::zeros({4, 8}), m, m, rows); }) == ErrorCode::kInvalidArgument);
  CHECK(code([&] { gate_residual(x, x, m.to(at::kHalf), rows); }) == ErrorCode::kInvalidArgument);
  CHECK(code([&] { norm_modulate(x, m, m.to(at::kDouble), rows); }) == ErrorCode::kInvalidArgument);
  const Tensor narrow = x.to(at::kBFloat16);
  CHECK(code([&] { norm_modulate(narrow, m, m.to(at::kBFloat16), rows); }) ==
        ErrorCode::kInvalidArgument);
  CHECK(code([&] { gate_residual(x, x, m.to(at::kDouble), rows); }) == ErrorCode::kInvalidArgument);
  CHECK(code([&] { rms_norm(x, at::zeros({7})); }) == ErrorCode::kInvalidArgument);
  CHECK(code([&] { layer_norm(x, at::zeros({8}), at::zeros({7})); }) ==
        ErrorCode::kInvalidArgument);
  CHECK(code([&] { layer_norm(x, at::zeros({8}), at::zeros({8}, at::kHalf)); }) ==
        ErrorCode::kInvalidArgument);
  CHECK(code([&] { swiglu(x, m); }) == ErrorCode::kInvalidArgument);
  CHECK(test::mentions(test::error_of([&] { swiglu(x, m); }), "Float[5, 8], Float[2, 8]"));
  set_kernels(Kernels::kFused);
  CHECK(code([&] { gelu_tanh(at::zeros({2}, at::kInt)); }) == ErrorCode::kUnsupported);
  set_kernels(Kernels::kAuto);
}

}  // namespace atelier::ops
