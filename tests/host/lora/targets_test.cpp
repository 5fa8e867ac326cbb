#include "host/lora/targets.h"

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::expect_error;
using test::Folder;

// A copy would point into what it was copied from.
static_assert(!std::is_copy_constructible_v<Targets> && !std::is_copy_assignable_v<Targets>);

TEST_CASE("A layer is found under every spelling of its name", "[lora]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const Target* down = targets.find("blocks.1.down");
  REQUIRE(down != nullptr);
  CHECK(down->component == "dit");
  REQUIRE(down->slices.size() == 1);
  CHECK(down->slices[0].path == "blocks.1.down");
  CHECK(down->slices[0].linear->path() == "blocks.1.down");
  for (const std::string prefix :
       {"transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model.",
        "base_model.model.transformer.", "unet.", "dit.", "pipe.dit."})
    CHECK(targets.find(prefix + "blocks.1.down") == down);
  for (const std::string prefix : {"lora_unet_", "lora_unet__", "lycoris_", "lora_transformer_"})
    CHECK(targets.find(prefix + "blocks_1_down") == down);
  for (const std::string name :
       {"blocks.2.down", "blocks.1.down.weight", "blocks.1", "", "transformer.", "lora_unet_",
        "lora_te_blocks_1_down", "blocks_1_down", "other.blocks.1.down"}) {
    INFO(name);
    CHECK(targets.find(name) == nullptr);
  }
  REQUIRE(targets.find("vae.scale") != nullptr);
  CHECK(targets.find("vae.scale")->component == "vae");
}

TEST_CASE("Names of the checkpoint stand for parts of layers", "[lora]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const Target* qkv = targets.find("lora_unet_blocks_0_qkv");
  REQUIRE(qkv != nullptr);
  CHECK(qkv->out == 96);
  CHECK(qkv->in == 32);
  REQUIRE(qkv->slices.size() == 3);
  for (const TargetSlice& slice : qkv->slices) {
    CHECK(slice.axis == 0);
    CHECK(slice.length == 32);
    CHECK(slice.layer_start == 0);
    const std::string order = "qkv";
    CHECK(slice.name_start == 32 * static_cast<int64_t>(order.find(slice.path.back())));
  }
  const Target* value = targets.find("transformer.blocks.1.value");
  REQUIRE(value != nullptr);
  REQUIRE(value->slices.size() == 1);
  CHECK(value->slices[0].path == "blocks.1.up");
  CHECK(value->slices[0].layer_start == 32);
  CHECK(value->out == 32);
  const Target* up = targets.find("blocks.1.up");
  REQUIRE(up != nullptr);
  CHECK(up->out == 64);
  CHECK(up->slices[0].axis == -1);
}

