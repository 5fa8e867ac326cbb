// What the published families make of config.json: files as they were published, and changed ones.
#include "atelier/error.h"

#include "host/conformance/config_probe.h"
#include "host/files/config_json.h"
#include "host/model/config_check.h"
#include "host/plugins/plugin_loader.h"
#include "host/weights/published_tensors.h"
#include "support/files.h"
#include "support/published_keys.h"

using namespace atelier;
using Config = TensorIndex::Config;
using Reals = std::vector<double>;
using Texts = std::vector<std::string>;
using test::expect_error;

namespace {

const ModelFamily& family(const std::string& name) {
  return *plugins::open_plugin(name == "qwen_image" ? QWEN_IMAGE : LUMINA2, "").family;
}

Config read_config(const std::string& name) {
  return files::parse_config(test::read_bytes(std::string(CONFIGS_DIR) + "/" + name + ".json"));
}

// A published checkpoint, to be detected with various configs.
struct Published {
  std::string family_name, keys;

  Detection detected(Config config) const {
    const auto part = model::detect_with_config(
        family(family_name), test::index_of(test::read_keys(keys + ".txt"), "", std::move(config)),
        {});
    REQUIRE(part);
    return *part;
  }
  // `value` of one field leads to an error that names it.
  void refuses(const std::string& field, const ConfigValue& value,
               ErrorCode code = ErrorCode::kUnsupported) const {
    INFO(field << " " << to_text(value));
    expect_error(code, {"\"" + field + "\"", to_text(value), "[CONFIG_FIELD]"}, [&] {
      detected({{field, value}});
    });
  }
};

const Published kQwenDit = {"qwen_image", "transformer"};
const Published kQwenText = {"qwen_image", "text_encoder_disk"};
const Published kQwenVae = {"qwen_image", "vae_diffusers"};
const Published kLuminaDit = {"lumina2", "lumina2_transformer"};
const Published kLuminaText = {"lumina2", "lumina2_text_encoder"};
const Published kLuminaVae = {"lumina2", "lumina2_vae"};

}  // namespace

TEST_CASE("Published configs say what is known without them", "[config]") {
  const std::pair<Published, const char*> files[] = {
      {kQwenDit, "qwen_image_transformer"},
      {kQwenText, "qwen_image_text_encoder"},
      {kQwenText, "qwen_image_text_encoder_flat"},
      {kQwenText, "qwen_image_text_encoder_5"},
      {{"qwen_image", "text_encoder_memory"}, "qwen_image_text_encoder_5"},
      {kQwenVae, "qwen_image_vae"},
      {{"qwen_image", "vae_original"}, "qwen_image_vae"},
      {kLuminaDit, "lumina2_transformer"},
      {{"lumina2", "lumina2_original"}, "lumina2_transformer"},
      {kLuminaText, "lumina2_text_encoder"},
      {kLuminaText, "lumina2_text_encoder_5"},
      {kLuminaVae, "lumina2_vae"}};
  for (const auto& [published, config] : files) {
    INFO(published.keys << " with " << config);
    const bool is_same =
        published.detected(read_config(config)).config == published.detected({}).config;
    CHECK(is_same);
  }
}

TEST_CASE("Widths other than the published ones need a config, numbers of layers do not",
          "[config]") {
  const std::map<std::string, std::map<std::string, std::string>> needed = {
      {"qwen_image",
       {{"dit", "axes_dims_rope"}, {"text_encoder", "rope_theta"}, {"vae", "latents_mean"}}},
      {"lumina2",
       {{"dit", "axes_dim_rope"},
        {"text_encoder", "query_pre_attn_scalar"},
        {"vae", "scaling_factor"}}}};
  for (const auto& [name, fields] : needed) {
    for (const Detection& part : family(name).tiny_parts()) {
      INFO(name << ' ' << part.component);
      const auto model = family(name).make_model({&part, 1}, {});
      const TensorIndex index =
          weights::published_index(model->component(part.component), family(name).weight_map(part));
      expect_error(ErrorCode::kInvalidArgument,
                   {"has no config", fields.at(part.component), "config.json"},
                   [&] { model::detect_with_config(family(name), index, {}); });
      const auto found = model::detect_with_config(
          family(name), TensorIndex(index.tensors(), conformance::told_config(family(name), part)),
          {});
      REQUIRE(found);
      CHECK(found->component == part.component);
    }
  }
  test::Keys fewer = test::read_keys("transformer.txt");
  std::erase_if(
      fewer, [](const auto& tensor) { return tensor.first.starts_with("transformer_blocks.5"); });
  CHECK(family("qwen_image").detect(test::index_of(fewer), {})->integer("layers") == 5);
}

