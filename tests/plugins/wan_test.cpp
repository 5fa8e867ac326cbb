#include <algorithm>
#include <sstream>

#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "formats/glob.h"
#include "host/model/config_check.h"
#include "host/samples/timesteps.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

const ModelFamily& family() {
  return test::opened_family();
}

Detection detected(const TensorIndex& index, const DetectHint& hint = {}) {
  const auto part = model::detect_with_config(family(), index, hint);
  REQUIRE(part);
  return *part;
}

// A published DiT, in both spellings.
struct Published {
  const char *diffusers, *original, *variant, *model_type;
  int64_t layers, width, mlp_width, in_channels, image_width, image_rows, parameters, channels = 16;
};
constexpr Published kPublished[] = {
    {"wan_t2v_1_3b.txt", "wan_t2v_1_3b_original.txt", "wan2.1-t2v-1.3b", "t2v", 30, 1536, 8960, 16,
     0, 0, 1418996800},
    {"wan_t2v_14b.txt", "wan_t2v_14b_original.txt", "wan2.1-t2v-14b", "t2v", 40, 5120, 13824, 16, 0,
     0, 14288491584},
    {"wan_i2v_14b.txt", "wan_i2v_14b_original.txt", "wan2.1-i2v-14b", "i2v", 40, 5120, 13824, 36,
     1280, 0, 16394878784},
    {"wan_flf2v_14b.txt", "wan_flf2v_14b_original.txt", "wan2.1-i2v-14b-flf2v", "flf2v", 40, 5120,
     13824, 36, 1280, 514, 16395536704},
    {"wan22_i2v_a14b.txt", "wan22_i2v_a14b_original.txt", "wan2.2-i2v-a14b", "i2v", 40, 5120, 13824,
     36, 0, 0, 14288901184},
    {"wan22_ti2v_5b.txt", "wan22_ti2v_5b_original.txt", "wan2.2-ti2v-5b", "ti2v", 30, 3072, 14336,
     48, 0, 0, 4999787712, 48},
};

ConfigValue or_null(int64_t value) {
  return value == 0 ? ConfigValue(nullptr) : ConfigValue(value);
}

// The config.json of the original repository and that of diffusers.
TensorIndex::Config original_config(const Published& published) {
  return {{"_class_name", "WanModel"},
          {"_diffusers_version", "0.30.0"},
          {"dim", published.width},
          {"eps", 1e-6},
          {"ffn_dim", published.mlp_width},
          {"freq_dim", int64_t{256}},
          {"in_dim", published.in_channels},
          {"model_type", published.model_type},
          {"num_heads", published.width / 128},
          {"num_layers", published.layers},
          {"out_dim", published.channels},
          {"text_len", int64_t{512}}};
}
TensorIndex::Config diffusers_config(const Published& published) {
  return {{"_class_name", "WanTransformer3DModel"},
          {"_diffusers_version", "0.33.0.dev0"},
          {"added_kv_proj_dim", or_null(published.image_width > 0 ? published.width : 0)},
          {"attention_head_dim", int64_t{128}},
          {"cross_attn_norm", true},
          {"eps", 1e-6},
          {"ffn_dim", published.mlp_width},
          {"freq_dim", int64_t{256}},
          {"image_dim", or_null(published.image_width)},
          {"in_channels", published.in_channels},
          {"num_attention_heads", published.width / 128},
          {"num_layers", published.layers},
          {"out_channels", published.channels},
          {"patch_size", std::vector<double>{1, 2, 2}},
          {"pos_embed_seq_len", or_null(published.image_rows)},
          {"qk_norm", "rms_norm_across_heads"},
          {"rope_max_seq_len", int64_t{1024}},
          {"text_dim", int64_t{4096}}};
}

}  // namespace

