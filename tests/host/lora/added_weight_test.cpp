#include "host/lora/added_weight.h"

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {
namespace {

using Form = Difference::Form;

Addition addition_of(Difference difference, double strength = 1.0) {
  return {.difference = std::make_shared<const Difference>(std::move(difference)),
          .strength = strength};
}

Difference low_rank(int64_t out, int64_t in, double scale = 1.0) {
  return {.first = {at::randn({out, 2}), at::randn({2, in})}, .scale = scale, .shape = {out, in}};
}

at::Tensor product(const Difference& of) {
  return at::mm(of.first.left, of.first.right);
}

// What a weight of `value` gives with `additions`.
at::Tensor drawn(const at::Tensor& value, std::vector<Addition> additions) {
  const WeightPtr weight = test::make_weight(value);
  set_additions(*weight, nullptr, std::move(additions));
  return weight->draw();
}

}  // namespace

TEST_CASE("Products, Hadamard and Kronecker products and whole differences are added", "[lora]") {
  at::manual_seed(1);
  const at::Tensor weight = at::randn({6, 8});
  const Difference lora = low_rank(6, 8, 0.5);
  CHECK(test::error(drawn(weight, {addition_of(lora, -2)}), weight - product(lora)) < 1e-6);
  Difference loha = low_rank(6, 8);
  loha.form = Form::kHadamard;
  loha.second = {at::randn({6, 2}), at::randn({2, 8})};
  CHECK(test::error(drawn(weight, {addition_of(loha)}),
                    weight + product(loha) * at::mm(loha.second.left, loha.second.right)) < 1e-6);
  const at::Tensor small = at::randn({2, 4}), left = at::randn({3, 1}), right = at::randn({1, 2});
  const Difference lokr = {.form = Form::kKronecker,
                           .first = {small, {}},
                           .second = {left, right},
                           .scale = 3,
                           .shape = {6, 8}};
  at::Tensor blocks = at::zeros({6, 8});
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t k = 0; k < 8; ++k)
      blocks[i][k] = small[i / 3][k / 2] * left[i % 3][0] * right[0][k % 2];
  }
  CHECK(test::error(drawn(weight, {addition_of(lokr)}), weight + 3 * blocks) < 1e-6);
  const at::Tensor bias = at::randn({6}), more = at::randn({6});
  CHECK(test::error(
            drawn(bias, {addition_of({.first = {more.to(at::kHalf), {}}, .shape = {6}}, 0.5)}),
            bias + 0.5 * more.to(at::kHalf).to(at::kFloat)) < 1e-6);
}

TEST_CASE("The sum of a weight that comes and goes is made at each draw, to the same bits",
          "[lora]") {
  at::manual_seed(1);
  const at::Tensor value = at::randn({6, 8});
  const Addition addition = addition_of(low_rank(6, 8, 0.5));
  const WeightPtr keeps = test::make_weight(value), makes = test::make_weight(value);
  set_additions(*keeps, nullptr, {addition});
  set_additions(*makes, nullptr, {addition}, /*keeps_sum=*/false);
  const at::Tensor sum = keeps->draw(), made = makes->draw();
  CHECK(at::equal(sum, made));
  CHECK(keeps->draw().is_same(sum));
  CHECK_FALSE(makes->draw().is_same(made));
  CHECK(added_bytes(*keeps) == static_cast<int64_t>(sum.nbytes()));
  CHECK(added_bytes(*makes) == 0);
}

TEST_CASE("DoRA gives the sum of weight and product the lengths that the file says", "[lora]") {
  at::manual_seed(2);
  const at::Tensor weight = at::randn({6, 8});
  for (const int along : {0, 1}) {
    INFO("along " << along);
    Difference dora = low_rank(6, 8, 0.7);
    dora.magnitude = along == 0 ? at::rand({6, 1}) + 0.5 : at::rand({1, 8}) + 0.5;
    const at::Tensor sum = weight + 0.7 * product(dora);
    const at::Tensor wanted =
        sum * dora.magnitude / sum.square().sum(1 - along, /*keepdim=*/true).sqrt();
    const at::Tensor got = drawn(weight, {addition_of(dora)});
    CHECK(test::error(got, wanted) < 1e-6);
    CHECK(test::error(got.norm(2, 1 - along), dora.magnitude.flatten()) < 1e-6);
    // Between none and all of it the way is straight.
    CHECK(test::error(drawn(weight, {addition_of(dora, 0.3)}), weight + 0.3 * (wanted - weight)) <
          1e-6);
  }
  Difference zero = {.first = {at::zeros({2, 3}), {}}, .shape = {2, 3}};
  zero.magnitude = at::ones({2, 1});
  CHECK(at::equal(drawn(at::zeros({2, 3}), {addition_of(zero)}), at::zeros({2, 3})));
}

