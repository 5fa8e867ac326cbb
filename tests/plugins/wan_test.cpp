#include <algorithm>
#include <dlfcn.h>

#include <ATen/ATen.h>

#include "atelier/model_family.h"
#include "atelier/plugin.h"

#include "host/model/config_check.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/models.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

const ModelFamily& family() {
  static const ModelFamily* const opened = [] {
    void* library = dlopen(PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<AtelierPluginEntry>(dlsym(library, "atelier_plugin"));
    char message[256] = "no entry";
    void* result = entry ? entry()->open(message, sizeof(message)) : nullptr;
    if (!result) throw std::runtime_error(message);
    return static_cast<ModelFamily*>(result);
  }();
  return *opened;
}

Detection detected(const TensorIndex& index, const DetectHint& hint = {}) {
  const auto part = model::detect_with_config(family(), index, hint);
  REQUIRE(part);
  return *part;
}

// A published DiT, in both spellings.
struct Published {
  const char *diffusers, *original, *variant, *model_type;
  int64_t layers, width, mlp_width, in_channels, image_width, image_rows, parameters;
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
          {"out_dim", int64_t{16}},
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
          {"out_channels", int64_t{16}},
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
        CHECK(part.integer("channels") == 16);
        CHECK(part.integer("given_channels") == published.in_channels - 16);
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

TEST_CASE("The VAE of Wan 2.1 is known in both spellings, and has no other weights", "[weights]") {
  for (const char* file : {"vae_diffusers.txt", "vae_original.txt"}) {
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
    CHECK(model->latent_shape({81, 480, 832}) == std::vector<int64_t>{16, 21, 60, 104});
  }
}

TEST_CASE("The image encoder is known in every spelling, and its last layer is not loaded",
          "[weights]") {
  Keys bare;
  for (const auto& [name, shape] : read_keys("clip_vision.txt"))
    bare[name.substr(std::string("vision_model.").size())] = shape;
  const std::pair<const char*, Keys> files[] = {{"original", read_keys("clip_original.txt")},
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

TEST_CASE("What is not run yet is refused by its name, and other families are not taken",
          "[detect]") {
  const auto refused = [&](const TensorIndex& index, const DetectHint& hint,
                           const std::string& part) {
    const Error error = test::error_of([&] { family().detect(index, hint); });
    INFO(error.what());
    CHECK(test::mentions(error, part));
  };
  Keys control = read_keys("wan_i2v_14b_original.txt");
  control["patch_embedding.weight"][1] = 48;
  refused(index_of(control), {}, "48 input and 16 output channels that is shown images");
  refused(index_of(read_keys("wan22_ti2v_5b.txt")), {}, "other widths");
  const Keys keys = read_keys("wan_t2v_1_3b_original.txt");
  refused(index_of(keys), {.component = "vae", .variant = {}}, "those of the dit");
  refused(index_of(keys, "", {}, at::kChar), {}, "quantised");
  refused(index_of(keys, "", {{"num_heads", int64_t{7}}}), {}, "7 heads");
  for (const char* file : {"transformer.txt", "lumina2_transformer.txt", "lumina2_original.txt"}) {
    INFO(file);
    CHECK_FALSE(family().detect(index_of(read_keys(file)), {}));
  }
}

TEST_CASE("The experts of Wan 2.2 are told by hints, and share the noise levels", "[detect]") {
  const TensorIndex index = index_of(read_keys("wan_t2v_14b.txt"));
  const Detection high = detected(index, {.component = {}, .variant = "wan2.2-t2v-a14b"});
  const Detection low = detected(index, {.component = "dit2", .variant = "wan2.2-t2v-a14b"});
  CHECK(high.component == "dit");
  CHECK(low.component == "dit2");
  CHECK(family().sigma_range(high).low == 0.875);
  CHECK(family().sigma_range(low).high == 0.875);
  CHECK(family().sigma_range(detected(index_of(read_keys("wan22_i2v_a14b.txt")))).low == 0.9);
  CHECK(family().sigma_range(detected(index)).low == 0.0);
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