TEST_CASE("Published DiTs are known by their names and shapes, in every spelling", "[detect]") {
  for (const Published& published : kPublished) {
    for (const char* prefix : {"", "model.diffusion_model.", "diffusion_model.", "model."}) {
      for (const bool is_original : {true, false}) {
        const char* file = is_original ? published.original : published.diffusers;
        INFO(prefix << file);
        const Keys keys = read_keys(file);
        const Detection part = detected(index_of(keys, prefix));
        CHECK(part.component == "dit");
        CHECK(part.variant == published.variant);
        CHECK(part.prefix == prefix);
        CHECK(part.spelling == (is_original ? "original" : "diffusers"));
        CHECK(part.integer("layers") == published.layers);
        CHECK(part.integer("width") == published.width);
        CHECK(part.integer("heads") == published.width / 128);
        CHECK(part.integer("mlp_width") == published.mlp_width);
        CHECK(part.integer("channels") == published.channels);
        CHECK(part.integer("given_channels") == published.in_channels - published.channels);
        CHECK(part.integer("image_width") == published.image_width);
        CHECK(part.integer("image_rows") == published.image_rows);
        for (const auto& config : {original_config(published), diffusers_config(published)}) {
          const bool is_same = detected(index_of(keys, prefix, config)).config == part.config;
          CHECK(is_same);
        }
      }
    }
  }
}

TEST_CASE("The tables fill every weight of every published DiT once", "[weights]") {
  for (const Published& published : kPublished) {
    for (const char* file : {published.original, published.diffusers}) {
      INFO(file);
      const Keys keys = read_keys(file);
      const TensorIndex index = index_of(keys);
      const Detection part = detected(index);
      const auto model = family().make_model({&part, 1}, {});
      nn::Module& dit = model->component("dit");
      const auto binding = weights::bind_weights(family().weight_map(part), "", index, dit);
      CHECK_NOTHROW(binding.throw_unless_complete(file, "dit"));
      CHECK(binding.unused.empty());
      int64_t parameters = 0;
      dit.visit_weights([&](const std::string&, Weight& weight) { parameters += weight.numel(); });
      CHECK(parameters == published.parameters);
      // The other spelling's names and shapes follow from the weights alone.
      for (const std::string& spelling : family().spellings(part)) {
        Detection other = part;
        other.spelling = spelling;
        Keys names;
        const TensorIndex spelled = weights::published_index(dit, family().weight_map(other));
        for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
        CHECK(names ==
              read_keys(spelling == "original" ? published.original : published.diffusers));
      }
    }
  }
}

TEST_CASE("The motion controller is known, and has no other weights", "[detect]") {
  const Keys keys = read_keys("wan_speed_controller.txt");
  const Detection part = detected(index_of(keys));
  CHECK(part.component == "motion_controller");
  CHECK(part.integer("width") == 1536);
  const auto model = family().make_model({&part, 1}, {});
  nn::Module& controller = model->component("motion_controller");
  Keys names;
  const TensorIndex spelled = weights::published_index(controller, family().weight_map(part));
  for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
  CHECK(names == keys);
  Keys other = keys;
  other["linear.4.weight"][0] = 1536;
  CHECK_FALSE(family().detect(index_of(other), {}));
}

TEST_CASE("Both VAEs are known in both spellings, and have no other weights", "[weights]") {
  const std::vector<int64_t> small = {16, 21, 60, 104}, large = {48, 21, 30, 52};
  for (const auto& [file, latents] :
       {std::pair("vae_diffusers.txt", small), std::pair("vae_original.txt", small),
        std::pair("wan22_vae.txt", large), std::pair("wan22_vae_original.txt", large)}) {
    INFO(file);
    const TensorIndex index = index_of(read_keys(file));
    const Detection part = detected(index);
    CHECK(part.component == "vae");
    const auto model = family().make_model({&part, 1}, {});
    const auto binding =
        weights::bind_weights(family().weight_map(part), "", index, model->component("vae"));
    CHECK_NOTHROW(binding.throw_unless_complete(file, "vae"));
    CHECK(binding.unused.empty());
    CHECK(model->latent_spec().temporal_stride == 4);
    CHECK(model->latent_shape({81, 480, 832}, {}) == latents);
  }
}

