#include "formats/lora_names.h"

#include <catch2/catch.hpp>

namespace atelier::formats {

TEST_CASE("Every published spelling of a factor is read", "[names]") {
  struct Case {
    std::string name, layer;
    LoraRole role;
  };
  const Case cases[] = {
      {"transformer.a.b.lora_A.weight", "transformer.a.b", LoraRole::kDown},
      {"a.b.lora_B.default.weight", "a.b", LoraRole::kUp},
      {"base_model.model.a.to_out.0.lora_A.weight", "base_model.model.a.to_out.0", LoraRole::kDown},
      {"diffusion_model.a.lora_down.weight", "diffusion_model.a", LoraRole::kDown},
      {"diffusion_model.a.lora_up.weight", "diffusion_model.a", LoraRole::kUp},
      {"a.lora_down.default.weight", "a", LoraRole::kDown},
      {"lora_unet_a_b_0.lora_up.weight", "lora_unet_a_b_0", LoraRole::kUp},
      {"lora_unet_a_b_0.alpha", "lora_unet_a_b_0", LoraRole::kAlpha},
      {"a.to_q.lora.down.weight", "a.to_q", LoraRole::kDown},
      {"a.to_q_lora.up.weight", "a.to_q", LoraRole::kUp},
      {"text.q_proj.lora_linear_layer.up.weight", "text.q_proj", LoraRole::kUp},
      {"a.lora_A", "a", LoraRole::kDown},
      {"transformer.a.lora_magnitude_vector", "transformer.a", LoraRole::kMagnitude},
      {"a.lora_magnitude_vector.default.weight", "a", LoraRole::kMagnitude},
      {"lora_unet_a_b.dora_scale", "lora_unet_a_b", LoraRole::kMagnitude},
      {"lycoris_a_b.lokr_w1", "lycoris_a_b", LoraRole::kKron1},
      {"lycoris_a_b.lokr_w1_a", "lycoris_a_b", LoraRole::kKron1Left},
      {"base_model.model.a.lokr_w2_b", "base_model.model.a", LoraRole::kKron2Right},
      {"diffusion_model.a.diff", "diffusion_model.a", LoraRole::kDiff},
      {"diffusion_model.a.diff_b", "diffusion_model.a", LoraRole::kBiasDiff},
      {"diffusion_model.blocks.0.diff_m", "diffusion_model.blocks.0.modulation", LoraRole::kDiff},
      {"lycoris_a_norm.w_norm", "lycoris_a_norm", LoraRole::kDiff},
      {"lycoris_a_norm.b_norm", "lycoris_a_norm", LoraRole::kBiasDiff},
      {"a.lora_B.default.bias", "a", LoraRole::kUpBias},
      {"a.diff.weight", "a.diff.weight", LoraRole::kUnknown},
      {"a.b.weight", "a.b.weight", LoraRole::kUnknown},
      {"a.lora_A.one.two.weight", "a.lora_A.one.two.weight", LoraRole::kUnknown},
      {".lora_A.weight", ".lora_A.weight", LoraRole::kUnknown},
      {"a.lora_linear_layer.down.default.weight", "a", LoraRole::kDown},
      {"_lora.down.weight", "_lora.down.weight", LoraRole::kUnknown},
      {"a.lora_A.lora_A.weight", "a.lora_A", LoraRole::kDown},
      {"lora.down.a.b.c.d.e.f", "lora.down.a.b.c.d.e.f", LoraRole::kUnknown},
      {"a.oft_blocks.default.weight", "a", LoraRole::kUnsupported},
      {"lora___lorahyphen___a___lorahyphen___0___lorahyphen___b.lora_down.weight", "a.0.b",
       LoraRole::kDown},
      {"lora___lorahyphen___a___lorahyphen___b_c.alpha_scale", "a.b_c", LoraRole::kScale},
      {"a.lora_down.blocks.0.weight", "a.lora_down.blocks.0.weight", LoraRole::kUnknown},
      {"a.lora_up.blocks.weight", "a", LoraRole::kUp},
      {"a.lora_up.blocks.0x.weight", "a.lora_up.blocks.0x.weight", LoraRole::kUnknown},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const LoraTensorName name = parse_lora_tensor(c.name);
    CHECK(name.layer == c.layer);
    CHECK((name.role == c.role));
  }
}

TEST_CASE("A factor's blocks on a diagonal have numbers", "[names]") {
  for (const std::string name : {"a.b.lora_up.blocks.12.weight",
                                 "lora___lorahyphen___a___lorahyphen___b.lora_up.blocks.12"}) {
    const LoraTensorName read = parse_lora_tensor(name);
    CHECK(read.layer == "a.b");
    CHECK((read.role == LoraRole::kUp));
    CHECK(read.part == 12);
  }
  CHECK_FALSE(parse_lora_tensor("a.lora_up.weight").part.has_value());
  CHECK((parse_lora_tensor("a.lora_up.blocks.1000.weight").role == LoraRole::kUnknown));
}

TEST_CASE("A form that is not supported is known with any number of dots behind it", "[names]") {
  const std::string dots(60'000, '.');
  std::string parts;
  for (int i = 0; i < 20'000; ++i) parts += ".ab";
  for (const std::string& rest : {std::string(), std::string(".weight"), std::string("."),
                                  std::string(".1.2.3.4.5.6"), dots, parts}) {
    for (const std::string form : {"oft_diag", "lora_mid", "reshape_weight", "hada_t1"}) {
      INFO(form << " and " << rest.size() << " bytes");
      const LoraTensorName name = parse_lora_tensor("a.b." + form + rest);
      CHECK(name.layer == "a.b");
      CHECK((name.role == LoraRole::kUnsupported));
      CHECK(is_lora_tensor("a." + form + rest));
      CHECK(!is_lora_tensor("a." + form + "al" + rest));
      CHECK(!is_lora_tensor("." + form + rest));
    }
    CHECK(!is_lora_tensor("a" + rest));
  }
  CHECK(parse_lora_tensor("a.oft_diag.b.oft_diagonal").layer == "a");
  CHECK(parse_lora_tensor("a.oft_diag.b.oft_diag.c").layer == "a.oft_diag.b");
}

TEST_CASE("A tensor's name makes a file a LoRA, or does not", "[names]") {
  for (const std::string name :
       {"a.lora_A.weight", "a.lora.down.weight", "a.to_q_lora.up.weight", "a.hada_w1_a",
        "a.lokr_w2", "a.dora_scale", "a.lora_mid.weight", "a.oft_blocks", "lora_unet_a.diff"}) {
    INFO(name);
    CHECK(is_lora_tensor(name));
  }
  for (const std::string name :
       {"a.weight", "a.alpha", "a.diff", "a.b_norm", "transformer.a.bias", "lora.a.weight"}) {
    INFO(name);
    CHECK(!is_lora_tensor(name));
  }
}

TEST_CASE("A prefix says whose layer a name is", "[names]") {
  using Owner = LoraLayerName::Owner;
  const auto check = [](const std::string& name, Owner owner, const std::string& path,
                        bool is_flat = false, size_t text_encoder = 0) {
    INFO(name);
    const auto read = without_lora_prefix(name);
    REQUIRE(read.has_value());
    CHECK((read->owner == owner));
    CHECK(read->path == path);
    CHECK(read->is_flat == is_flat);
    CHECK(read->text_encoder == text_encoder);
  };
  check("base_model.model.transformer.a", Owner::kUnsaid, "transformer.a");
  check("pipe.dit.a.b", Owner::kDenoiser, "a.b");
  check("lora_unet__a_b", Owner::kDenoiser, "a_b", /*is_flat=*/true);
  check("lora_te_a_b", Owner::kTextEncoder, "a_b", /*is_flat=*/true, 0);
  check("lora_te3_a", Owner::kTextEncoder, "a", /*is_flat=*/true, 2);
  CHECK(!without_lora_prefix("blocks.0.to_q"));
  for (size_t i = 0; i < text_encoder_names().size(); ++i)
    check(kohya_text_prefix(i) + "a", Owner::kTextEncoder, "a", /*is_flat=*/true, i);
}

TEST_CASE("Every format has names of its own", "[names]") {
  for (const LoraSpelling& spelling : lora_spellings()) {
    INFO(spelling.name);
    CHECK(&lora_spelling(spelling.format) == &spelling);
    CHECK((parse_lora_tensor("a" + std::string(spelling.down)).role == LoraRole::kDown));
    CHECK((parse_lora_tensor("a" + std::string(spelling.up)).role == LoraRole::kUp));
  }
  for (const LoraRole role : {LoraRole::kHada1Down, LoraRole::kKron2Left, LoraRole::kMagnitude,
                              LoraRole::kDiff, LoraRole::kBiasDiff, LoraRole::kAlpha})
    CHECK((parse_lora_tensor("a." + std::string(lora_tensor_name(role))).role == role));
}

}  // namespace atelier::formats
