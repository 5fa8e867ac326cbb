#include "host/lora/targets.h"

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::expect_error;
using test::Folder;

TEST_CASE("A layer is found under every spelling of its name", "[lora]") {
  const Folder folder;
  test::write_toy_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const Target* down = targets.find("blocks.1.down");
  REQUIRE(down != nullptr);
  CHECK(down->component == "dit");
  REQUIRE(down->pieces.size() == 1);
  CHECK(down->pieces[0].path == "blocks.1.down");
  CHECK(down->pieces[0].linear->path() == "blocks.1.down");
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
  test::write_toy_model(folder.path());
  const auto model = test::open_toy(folder.path());
  const Targets targets(*model);
  const Target* qkv = targets.find("lora_unet_blocks_0_qkv");
  REQUIRE(qkv != nullptr);
  CHECK(qkv->out == 96);
  CHECK(qkv->in == 32);
  REQUIRE(qkv->pieces.size() == 3);
  for (const TargetPiece& piece : qkv->pieces) {
    CHECK(piece.axis == 0);
    CHECK(piece.length == 32);
    CHECK(piece.layer_start == 0);
    const std::string order = "qkv";
    CHECK(piece.name_start == 32 * static_cast<int64_t>(order.find(piece.path.back())));
  }
  const Target* value = targets.find("transformer.blocks.1.value");
  REQUIRE(value != nullptr);
  REQUIRE(value->pieces.size() == 1);
  CHECK(value->pieces[0].path == "blocks.1.up");
  CHECK(value->pieces[0].layer_start == 32);
  CHECK(value->out == 32);
  const Target* up = targets.find("blocks.1.up");
  REQUIRE(up != nullptr);
  CHECK(up->out == 64);
  CHECK(up->pieces[0].axis == -1);
}

TEST_CASE("A match lists what is nothing here, and refuses what cannot be right", "[lora]") {
  const Folder folder;
  test::write_toy_model(folder.path());
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
  NamedTensors twice;
  for (const std::string prefix : {"transformer.", "diffusion_model."}) {
    twice.emplace(prefix + "blocks.0.down.lora_A.weight", down.down);
    twice.emplace(prefix + "blocks.0.down.lora_B.weight", down.up);
  }
  checkpoint::write_safetensors(path, twice);
  expect_error(ErrorCode::kInvalidArgument, {"are one layer of dit"},
               [&] { targets.match(LoraFile::open(path)); });
}

}  // namespace atelier::lora