TEST_CASE("The VAE's config is that of diffusers, and has to fit", "[config]") {
  const Keys keys = read_keys("wan22_vae.txt");
  TensorIndex::Config config = {{"_class_name", "AutoencoderKLWan"},
                                {"base_dim", int64_t{160}},
                                {"decoder_base_dim", int64_t{256}},
                                {"dim_mult", std::vector<double>{1, 2, 4, 4}},
                                {"in_channels", int64_t{12}},
                                {"is_residual", true},
                                {"num_res_blocks", int64_t{2}},
                                {"out_channels", int64_t{12}},
                                {"patch_size", int64_t{2}},
                                {"scale_factor_spatial", int64_t{16}},
                                {"temperal_downsample", std::vector<double>{0, 1, 1}},
                                {"z_dim", int64_t{48}}};
  const bool is_same =
      detected(index_of(keys)).config == detected(index_of(keys, "", config)).config;
  CHECK(is_same);
  for (const auto& [field, value] : {std::pair<const char*, ConfigValue>("is_residual", false),
                                     {"patch_size", int64_t{4}},
                                     {"decoder_base_dim", int64_t{160}}}) {
    TensorIndex::Config other = config;
    other[field] = value;
    INFO(field);
    const Error error = test::error_of([&] { detected(index_of(keys, "", other)); });
    CHECK(test::mentions(error, field));
  }
}

TEST_CASE("The image encoder is known in every spelling, and its last layer is not loaded",
          "[weights]") {
  Keys bare;
  for (const auto& [name, shape] : read_keys("clip_vision.txt"))
    bare[name.substr(std::string("vision_model.").size())] = shape;
  const std::pair<const char*, Keys> files[] = {{"original", read_keys("clip_original.txt")},
                                                {"original", read_keys("clip_visual_original.txt")},
                                                {"transformers", read_keys("clip_vision.txt")},
                                                {"transformers_bare", bare}};
  for (const auto& [spelling, keys] : files) {
    INFO(spelling);
    const TensorIndex index = index_of(keys);
    const Detection part = detected(index);
    CHECK(part.component == "image_encoder");
    CHECK(part.spelling == spelling);
    CHECK(part.integer("layers") == 32);
    CHECK(part.integer("rows") == 257);
    const auto model = family().make_model({&part, 1}, {});
    CHECK(model->blocks("image_encoder").size() == 31);
    const auto binding = weights::bind_weights(family().weight_map(part), "", index,
                                               model->component("image_encoder"));
    CHECK_NOTHROW(binding.throw_unless_complete(spelling, "image_encoder"));
    for (const std::string& name : binding.unused) {
      INFO(name);
      CHECK((name.find("31.") != std::string::npos || name.find("post_") != std::string::npos ||
             name.starts_with("textual.") || name == "visual.head" || name == "log_scale"));
    }
  }
}

TEST_CASE("What cannot be run is refused by its name, and other families are not taken",
          "[detect]") {
  const auto refused = [&](const TensorIndex& index, const DetectHint& hint,
                           const std::string& part) {
    const Error error = test::error_of([&] { family().detect(index, hint); });
    INFO(error.what());
    CHECK(test::mentions(error, part));
  };
  Keys other = read_keys("wan_i2v_14b_original.txt");
  other["patch_embedding.weight"][1] = 40;
  refused(index_of(other), {}, "40 input and 16 output channels that is shown images");
  const Keys keys = read_keys("wan_t2v_1_3b_original.txt");
  refused(index_of(keys), {.component = "vae", .variant = {}}, "those of the dit");
  refused(index_of(keys, "", {}, at::kChar), {}, "quantised");
  refused(index_of(keys, "", {{"num_heads", int64_t{7}}}), {}, "7 heads");
  for (const char* file :
       {"transformer.txt", "lumina2_transformer.txt", "lumina2_original.txt", "lumina2_vae.txt"}) {
    INFO(file);
    CHECK_FALSE(family().detect(index_of(read_keys(file)), {}));
  }
}