TEST_CASE("A config says that references are clean", "[config]") {
  const auto is_clean = [](const Detection& part) {
    return part.config.contains("clean_references");
  };
  CHECK(is_clean(kQwenDit.detected(read_config("qwen_image_edit_2511_transformer"))));
  CHECK_FALSE(is_clean(kQwenDit.detected(read_config("qwen_image_transformer"))));
}

TEST_CASE("Pairs of channels that turn with rows and columns are those of the config", "[config]") {
  // What is as published a detection does not say: it is that of models that see no pictures.
  const auto sections = [](const Config& config) {
    const Config found = kQwenText.detected(config).config;
    return found.contains("sections") ? std::get<Reals>(found.at("sections")) : Reals{};
  };
  CHECK(sections({}).empty());
  CHECK(sections({{"rope_scaling.mrope_section", Reals{16, 24, 24}}}).empty());
  CHECK(sections({{"rope_scaling.mrope_section", Reals{8, 28, 28}}}) == Reals({8, 28, 28}));
  expect_error(ErrorCode::kInvalidArgument, {"mrope_section"}, [&] {
    sections({{"rope_scaling.mrope_section", Reals{8, 28, 8}}});
  });
}

TEST_CASE("Values that are not computed are refused by the field's name", "[config]") {
  for (const std::string home : {"", "text_config."}) {
    kQwenText.refuses(home + "hidden_act", "gelu");
    kQwenText.refuses(home + "rope_scaling.type", "linear");
    kQwenText.refuses(home + "rope_scaling.rope_type", "yarn");
    kQwenText.refuses(home + "rope_parameters.rope_type", "dynamic");
  }
  kQwenDit.refuses("patch_size", int64_t{1});
  kQwenVae.refuses("attn_scales", Reals{0.5});
  kLuminaText.refuses("hidden_activation", "gelu");
  kLuminaText.refuses("rope_scaling.type", "linear");
  kLuminaText.refuses("rope_parameters.rope_type", "yarn");
  kLuminaText.refuses("use_bidirectional_attention", true);
  kLuminaVae.refuses("act_fn", "relu");
  kLuminaVae.refuses("latents_mean", Reals(16, 0.5));
  kLuminaVae.refuses("_class_name", "AutoencoderKLQwenImage");
}

TEST_CASE("Numbers of another checkpoint and unknown fields are refused", "[config]") {
  kQwenDit.refuses("num_layers", int64_t{40}, ErrorCode::kInvalidArgument);
  kQwenText.refuses("num_key_value_heads", int64_t{7}, ErrorCode::kInvalidArgument);
  kQwenVae.refuses("temperal_downsample", Reals{1, 1, 0}, ErrorCode::kInvalidArgument);
  kLuminaDit.refuses("num_refiner_layers", int64_t{3}, ErrorCode::kInvalidArgument);
  kLuminaText.refuses("vocab_size", nullptr, ErrorCode::kInvalidArgument);
  kLuminaVae.refuses("use_quant_conv", true, ErrorCode::kInvalidArgument);
  kLuminaVae.refuses("down_block_types", Texts(4, "AttnDownEncoderBlock2D"),
                     ErrorCode::kInvalidArgument);
  kLuminaVae.refuses("block_out_channels", Reals{128, 256}, ErrorCode::kInvalidArgument);
  for (const Published& published :
       {kQwenDit, kQwenText, kQwenVae, kLuminaDit, kLuminaText, kLuminaVae}) {
    expect_error(ErrorCode::kUnsupported, {"\"rope_theta_2\" is not known"}, [&] {
      published.detected({{"rope_theta_2", 500.0}});
    });
  }
  expect_error(ErrorCode::kUnsupported, {"rope_parameters.full_attention.rope_theta", "not known"},
               [] {
                 kLuminaText.detected({{"rope_parameters.full_attention.rope_theta", 1e4}});
               });
  expect_error(ErrorCode::kInvalidArgument,
               {"\"hidden_size\" is 7, and the tensors say 3584; ", "\"new\" is not known"}, [&] {
                 kQwenText.detected({{"hidden_size", int64_t{7}}, {"new", nullptr}});
               });
}