TEST_CASE("What an addition adds does not depend on the others", "[lora]") {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({6, 8});
  Difference dora = low_rank(6, 8);
  dora.magnitude = at::rand({6, 1}) + 0.5;
  const Addition first = addition_of(dora, 0.8), second = addition_of(low_rank(6, 8), -1.2);
  const at::Tensor alone = drawn(weight, {first}) + drawn(weight, {second}) - weight;
  CHECK(test::error(drawn(weight, {first, second}), alone) < 1e-6);
  CHECK(test::error(drawn(weight, {second, first}), alone) < 1e-6);
}

TEST_CASE("A part of a difference is added to a part of a weight", "[lora]") {
  at::manual_seed(4);
  const at::Tensor weight = at::randn({6, 8});
  Difference fused = low_rank(9, 8);
  fused.magnitude = at::rand({9, 1}) + 0.5;
  Addition rows = addition_of(fused);
  rows.axis = 0;
  rows.difference_start = 4;
  rows.weight_start = 1;
  rows.length = 3;
  const at::Tensor sum = weight.narrow(0, 1, 3) + product(fused).narrow(0, 4, 3);
  at::Tensor wanted = weight.clone();
  wanted.narrow(0, 1, 3).copy_(sum * fused.magnitude.narrow(0, 4, 3) / sum.norm(2, 1, true));
  CHECK(test::error(drawn(weight, {rows}), wanted) < 1e-6);
  const Difference half = low_rank(6, 4);
  Addition columns = addition_of(half);
  columns.axis = 1;
  columns.weight_start = 4;
  columns.length = 4;
  wanted = weight.clone();
  wanted.narrow(1, 4, 4).add_(product(half));
  CHECK(test::error(drawn(weight, {columns}), wanted) < 1e-6);
}

TEST_CASE("The sum is rounded once, made once, and gone with its last addition", "[lora]") {
  at::manual_seed(5);
  const at::Tensor value = at::randn({32, 32}).to(at::kBFloat16);
  const WeightPtr weight = test::make_leased(value);
  const auto base = weight->state().store();
  const int owner = 0, other = 0;
  const Difference first = low_rank(32, 32, 0.01), second = low_rank(32, 32, 0.01);
  const Addition added = addition_of(first);
  test::Bytes live;
  set_additions(*weight, &owner, {added});
  set_additions(*weight, &other, {addition_of(second)});
  CHECK(added_bytes(*weight) == 0);
  const int drawn_before = test::LeasedStore::drawn;
  const at::Tensor wanted =
      (value.to(at::kFloat) + 0.01 * product(first) + 0.01 * product(second)).to(at::kBFloat16);
  CHECK(test::error(weight->draw(), wanted) < 0.004);
  CHECK(at::eq(weight->draw(), wanted).to(at::kFloat).mean().item<double>() > 0.99);
  CHECK(test::LeasedStore::drawn == drawn_before + 1);
  CHECK(test::LeasedStore::live == 0);
  CHECK(added_bytes(*weight) == 2 * 32 * 32);
  CHECK(at::equal(weight->draw_rows(at::tensor({3, 1})),
                  weight->draw().index_select(0, at::tensor({3, 1}))));

  const int64_t version = weight->state().version();  // nothing changes: the sum stays
  set_additions(*weight, &owner, {added});
  CHECK(weight->state().version() == version);
  set_additions(*weight, &owner, {});
  CHECK(test::error(weight->draw(), value.to(at::kFloat) + 0.01 * product(second)) < 0.004);
  set_additions(*weight, &other, {});
  CHECK(weight->state().store() == base);
  CHECK(at::equal(weight->draw(), value));
}

TEST_CASE("Nothing is added to a weight that is not loaded, or is trained", "[lora]") {
  Weight absent("weight", {6, 8});
  set_additions(absent, nullptr, {addition_of(low_rank(6, 8))});
  CHECK_FALSE(absent.is_loaded());
  const WeightPtr trained = test::make_weight(at::randn({6, 8}));
  trained->state().set_trainable(true);
  set_additions(*trained, nullptr, {});
  test::expect_error(ErrorCode::kUnsupported, {"\"weight\" is trained"},
                     [&] { set_additions(*trained, nullptr, {addition_of(low_rank(6, 8))}); });
  CHECK(trained->state().leaf().defined());
}

}  // namespace atelier::lora