TEST_CASE("Wan-Fun that is given a first and a last image is run as image to video", "[detect]") {
  const TensorIndex index = index_of(read_keys("wan_fun_1_3b_inp_original.txt"));
  const Detection part = detected(index);
  CHECK(part.variant == "wan2.1-i2v-1.3b");
  const auto model = family().make_model({&part, 1}, {});
  const auto binding =
      weights::bind_weights(family().weight_map(part), "", index, model->component("dit"));
  CHECK_NOTHROW(binding.throw_unless_complete("Wan-Fun", "dit"));
  CHECK(binding.unused.empty());
}

namespace {

// What the family makes of checkpoints with these paths: "component variant low..high".
std::vector<std::string> assigned(const char* keys, const std::vector<std::string>& paths,
                                  const DetectHint& hint = {}) {
  std::vector<FoundPart> parts;
  for (const std::string& path : paths)
    parts.push_back({detected(index_of(read_keys(keys)), hint), "/models/" + path, hint});
  family().assign(parts);
  std::vector<std::string> told;
  for (const FoundPart& found : parts) {
    const SigmaRange range = family().sigma_range(found.part);
    std::ostringstream text;
    text << found.part.component << " " << found.part.variant << " " << range.low << ".."
         << range.high;
    told.push_back(text.str());
  }
  return told;
}

}  // namespace

TEST_CASE("A text encoder that sees what stands before alone is refused", "[detect]") {
  const Keys keys = read_keys("umt5.txt");
  CHECK(detected(index_of(keys, "", {{"is_decoder", false}})).component == "text_encoder");
  const Error error = test::error_of([&] { detected(index_of(keys, "", {{"is_decoder", true}})); });
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK(error.tag() == "CONFIG_FIELD");
  CHECK(error.message().find("\"is_decoder\"") != std::string::npos);
}

TEST_CASE("An image encoder whose config does not say its activation is refused", "[detect]") {
  const Keys keys = read_keys("clip_vision.txt");
  TensorIndex::Config config = {{"num_attention_heads", int64_t{16}}};
  const Error error = test::error_of([&] { detected(index_of(keys, "", config)); });
  CHECK(error.message().find("hidden_act") != std::string::npos);
  config["hidden_act"] = "gelu";
  CHECK(detected(index_of(keys, "", config)).component == "image_encoder");
  config["hidden_act"] = "quick_gelu";
  CHECK(test::error_of([&] { detected(index_of(keys, "", config)); }).tag() == "CONFIG_FIELD");
}

TEST_CASE("A scheduler that leaves out what flows need is refused", "[detect]") {
  const Keys keys = read_keys("wan_t2v_1_3b.txt");
  const auto message = [&](const TensorIndex::Config& config) {
    return test::error_of([&] { detected(index_of(keys, "", config)); }).message();
  };
  TensorIndex::Config config = {{"scheduler._class_name", "UniPCMultistepScheduler"},
                                {"scheduler.flow_shift", 3.0}};
  CHECK(message(config).find("\"scheduler.prediction_type\" is missing") != std::string::npos);
  config["scheduler.prediction_type"] = "flow_prediction";
  CHECK(message(config).find("\"scheduler.use_flow_sigmas\" is missing") != std::string::npos);
  config["scheduler.use_flow_sigmas"] = true;
  CHECK(detected(index_of(keys, "", config)).component == "dit");
  CHECK(detected(index_of(keys, "",
                          {{"scheduler._class_name", "FlowMatchEulerDiscreteScheduler"},
                           {"scheduler.shift", 3.0}}))
            .component == "dit");
  config["model_index.expand_timesteps"] = true;
  CHECK(message(config).find("\"model_index.expand_timesteps\" is true") != std::string::npos);
}