TEST_CASE("Fields of another type are refused, and null is a type", "[config]") {
  const std::tuple<Published, const char*, ConfigValue> fields[] = {
      {kQwenDit, "axes_dims_rope", "16, 56, 56"}, {kQwenDit, "zero_cond_t", int64_t{1}},
      {kQwenText, "rope_theta", "1e6"},           {kQwenText, "rms_norm_eps", nullptr},
      {kQwenVae, "latents_std", nullptr},         {kLuminaDit, "norm_eps", Reals{1e-5}},
      {kLuminaText, "sliding_window", nullptr},   {kLuminaText, "head_dim", 0.5},
      {kLuminaVae, "scaling_factor", true}};
  for (const auto& [published, field, value] : fields) {
    expect_error(ErrorCode::kInvalidArgument,
                 {std::string(field) + " is " + to_text(value), "expected", "[CONFIG_FIELD]"}, [&] {
                   published.detected({{field, value}});
                 });
  }
}

TEST_CASE("Windows, caps, shifts and patches are as the config says", "[config]") {
  const auto windowed = [](const Detection& part) {
    return std::get<Reals>(part.config.at("windowed"));
  };
  Texts types(28, "full_attention");
  Reals expected(28, 0.0);
  CHECK(windowed(kQwenText.detected({})) == expected);
  const Config on = {{"use_sliding_window", true}, {"sliding_window", int64_t{5}}};
  Config some = on;
  some["max_window_layers"] = int64_t{26};
  expected[26] = expected[27] = 1;
  CHECK(windowed(kQwenText.detected(some)) == expected);
  CHECK(kQwenText.detected(some).integer("window") == 5);
  types[3] = "sliding_attention";
  some["layer_types"] = types;
  expected = Reals(28, 0.0);
  expected[3] = 1;
  CHECK(windowed(kQwenText.detected(some)) == expected);
  // Without the flag there is no window that a layer could have.
  expect_error(ErrorCode::kInvalidArgument, {"sliding_window"}, [&] {
    kQwenText.detected({{"layer_types", types}});
  });

  CHECK(kLuminaText.detected({{"attn_logit_softcapping", nullptr}}).real("softcap") == 0);
  types.resize(26);
  CHECK(windowed(kLuminaText.detected({{"layer_types", types}}))[3] == 1);
  CHECK(windowed(kLuminaText.detected({{"layer_types", types}}))[2] == 0);
  expect_error(ErrorCode::kInvalidArgument, {"2 layer_types"}, [&] {
    kLuminaText.detected({{"layer_types", Texts(2, "full_attention")}});
  });
  expect_error(ErrorCode::kUnsupported, {"\"chunked_attention\""}, [&] {
    kLuminaText.detected({{"layer_types", Texts(26, "chunked_attention")}});
  });
  CHECK(kLuminaVae.detected({{"shift_factor", nullptr}}).real("shift") == 0);
  CHECK(kLuminaDit.detected({{"patch_size", int64_t{4}}}).integer("channels") == 4);
}

TEST_CASE("The language model's own object goes before the fields beside it", "[config]") {
  const Detection part = kQwenText.detected({{"rope_theta", 5.0},
                                             {"hidden_act", "gelu"},
                                             {"text_config.rope_parameters.rope_theta", 7.0},
                                             {"text_config.rope_theta", 6.0}});
  CHECK(part.real("rope_theta") == 7);
  // As transformers: what older versions wrote stands in for all that newer ones write.
  CHECK(kQwenText
            .detected({{"rope_theta", 5.0},
                       {"rope_parameters.rope_theta", 7.0},
                       {"rope_scaling.type", "mrope"}})
            .real("rope_theta") == 5);
}