TEST_CASE("A match lists what is nothing here, and refuses what cannot be right", "[lora]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const std::string path = folder / "lora.safetensors";
  const auto match = [&](const std::vector<test::Factors>& factors) {
    test::write_lora(path, factors);
    return targets.match(LoraFile::open(path));
  };
  const auto down = test::random_factors("blocks.0.down", 32, 32, 2);
  const Match partial = match({down, test::random_factors("blocks.7.down", 32, 32, 2)});
  CHECK(partial.pairs.size() == 1);
  CHECK(partial.unmatched == std::vector<std::string>{"transformer.blocks.7.down"});
  expect_error(
      ErrorCode::kInvalidArgument,
      {"lora.safetensors", "none of its 2 layers is one of toy", "\"transformer.b.x\""}, [&] {
        match({test::random_factors("b.x", 32, 32, 2), test::random_factors("b.y", 32, 32, 2)});
      });
  expect_error(ErrorCode::kInvalidArgument,
               {"made for another model",
                "\"transformer.blocks.0.down.lora_A.weight\": [2, 64], [2, 32] "
                "expected"},
               [&] { match({test::random_factors("blocks.0.down", 64, 32, 2)}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"\"transformer.blocks.0.down.lora_B.weight\": [64, 2], [32, 2] expected"},
               [&] { match({test::random_factors("blocks.0.down", 32, 64, 2)}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"lora.safetensors: layer \"transformer.blocks.0.down\": rank 1000, and no layer of "
                "dit is wider than ",
                "[LORA_RANK]"},
               [&] { match({test::random_factors("blocks.0.down", 32, 32, 1000)}); });
  NamedTensors twice;
  for (const std::string prefix : {"transformer.", "diffusion_model."}) {
    twice.emplace(prefix + "blocks.0.down.lora_A.weight", down.down);
    twice.emplace(prefix + "blocks.0.down.lora_B.weight", down.up);
  }
  files::write_safetensors(path, twice);
  expect_error(ErrorCode::kInvalidArgument, {"are one layer of dit"},
               [&] { targets.match(LoraFile::open(path)); });
}

TEST_CASE("The weight of any layer is found", "[lora]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  nn::Linear* down = nullptr;
  model->model().component("dit").visit([&](nn::Module& module) {
    if (module.path() == "blocks.1.down") down = dynamic_cast<nn::Linear*>(&module);
  });
  REQUIRE(down != nullptr);
  for (const std::string name : {"diffusion_model.blocks.1.down", "lora_unet_blocks_1_down"}) {
    const Target* weight = targets.find(name);
    REQUIRE(weight != nullptr);
    CHECK(weight->slices.at(0).weight == down->weight.get());
    CHECK(weight->slices.at(0).linear == down);
  }
  CHECK(targets.find("blocks.7.up") == nullptr);
}

TEST_CASE("A match refuses additions that have no place", "[lora]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const std::string path = folder / "lora.safetensors";
  const auto match = [&](const NamedTensors& tensors) {
    files::write_safetensors(path, tensors);
    return targets.match(LoraFile::open(path));
  };
  const Match both = match({{"blocks.0.down.diff", at::ones({32, 32})},
                            {"blocks.0.down.diff_b", at::ones({32})},
                            {"embed.diff_b", at::ones({32})},
                            {"nowhere.diff_b", at::ones({32})}});
  CHECK(both.pairs.size() == 1);
  REQUIRE(both.biases.size() == 2);
  for (const Match::Pair& bias : both.biases) {
    CHECK(bias.target->slices.at(0).linear == nullptr);
    CHECK(bias.target->shape == std::vector<int64_t>{32});
  }
  CHECK(both.unmatched == std::vector<std::string>{"nowhere"});
  expect_error(ErrorCode::kInvalidArgument,
               {"lora.safetensors", "\"blocks.0.up.diff_b\"", "the layer has no bias in toy"}, [&] {
                 match({{"blocks.0.up.diff_b", at::ones({64})}});
               });
  expect_error(ErrorCode::kInvalidArgument, {"\"embed.diff_b\": [31], [32] expected"}, [&] {
    match({{"embed.diff_b", at::ones({31})}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"\"blocks.0.up.diff\": [64, 31], [64, 32] expected"},
               [&] {
                 match({{"blocks.0.up.diff", at::ones({64, 31})}});
               });
  expect_error(ErrorCode::kInvalidArgument,
               {"\"blocks.0.up.lokr_w1_a\": [8, 8], [64, 32] expected"}, [&] {
                 match({{"blocks.0.up.lokr_w1_a", at::ones({2, 1})},
                        {"blocks.0.up.lokr_w1_b", at::ones({1, 2})},
                        {"blocks.0.up.lokr_w2", at::ones({4, 4})}});
               });
  const auto dora = [&](const std::string& layer, const at::Tensor& magnitude) {
    return match({{layer + ".lora_A.weight", at::ones({2, 32})},
                  {layer + ".lora_B.weight", at::ones({96, 2})},
                  {layer + ".dora_scale", magnitude}});
  };
  CHECK(dora("blocks.0.qkv", at::ones({96})).pairs.size() == 1);
  expect_error(ErrorCode::kUnsupported,
               {"\"blocks.0.qkv.dora_scale\"", "DoRA over several layers of dit"}, [&] {
                 dora("blocks.0.qkv", at::ones({1, 32}));
               });
}

}  // namespace atelier::lora