TEST_CASE("Experts are told by their paths, else by their order", "[detect]") {
  using Told = std::vector<std::string>;
  const Told text = {"dit wan2.2-t2v-a14b 0.875..1", "dit2 wan2.2-t2v-a14b 0..0.875"};
  const Told turned = {text[1], text[0]};
  const char* const t2v = "wan_t2v_14b_original.txt";
  CHECK(assigned(t2v, {"W/high_noise_model/a.safetensors", "W/low_noise_model/a.safetensors"}) ==
        text);
  CHECK(assigned(t2v, {"wan2.2_t2v_low_noise_14B_fp16.safetensors",
                       "wan2.2_t2v_high_noise_14B_fp16.safetensors"}) == turned);
  CHECK(assigned("wan_t2v_14b.txt", {"transformer/a.safetensors", "transformer_2/a.safetensors"}) ==
        text);
  CHECK(assigned(t2v, {"transformer_2/a.safetensors", "transformer/a.safetensors"}) == turned);
  CHECK(assigned(t2v, {"one.safetensors", "other.safetensors"}) == text);
  CHECK(assigned(t2v, {"my_high_noise.safetensors", "other.safetensors"}) == text);
  CHECK(assigned(t2v, {"other.safetensors", "my_high_noise.safetensors"}) == turned);
  CHECK(assigned(t2v, {"my_low_noise.safetensors", "other.safetensors"}) == turned);
  for (const auto& [high, low] :
       {std::pair("Wan2.2-HighNoise.safetensors", "Wan2.2-LowNoise.safetensors"),
        std::pair("w_HIGH_fp16.safetensors", "w_LOW_fp16.safetensors"),
        std::pair("w-high-noise-Q4.gguf", "w-low-noise-Q4.gguf"),
        std::pair("Wan-HIGH/a.safetensors", "Wan-LOW/a.safetensors"),
        std::pair("high/a.safetensors", "low/a.safetensors")}) {
    INFO(high);
    CHECK(assigned(t2v, {high, low}) == text);
    CHECK(assigned(t2v, {low, high}) == turned);
    CHECK(assigned(t2v, {low}) == Told{"dit wan2.2-t2v-a14b 0..0.875"});
    CHECK(assigned(t2v, {"other.safetensors", high}) == turned);
  }
  // Neither word is about noise everywhere.
  for (const char* other :
       {"low_vram.safetensors", "low/w/a.safetensors", "high_quality_1.safetensors",
        "flow.safetensors", "highland_low_poly.safetensors"})
    CHECK(assigned(t2v, {other}) == Told{"dit wan2.1-t2v-14b 0..1"});
  const Told image = {"dit wan2.2-i2v-a14b 0.9..1", "dit2 wan2.2-i2v-a14b 0..0.9"};
  CHECK(assigned("wan22_i2v_a14b.txt", {"one.safetensors", "other.safetensors"}) == image);
  // A file takes the place of a model folder's, and there is no smaller model of two experts.
  const std::string plain = "dit wan2.1-t2v-14b 0..1";
  CHECK(assigned(t2v, {"W/transformer/a.safetensors", "tuned.safetensors"}) == Told{plain, plain});
  const std::string small = "dit wan2.1-t2v-1.3b 0..1";
  CHECK(assigned("wan_t2v_1_3b.txt", {"one.safetensors", "other.safetensors"}) ==
        Told{small, small});
}

TEST_CASE("Files beside a folder of two experts take the place of one or both", "[detect]") {
  using Told = std::vector<std::string>;
  const std::string high = "dit wan2.2-t2v-a14b 0.875..1", low = "dit2 wan2.2-t2v-a14b 0..0.875";
  const auto beside = [](const std::vector<std::string>& named) {
    std::vector<std::string> paths = {"W/transformer/a.safetensors",
                                      "W/transformer_2/a.safetensors"};
    paths.insert(paths.end(), named.begin(), named.end());
    return assigned("wan_t2v_14b.txt", paths);
  };
  const std::string H = "my_high_noise.safetensors", L = "my_low_noise.safetensors";
  CHECK(beside({H}) == Told{high, low, high});
  CHECK(beside({L}) == Told{high, low, low});
  CHECK(beside({H, L}) == Told{high, low, high, low});
  CHECK(beside({L, H}) == Told{high, low, low, high});
  CHECK(beside({L, "other.safetensors"}) == Told{high, low, low, high});
  CHECK(beside({"one.safetensors", "other.safetensors"}) == Told{high, low, high, low});
  // One that is not told is a model without experts.
  const std::string plain = "dit wan2.1-t2v-14b 0..1";
  CHECK(beside({"wan2.1_t2v_14B.safetensors"}).back() == plain);
}

