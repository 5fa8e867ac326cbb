#include "atelier/named_inputs.h"

#include <ATen/ATen.h>

#include "support/catch.h"

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

TEST_CASE("Padding gives packed rows their batch back", "[named]") {
  const at::Tensor packed = at::arange(1, 7).reshape({3, 2});
  const at::Tensor padded = pad_rows(packed, Segments({1, 2}), 3);
  CHECK(padded.sizes() == at::IntArrayRef({2, 3, 2}));
  CHECK(at::equal(pack_rows(padded, {1, 2}), packed));
  CHECK(padded[0].narrow(0, 1, 2).abs().max().item<int64_t>() == 0);
}

TEST_CASE("An entry of all samples is packed, and missed by its name", "[named]") {
  const Conditioning a = {{"prompt", at::zeros({2, 3})}}, b = {{"prompt", at::ones({1, 3})}}, c;
  const Conditioning *both[] = {&a, &b}, *one[] = {&a}, *none[] = {&c};
  const PackedRows packed = pack_entry(both, "prompt");
  CHECK(packed.lengths == std::vector<int64_t>{2, 1});
  CHECK(packed.rows.offset(1) == 2);
  CHECK(packed.values.sum().item<double>() == 3);
  CHECK(pack_entry(one, "prompt").values.is_same(a.at("prompt")));
  CHECK_THROWS_WITH(pack_entry(none, "prompt"), Contains("tensor 'prompt' is missing"));
}

TEST_CASE("Inputs are found by name and kind", "[named]") {
  const Inputs inputs = {{"prompt", std::string("a cat")}, {"count", int64_t{2}}};
  CHECK(text_input(inputs, "prompt") == "a cat");
  CHECK(*find_input<int64_t>(inputs, "count") == 2);
  CHECK(find_input<double>(inputs, "count") == nullptr);
  CHECK(find_input<bool>(inputs, "flag") == nullptr);
  CHECK_THROWS_WITH(text_input(inputs, "count"), Contains("count: missing, or not a text"));
}
