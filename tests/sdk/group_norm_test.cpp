#include "atelier/ops/pointwise.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::Tensors;

// Group by group, from means and variances.
Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t groups,
                 double eps, bool silu) {
  const Tensor parts = x.reshape({x.size(0), groups, -1});
  const Tensor centred = parts - parts.mean(-1, /*keepdim=*/true);
  const Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
  const Tensor y = (centred / at::sqrt(variance + eps)).view(x.sizes()) * weight.view({-1, 1, 1}) +
                   bias.view({-1, 1, 1});
  return silu ? y * at::sigmoid(y) : y;
}

}  // namespace

TEST_CASE("Group norm equals its expression, values and gradients", "[ops][pointwise]") {
  at::manual_seed(0);
  for (const bool silu : {false, true}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      for (auto [dtype, bound] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5),
                                  std::pair(at::kBFloat16, 0.03)}) {
        INFO("SiLU " << silu << ", " << format << ", " << toString(dtype));
        Tensors in, wide;
        for (const Tensor& t : {at::randn({2, 12, 5, 7}) + 0.5, at::randn({12}), at::randn({12})}) {
          const Tensor value = t.to(dtype);
          in.push_back(test::trained(t.dim() == 4 ? value.contiguous(format) : value));
          wide.push_back(test::trained(in.back().to(at::kDouble).contiguous()));
        }
        const Tensor out = group_norm(in[0], in[1], in[2], 4, 1e-6, silu);
        CHECK(out.scalar_type() == dtype);
        CHECK(out.is_contiguous(format));
        const Tensor want = reference(wide[0], wide[1], wide[2], 4, 1e-6, silu);
        CHECK(error(out, want) < bound);
        CHECK(error(test::gradients({out}, in), test::gradients({want}, wide)) < bound);
        at::NoGradGuard no_grad;
        CHECK(at::equal(group_norm(in[0], in[1], in[2], 4, 1e-6, silu), out));
      }
    }
  }
}

TEST_CASE("Group norm saves its inputs alone", "[ops][pointwise]") {
  const Tensor x = test::trained(at::randn({1, 8, 6, 6})), weight = test::trained(at::randn({8})),
               bias = test::trained(at::randn({8}));
  test::Bytes bytes;
  Tensor out = group_norm(x, weight, bias, 2, 1e-6, /*silu=*/true);
  CHECK(bytes.now() == static_cast<int64_t>(out.nbytes()));
  out = Tensor();
  CHECK(bytes.now() == 0);
}

TEST_CASE("Groups that do not divide the channels are refused", "[ops][pointwise]") {
  const Tensor x = at::zeros({1, 8, 2, 2}), weight = at::zeros({8});
  const Error e = test::error_of([&] { group_norm(x, weight, weight, 3, 1e-6, /*silu=*/false); });
  CHECK(e.code() == ErrorCode::kInvalidArgument);
  CHECK(test::mentions(e, "3 groups"));
}

}  // namespace atelier::ops