TEST_CASE("One expert alone is the denoiser, for its own noise levels", "[detect]") {
  using Told = std::vector<std::string>;
  const char *const t2v = "wan_t2v_14b.txt", *const i2v = "wan22_i2v_a14b.txt";
  CHECK(assigned(t2v, {"a.safetensors"}) == Told{"dit wan2.1-t2v-14b 0..1"});
  CHECK(assigned(t2v, {"transformer/a.safetensors"}) == Told{"dit wan2.1-t2v-14b 0..1"});
  CHECK(assigned(t2v, {"krea-realtime-video/krea-realtime-video-14b.safetensors"}) ==
        Told{"dit wan2.1-t2v-14b-krea 0..1"});
  CHECK(assigned("wan_t2v_1_3b.txt", {"krea/a.safetensors"}) == Told{"dit wan2.1-t2v-1.3b 0..1"});
  CHECK(assigned(t2v, {"high_noise_model/a.safetensors"}) == Told{"dit wan2.2-t2v-a14b 0.875..1"});
  CHECK(assigned(t2v, {"low_noise_model/a.safetensors"}) == Told{"dit wan2.2-t2v-a14b 0..0.875"});
  CHECK(assigned(t2v, {"Wan2.2-T2V-A14B/transformer/a.safetensors"}) ==
        Told{"dit wan2.2-t2v-a14b 0.875..1"});
  CHECK(assigned(i2v, {"low_noise_model/a.safetensors"}) == Told{"dit wan2.2-i2v-a14b 0..0.9"});
  CHECK(assigned(i2v, {"a.safetensors"}) == Told{"dit wan2.2-i2v-a14b 0..1"});
  CHECK(assigned("wan_i2v_14b.txt", {"low_noise/a.safetensors"}) ==
        Told{"dit wan2.1-i2v-14b 0..1"});
}

TEST_CASE("What is trained of one expert alone says which one it is", "[detect]") {
  const auto saved = [](const char* keys, const std::vector<std::string>& paths) {
    std::vector<FoundPart> parts;
    for (const std::string& path : paths)
      parts.push_back({detected(index_of(read_keys(keys))), path, {}});
    family().assign(parts);
    std::string all;
    for (const FoundPart& found : parts) all += family().lora_targets(found.part).component + ";";
    return all;
  };
  const char *const t2v = "wan_t2v_14b.txt", *const i2v = "wan22_i2v_a14b.txt";
  CHECK(saved(t2v, {"transformer_2/a.safetensors"}) == "dit2;");
  CHECK(saved(i2v, {"low_noise_model/a.safetensors"}) == "dit2;");
  CHECK(saved(i2v, {"high_noise_model/a.safetensors"}) == "dit;");
  CHECK(saved(i2v, {"a.safetensors"}) == ";");
  CHECK(saved(t2v, {"a.safetensors"}) == "dit;");
  CHECK(saved(i2v, {"low_noise/a.safetensors", "high_noise/a.safetensors"}) == "dit2;dit;");
}

TEST_CASE("Hints say which expert is which where paths do not", "[detect]") {
  const TensorIndex index = index_of(read_keys("wan_t2v_14b.txt"));
  const Detection low = detected(index, {.component = "dit2", .variant = "wan2.2-t2v-a14b"});
  CHECK(low.component == "dit2");
  CHECK(family().sigma_range(low).high == 0.875);
  CHECK(family().sigma_range(detected(index)).low == 0.0);
}

