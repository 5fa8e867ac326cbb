#include "atelier/part_view.h"

#include "atelier/error.h"

#include "support/tensors.h"

namespace atelier {
namespace {

using test::expect_error;

using Reals = std::vector<double>;
using Texts = std::vector<std::string>;

TensorIndex index_of(TensorIndex::Config config = {}) {
  return TensorIndex({{"model.in.weight", {at::kFloat, {12, 6}}},
                      {"model.blocks.0.q.weight", {at::kFloat, {12}}},
                      {"model.blocks.1.q.weight", {at::kFloat, {12}}},
                      {"other.in.weight", {at::kChar, {4, 4}}}},
                     std::move(config));
}

}  // namespace

TEST_CASE("A part is read behind its prefix, and errors name tensors as the file does",
          "[detect]") {
  const TensorIndex index = index_of();
  const PartView view(index, "model.", "DiT");
  CHECK(view.contains("in.weight"));
  CHECK_FALSE(view.contains("model.in.weight"));
  CHECK(view.block_count("blocks.{}.q.weight") == 2);
  CHECK(view.dim("in.weight", 1) == 6);
  CHECK(view.parts("in.weight", 0, 4) == 3);
  expect_error(ErrorCode::kNotFound, {"\"model.out.weight\": missing from the DiT", "every shard"},
               [&] { view.dim("out.weight", 0); });
  expect_error(ErrorCode::kInvalidArgument, {"\"model.in.weight\": has 2 axes"},
               [&] { view.dim("in.weight", 2); });
  expect_error(ErrorCode::kInvalidArgument,
               {"the DiT has 12 in tensor \"model.in.weight\"", "of 5"},
               [&] { view.parts("in.weight", 0, 5); });
  expect_error(ErrorCode::kUnsupported, {"this is a cat", "give a dog"},
               [] { refuse_kind("a cat", "give a dog"); });
}

TEST_CASE("The first prefix that a marker stands behind is taken", "[detect]") {
  constexpr std::string_view kPrefixes[] = {"", "model.", "other."},
                             kMarkers[] = {"x", "in.weight"};
  CHECK(find_prefix(index_of(), kPrefixes, kMarkers) == "model.");
  CHECK_FALSE(find_prefix(index_of(), {kPrefixes, 1}, kMarkers));
}

TEST_CASE("A spelling is found by all of its markers, the original one first", "[detect]") {
  constexpr std::string_view kPrefixes[] = {"", "model."},
                             kBoth[] = {"in.weight", "blocks.0.q.weight"}, kOne[] = {"in.weight"},
                             kAbsent[] = {"in.weight", "out.weight"};
  const auto original = find_spelling(index_of(), kPrefixes, kBoth, kOne);
  REQUIRE(original);
  CHECK(original->prefix == "model.");
  CHECK(original->name() == std::string("original"));
  const auto diffusers = find_spelling(index_of(), kPrefixes, kAbsent, kOne);
  REQUIRE(diffusers);
  CHECK(diffusers->of("wq", "to_q") == std::string("to_q"));
  CHECK_FALSE(find_spelling(index_of(), kPrefixes, kAbsent, kAbsent));
}

TEST_CASE("Unsupported kinds are refused by a tensor of the part or a flag that is on",
          "[detect]") {
  constexpr UnsupportedKind kKinds[] = {{"extra.weight", "a cat", "give a dog"},
                                        {"use_cats", "many cats", "give dogs"}};
  const TensorIndex off = index_of({{"use_cats", false}}), on = index_of({{"use_cats", true}});
  CHECK_NOTHROW(PartView(off, "model.", "DiT").refuse_kinds(kKinds));
  expect_error(ErrorCode::kUnsupported, {"this is many cats", "give dogs"},
               [&] { PartView(on, "model.", "DiT").refuse_kinds(kKinds); });
  const TensorIndex extra({{"model.extra.weight", {at::kFloat, {1}}}});
  CHECK_NOTHROW(PartView(extra, "", "DiT").refuse_kinds(kKinds));
  expect_error(ErrorCode::kUnsupported, {"this is a cat", "give a dog"},
               [&] { PartView(extra, "model.", "DiT").refuse_kinds(kKinds); });
}

TEST_CASE("Quantised weights are refused in the part and not beside it", "[detect]") {
  const TensorIndex index = index_of();
  CHECK_NOTHROW(PartView(index, "model.", "DiT").refuse_quantised());
  expect_error(ErrorCode::kUnsupported, {"\"other.in.weight\": the VAE is quantised", "Char"},
               [&] { PartView(index, "other.", "VAE").refuse_quantised(); });
  const TensorIndex marked({{"a.weight", {at::kChar, {1}}}, {"b.SCB", {at::kFloat, {1}}}});
  expect_error(ErrorCode::kUnsupported, {"\"b.SCB\"", "bitsandbytes INT8"},
               [&] { PartView(marked, "", "VAE").refuse_quantised(); });
}

TEST_CASE("What shapes do not tell takes a config, or the published widths", "[detect]") {
  const TensorIndex bare = index_of(), with = index_of({{"x", true}});
  CHECK_NOTHROW(PartView(with, "model.", "DiT").require_config(false, "axes"));
  const PartView view(bare, "model.", "DiT");
  CHECK_NOTHROW(view.require_config(true, "axes"));
  expect_error(ErrorCode::kInvalidArgument, {"the DiT has no config", "nothing tells its axes"},
               [&] { view.require_config(false, "axes"); });
  CHECK_NOTHROW(view.check_heads(8, 2, 64));
  expect_error(ErrorCode::kInvalidArgument, {"8 heads of 64 and keys for 3"},
               [&] { view.check_heads(8, 3, 64); });
  expect_error(ErrorCode::kInvalidArgument, {"8 heads of 63"}, [&] { view.check_heads(8, 2, 63); });
}

TEST_CASE("Rotated axes are even and add up to the head's width", "[detect]") {
  const TensorIndex bare = index_of();
  const PartView view(bare, "", "DiT");
  CHECK(view.rope_axes("axes", 24, {8, 8, 8}) == std::array<int64_t, 3>{8, 8, 8});
  expect_error(ErrorCode::kInvalidArgument, {"heads of 25", "do not tell", "with axes beside it"},
               [&] {
                 view.rope_axes("axes", 25, {0, 0, 0});
               });
  const TensorIndex given = index_of({{"axes", Reals{4, 10, 10}}});
  CHECK(PartView(given, "", "DiT").rope_axes("axes", 24, {8, 8, 8}) ==
        std::array<int64_t, 3>{4, 10, 10});
  for (const Reals& axes : {Reals{4, 10, 12}, Reals{5, 9, 10}, Reals{12, 12}, Reals{-2, 16, 10}}) {
    const TensorIndex wrong = index_of({{"axes", axes}});
    expect_error(ErrorCode::kInvalidArgument, {"axes in config.json does not add up to"}, [&] {
      PartView(wrong, "", "DiT").rope_axes("axes", 24, {8, 8, 8});
    });
  }
}

TEST_CASE("Windows of layers are as transformers lists them", "[detect]") {
  const auto windows = [](const ConfigValue& value) {
    const TensorIndex index = index_of({{"layer_types", value}});
    return PartView(index, "", "text encoder").layer_windows("layer_types", 2);
  };
  CHECK(windows(Texts{"full_attention", "sliding_attention"}) == std::vector<bool>{false, true});
  CHECK_FALSE(windows(nullptr));
  const TensorIndex bare = index_of();
  CHECK_FALSE(PartView(bare, "", "text encoder").layer_windows("layer_types", 2));
  expect_error(ErrorCode::kUnsupported, {"a text encoder with layer_types of \"chunked\""}, [&] {
    windows(Texts{"full_attention", "chunked"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"2 layers and 1 layer_types"},
               [&] { windows(Texts{"full_attention"}); });
}

}  // namespace atelier
