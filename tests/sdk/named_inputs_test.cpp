#include "atelier/named_inputs.h"

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

using namespace atelier;
using Catch::Matchers::Contains;

TEST_CASE("Named tensors are there, with their number of axes, or an error names them", "[named]") {
  const NamedTensors inputs = {{"latents", at::zeros({2, 16, 1, 4, 4})}};
  CHECK(named_tensor(inputs, "latents", 5).is_same(inputs.at("latents")));
  CHECK_THROWS_WITH(named_tensor(inputs, "latents", 4),
                    Contains("tensor 'latents': shape [2, 16, 1, 4, 4], 4 axes expected"));
  CHECK_THROWS_WITH(named_tensor(inputs, "sigma", 1), Contains("tensor 'sigma' is missing"));
  CHECK_NOTHROW(allow_only(inputs, {"sigma", "latents"}));
  CHECK_THROWS_WITH(allow_only(inputs, {"sigma", "image"}),
                    Contains("tensor 'latents' is not known here; the tensors are sigma, image"));
}

TEST_CASE("Lengths count rows from 1 to all of them", "[named]") {
  NamedTensors inputs;
  CHECK(lengths_of(inputs, "lengths", 2, 5) == std::vector<int64_t>{5, 5});
  inputs["lengths"] = at::tensor({1, 5}, at::kLong);
  CHECK(lengths_of(inputs, "lengths", 2, 5) == std::vector<int64_t>{1, 5});
  inputs["lengths"] = at::tensor({1.5, 5.0}, at::kFloat);
  CHECK_THROWS_WITH(lengths_of(inputs, "lengths", 2, 5),
                    Contains("tensor 'lengths': int64 expected"));
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{0, 5}, std::vector<int64_t>{1, 6}, std::vector<int64_t>{1}}) {
    inputs["lengths"] = at::tensor(wrong, at::kLong);
    CHECK_THROWS_WITH(lengths_of(inputs, "lengths", 2, 5),
                      Contains("tensor 'lengths': 2 lengths from 1 to 5 expected"));
  }
}

TEST_CASE("Packed rows are the first ones of each sample", "[named]") {
  const at::Tensor padded = at::arange(12).reshape({2, 3, 2});
  const at::Tensor packed = pack_rows(padded, {1, 2});
  CHECK(at::equal(packed, at::tensor({0, 1, 6, 7, 8, 9}, at::kLong).reshape({3, 2})));
}
