#include "atelier/segments.h"

#include "support/tensors.h"

namespace atelier {
namespace {

using at::Tensor;
using test::error;

Tensor join_reference(const Tensor& a, const Segments& a_rows, const Tensor& b,
                      const Segments& b_rows) {
  test::Tensors parts;
  for (int64_t s = 0; s < a_rows.count(); ++s) {
    parts.push_back(a.narrow(0, a_rows.offset(s), a_rows.length(s)));
    parts.push_back(b.narrow(0, b_rows.offset(s), b_rows.length(s)));
  }
  return at::cat(parts);
}

}  // namespace

TEST_CASE("Segments know offsets and lengths", "[segments]") {
  const Segments rows({3, 0, 5});
  CHECK(rows.count() == 3);
  CHECK(rows.total() == 8);
  CHECK(rows.offset(2) == 3);
  CHECK(rows.length(2) == 5);
  CHECK(rows.longest() == 5);
  CHECK_FALSE(rows.is_uniform());
  CHECK(Segments::uniform(4, 2).is_uniform());
  CHECK(Segments::uniform(4, 2).total() == 8);
  CHECK(Segments(std::vector<int64_t>{}).total() == 0);
  CHECK(at::equal(Segments::from_tensor(rows.tensor()).tensor(), rows.tensor()));
}

TEST_CASE("Segments refuse offsets that make no sense", "[segments]") {
  auto refused = [](const Tensor& offsets) {
    return test::error_of([&] { Segments::from_tensor(offsets); }).code() ==
           ErrorCode::kInvalidArgument;
  };
  CHECK(refused(at::tensor({0, 3, 2}, at::kLong)));
  CHECK(refused(at::tensor({1, 3}, at::kLong)));
  CHECK(refused(at::tensor({0, 3}, at::kInt)));
  CHECK(refused(at::zeros({0}, at::kLong)));
  CHECK(refused(Tensor()));
  CHECK(test::error_of([] { Segments({2, -1}); }).code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("Rows of two streams are joined sample by sample and split again", "[segments]") {
  at::manual_seed(0);
  const std::vector<std::pair<Segments, Segments>> shapes = {
      {Segments({4}), Segments({3})},
      {Segments({4, 4}), Segments({2, 2})},
      {Segments({4, 4}), Segments({2, 0})},
      {Segments({1, 5, 0}), Segments({3, 2, 2})},
      {Segments({0}), Segments({2})}};
  for (const auto& [a_rows, b_rows] : shapes) {
    INFO(a_rows.tensor() << b_rows.tensor());
    const Tensor a = test::trained(at::randn({a_rows.total(), 3, 2}, at::kDouble));
    const Tensor b = test::trained(at::randn({b_rows.total(), 3, 2}, at::kDouble));
    const Tensor joined = join_rows(a, a_rows, b, b_rows);
    const Tensor want = join_reference(a, a_rows, b, b_rows);
    CHECK(at::equal(joined, want));
    CHECK(error(test::gradients({joined}, {a, b}), test::gradients({want}, {a, b})) < 1e-14);
    CHECK(join(a_rows, b_rows).total() == joined.size(0));

    const Tensor whole = test::trained(joined);
    auto [left, right] = split_rows(whole, a_rows, b_rows);
    CHECK(at::equal(left, a));
    CHECK(at::equal(right, b));
    CHECK(left.is_contiguous());
    CHECK(error(test::gradients({join_rows(left, a_rows, right, b_rows)}, {whole}),
                test::gradients({whole * 1}, {whole})) < 1e-14);
    // One half unused: its rows get zeros.
    auto [only, unused] = split_rows(whole, a_rows, b_rows);
    const Tensor grad = test::gradients({only * 2}, {whole})[0];
    auto [left_grad, right_grad] = split_rows(grad, a_rows, b_rows);
    CHECK(error(left_grad, test::gradients({a * 2}, {a})[0]) < 1e-14);
    CHECK(at::equal(right_grad, at::zeros_like(b)));
    at::NoGradGuard no_grad;
    CHECK(at::equal(join_rows(a, a_rows, b, b_rows), want));
    CHECK(at::equal(split_rows(whole, a_rows, b_rows).second, b));
  }
}

TEST_CASE("Joining names what does not fit", "[segments]") {
  const Tensor a = at::zeros({4, 2});
  CHECK(test::error_of([&] {
          join_rows(a, Segments({4}), a, Segments({2, 2}));
        }).code() == ErrorCode::kInvalidArgument);
  CHECK(test::error_of([&] { join_rows(a, Segments({4}), a, Segments({3})); }).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(test::error_of([&] { split_rows(a, Segments({4}), Segments({1})); }).code() ==
        ErrorCode::kInvalidArgument);
}

}  // namespace atelier