// DiffSynth-Studio's scripts train an expert each, between --min_timestep_boundary and
// --max_timestep_boundary. Those of Fun-A14B and VACE-Fun-A14B say what those of I2V-A14B say, and
// no other script of Wan says any.
TEST_CASE("Models that were trained on have schedules of their own", "[schedules]") {
  const auto find = [](std::string_view name, std::string_view variant) {
    const auto rows = family().schedules();
    const auto found = std::ranges::find_if(rows, [&](const ScheduleDefaults& row) {
      return row.name == name && formats::any_glob_matches(row.variants, variant);
    });
    REQUIRE(found != rows.end());
    return std::tuple(found->num_inference_steps, found->cfg_scale, found->shift.value,
                      found->solver);
  };
  using Row = std::tuple<int, double, double, std::string_view>;
  CHECK(find("default", "wan2.1-t2v-14b-krea") == Row{6, 1, 20, "euler"});
  CHECK(find("default", "wan2.1-t2v-14b") == Row{50, 5, 5, "unipc"});
  CHECK(find("default", "wan2.1-i2v-1.3b") == Row{50, 6, 3, "euler"});
  CHECK(find("fun", "wan2.1-i2v-14b") == Row{50, 6, 3, "euler"});
  CHECK(find("fun", "wan2.2-i2v-a14b") == Row{50, 6, 5, "euler"});
}

TEST_CASE("Experts have the noise levels that published scripts draw from", "[schedules]") {
  struct Scripts {
    const char* keys;
    double boundary;
  };
  for (const auto& [keys, boundary] : {Scripts{"wan_t2v_14b_original.txt", 0.417},
                                       Scripts{"wan22_i2v_a14b_original.txt", 0.358}}) {
    CAPTURE(keys);
    std::vector<FoundPart> parts;
    for (const char* path : {"high_noise_model/a.safetensors", "low_noise_model/a.safetensors"})
      parts.push_back({detected(index_of(read_keys(keys))), path, {}});
    family().assign(parts);
    const SigmaRange high = family().sigma_range(parts[0].part),
                     low = family().sigma_range(parts[1].part);
    const ScheduleDefaults schedule = family().training_schedule(parts[0].part);
    const auto levels = [&](const samples::TimestepOptions& options,
                            const std::vector<SigmaRange>& ranges, double part) {
      std::vector<float> drawn;
      const samples::Timesteps timesteps(schedule, options, {}, ranges);
      for (const samples::Timestep& level : timesteps.grid(std::llround(1000 * part)))
        drawn.push_back(level.sigma);
      return drawn;
    };
    CHECK(levels({}, {high}, boundary) ==
          levels({.max_timestep_boundary = boundary}, {SigmaRange{}}, boundary));
    CHECK(levels({}, {low}, 1 - boundary) ==
          levels({.min_timestep_boundary = boundary}, {SigmaRange{}}, 1 - boundary));
    CHECK(samples::Timesteps(schedule, {}, {}, {high, low}).shares().front() == Approx(boundary));
  }
  // What has one denoiser has all levels, as its scripts do.
  for (const Published& published : kPublished) {
    if (std::string_view(published.variant).ends_with("a14b")) continue;
    const SigmaRange range =
        family().sigma_range(detected(index_of(read_keys(published.original))));
    CHECK(std::pair(range.low, range.high) == std::pair(0.0, 1.0));
  }
}

TEST_CASE("Modulation, time and layer norms stay float32", "[weights]") {
  const Detection part = detected(index_of(read_keys("wan_t2v_1_3b.txt")));
  const auto model = family().make_model({&part, 1}, {});
  model->component("dit").visit_weights([](const std::string& path, Weight& weight) {
    INFO(path);
    const bool is_wide = path.ends_with("modulation") || path.starts_with("time_") ||
                         path.find(".norm3.") != std::string::npos;
    CHECK(weight.keeps_float32() == is_wide);
  });
}
