// The two parts of a published VACE of Wan: what they are, and which belong together.
#include <algorithm>
#include <sstream>

#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "formats/glob.h"
#include "host/model/config_check.h"
#include "host/model/recognition.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/weight_binding.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

const ModelFamily& family() {
  return test::opened_family();
}

using Config = TensorIndex::Config;
using Reals = std::vector<double>;

struct Published {
  const char *file, *spelling, *variant;
  int64_t layers, width, mlp_width;
  Reals places;
};
const Published kPublished[] = {{"wan_vace_1_3b.txt",
                                 "diffusers",
                                 "wan2.1-vace-1.3b",
                                 30,
                                 1536,
                                 8960,
                                 {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28}},
                                {"wan_vace_1_3b_original.txt",
                                 "original",
                                 "wan2.1-vace-1.3b",
                                 30,
                                 1536,
                                 8960,
                                 {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28}},
                                {"wan_vace_14b.txt",
                                 "diffusers",
                                 "wan2.1-vace-14b",
                                 40,
                                 5120,
                                 13824,
                                 {0, 5, 10, 15, 20, 25, 30, 35}},
                                {"wan_vace_14b_original.txt",
                                 "original",
                                 "wan2.1-vace-14b",
                                 40,
                                 5120,
                                 13824,
                                 {0, 5, 10, 15, 20, 25, 30, 35}}};

// As the original repository, diffusers and VideoX-Fun write it.
std::vector<Config> configs_of(const Published& p) {
  const Config original = {{"_class_name", "VaceWanModel"},
                           {"_diffusers_version", "0.33.0.dev0"},
                           {"dim", p.width},
                           {"eps", 1e-6},
                           {"ffn_dim", p.mlp_width},
                           {"freq_dim", int64_t{256}},
                           {"in_dim", int64_t{16}},
                           {"model_type", "vace"},
                           {"num_heads", p.width / 128},
                           {"num_layers", p.layers},
                           {"out_dim", int64_t{16}},
                           {"text_len", int64_t{512}},
                           {"vace_in_dim", int64_t{96}},
                           {"vace_layers", p.places}};
  Config fun = original;
  fun["_class_name"] = "VaceWanTransformer3DModel";
  fun["model_type"] = "t2v";
  return {original,
          fun,
          {{"_class_name", "WanVACETransformer3DModel"},
           {"_diffusers_version", "0.34.0.dev0"},
           {"added_kv_proj_dim", nullptr},
           {"attention_head_dim", int64_t{128}},
           {"cross_attn_norm", true},
           {"eps", 1e-6},
           {"ffn_dim", p.mlp_width},
           {"freq_dim", int64_t{256}},
           {"image_dim", nullptr},
           {"in_channels", int64_t{16}},
           {"num_attention_heads", p.width / 128},
           {"num_layers", p.layers},
           {"out_channels", int64_t{16}},
           {"patch_size", Reals{1, 2, 2}},
           {"pos_embed_seq_len", nullptr},
           {"qk_norm", "rms_norm_across_heads"},
           {"rope_max_seq_len", int64_t{1024}},
           {"text_dim", int64_t{4096}},
           {"vace_in_channels", int64_t{96}},
           {"vace_layers", p.places}}};
}

Detection detected(const TensorIndex& index) {
  const auto part = model::detect_with_config(family(), index, {});
  REQUIRE(part);
  return *part;
}

// The tensors of a file that a part owns, or those that it leaves.
TensorIndex part_of(const Detection& part, const TensorIndex& file, bool is_own) {
  TensorIndex::Tensors tensors;
  for (const auto& [name, meta] : file.tensors())
    if (model::owns(part, name) == is_own) tensors.emplace(name, meta);
  return TensorIndex(std::move(tensors), file.config());
}

// Both parts of a file, as they are found one after the other.
std::vector<Detection> parts_of(const TensorIndex& file) {
  const Detection dit = detected(file);
  return {dit, detected(part_of(dit, file, /*is_own=*/false))};
}

void check_binding(const Detection& part, const TensorIndex& index) {
  const auto model = family().make_model({&part, 1}, {});
  const auto binding = weights::bind_weights(family().weight_map(part), part.prefix, index,
                                             model->component(part.component));
  CHECK_NOTHROW(binding.throw_unless_complete("the file", part.component));
  CHECK(binding.unused.empty());
}

// What the family makes of a file for each path: "component variant low..high".
std::vector<std::string> assigned(const char* keys, const std::vector<std::string>& paths,
                                  const std::vector<std::string>& trained = {}) {
  const std::vector<Detection> both = parts_of(index_of(read_keys(keys)));
  std::vector<FoundPart> found;
  for (const std::string& path : paths)
    for (const Detection& part : both) found.push_back({part, "/models/" + path, {}});
  for (const std::string& path : trained) found.push_back({both[1], "/models/" + path, {}});
  family().assign(found);
  std::vector<std::string> told;
  for (const FoundPart& one : found) {
    std::ostringstream text;
    text << one.part.component;
    if (one.part.component.starts_with("dit")) {
      const SigmaRange range = family().sigma_range(one.part);
      text << " " << one.part.variant << " " << range.low << ".." << range.high;
    }
    told.push_back(text.str());
  }
  return told;
}

}  // namespace

TEST_CASE("A file of a denoiser and its VACE is both, in every spelling", "[detect][vace]") {
  for (const Published& published : kPublished) {
    for (const char* prefix : {"", "model.diffusion_model."}) {
      INFO(prefix << published.file);
      const Keys keys = read_keys(published.file);
      const TensorIndex file = index_of(keys, prefix);
      const std::vector<Detection> parts = parts_of(file);
      const Detection &dit = parts[0], &vace = parts[1];
      CHECK(dit.component == "dit");
      CHECK(dit.integer("layers") == published.layers);
      CHECK(vace.component == "vace");
      CHECK(vace.spelling == published.spelling);
      CHECK(vace.prefix == prefix);
      CHECK(vace.integer("heads") == published.width / 128);
      CHECK(vace.integer("channels") == 96);
      CHECK(vace.config.at("places") == ConfigValue(published.places));
      check_binding(dit, part_of(dit, file, /*is_own=*/true));
      check_binding(vace, part_of(dit, file, /*is_own=*/false));
      for (const Config& config : configs_of(published)) {
        const std::vector<Detection> told = parts_of(index_of(keys, prefix, config));
        CHECK(bool(told[0].config == dit.config));
        CHECK(bool(told[1].config == vace.config));
      }
    }
  }
}

TEST_CASE("A VACE belongs to the denoiser whose file it lies in", "[detect][vace]") {
  using Told = std::vector<std::string>;
  const char *small = "wan_vace_1_3b_original.txt", *large = "wan_vace_14b_original.txt";
  CHECK(assigned(small, {"a.safetensors"}) == Told{"dit wan2.1-vace-1.3b 0..1", "vace"});
  CHECK(assigned(large, {"a.safetensors"}) == Told{"dit wan2.1-vace-14b 0..1", "vace"});
  const std::string high = "dit wan2.2-vace-a14b 0.875..1", low = "dit2 wan2.2-vace-a14b 0..0.875";
  CHECK(assigned(large, {"high_noise_model/a.safetensors", "low_noise_model/a.safetensors"}) ==
        Told{high, "vace", low, "vace2"});
  CHECK(assigned(large, {"low_noise_model/a.safetensors", "high_noise_model/a.safetensors"}) ==
        Told{low, "vace2", high, "vace"});
  CHECK(assigned(large, {"one.safetensors", "other.safetensors"}) ==
        Told{high, "vace", low, "vace2"});
  // One expert alone is the denoiser, and its VACE stands beside that.
  CHECK(assigned(large, {"low_noise_model/a.safetensors"}) ==
        Told{"dit wan2.2-vace-a14b 0..0.875", "vace"});
  // Files of a trained VACE alone.
  CHECK(assigned(large, {"a.safetensors"}, {"low_noise/trained.safetensors"}) ==
        Told{"dit wan2.1-vace-14b 0..1", "vace", "vace"});
  CHECK(assigned(large, {"one.safetensors", "other.safetensors"},
                 {"low_noise.safetensors", "high_noise.safetensors"}) ==
        Told{high, "vace", low, "vace2", "vace2", "vace"});
  CHECK(assigned(large, {"one.safetensors", "other.safetensors"},
                 {"trained.safetensors", "later.safetensors"}) ==
        Told{high, "vace", low, "vace2", "vace", "vace2"});
}

TEST_CASE("A denoiser of texts takes a VACE from a file of its own", "[detect][vace]") {
  const Detection vace = parts_of(index_of(read_keys("wan_vace_1_3b.txt")))[1];
  std::vector<FoundPart> found = {{detected(index_of(read_keys("wan_t2v_1_3b.txt"))), "/a", {}},
                                  {vace, "/b", {}}};
  family().assign(found);
  CHECK(found[0].part.variant == "wan2.1-vace-1.3b");
  const std::vector<Detection> parts = {found[0].part, found[1].part};
  CHECK_NOTHROW(family().make_model(parts, {}));
}

TEST_CASE("A VACE that does not fit is told", "[detect][vace]") {
  const auto message = [](const Keys& keys, const Config& config = {}) {
    return test::error_of([&] { parts_of(index_of(keys, "", config)); }).message();
  };
  const Keys keys = read_keys("wan_vace_1_3b.txt");
  CHECK(message(keys, {{"vace_layers", Reals{0, 2}}}).find("15 blocks") != std::string::npos);
  CHECK(message(keys, {{"vace_in_channels", int64_t{80}}}).find("\"vace_in_channels\" is 80") !=
        std::string::npos);
  Keys odd = keys;
  odd["vace_patch_embedding.weight"][1] = 97;
  CHECK(message(odd).find("97 channels") != std::string::npos);
  Keys shorter = keys;
  std::erase_if(shorter, [](const auto& row) { return row.first.starts_with("vace_blocks.14."); });
  CHECK(message(shorter).find("vace_layers") != std::string::npos);

  std::vector<Detection> parts = parts_of(index_of(keys));
  parts[0] = parts_of(index_of(read_keys("wan_vace_14b.txt")))[0];
  const Error error = test::error_of([&] { family().make_model(parts, {}); });
  CHECK(error.message().find("not made for the dit") != std::string::npos);
}

TEST_CASE("What is made has the size of the clip that it follows", "[vace]") {
  const std::vector<Detection> parts = parts_of(index_of(read_keys("wan_vace_1_3b.txt")));
  const auto model = family().make_model(parts, {});
  const auto target = [&](const Inputs& inputs, const MediaTarget& asked = {0, 0, 0}) {
    return model->target(inputs, asked);
  };
  const auto clip = [](int64_t frames, int64_t height, int64_t width) {
    return Inputs{{"vace_video", at::empty({3, frames, height, width}, at::kMeta)}};
  };
  CHECK(target(clip(7, 52, 70)) == MediaTarget{5, 48, 64});
  CHECK(target(clip(100, 720, 1280)) == MediaTarget{81, 464, 832});
  CHECK(target(clip(100, 1280, 720)) == MediaTarget{81, 832, 464});
  CHECK(target(clip(100, 720, 1280), {9, 0, 320}) == MediaTarget{9, 0, 320});
  CHECK(target({}) == MediaTarget{0, 0, 0});
  const auto message = [&](Inputs inputs, std::vector<double> scale) {
    inputs.emplace("vace_scale", std::move(scale));
    return test::error_of([&] { target(inputs); }).message();
  };
  CHECK(message({}, {0.5}).find("nothing to follow") != std::string::npos);
  CHECK(message(clip(5, 48, 64), {1, 2}).find("the VACE has 15 blocks") != std::string::npos);

  // Scales of zero leave it nothing to do.
  const auto runs = [&](std::vector<double> scale) {
    return model->runs("vace", {{"vace_scale", std::move(scale)}}, /*step=*/0, /*steps=*/4);
  };
  CHECK(runs({0, 0.5}));
  CHECK_FALSE(runs({0, 0}));
  CHECK(model->runs("vace", clip(5, 48, 64), /*step=*/0, /*steps=*/4));

  // Pictures are latent frames in front.
  const Conditioning cond = {{"vace_references", at::ones({16, 2, 6, 8})}};
  CHECK(model->latent_shape({5, 48, 64}, cond) == std::vector<int64_t>{16, 4, 6, 8});
  const at::Tensor latents = at::arange(4).view({1, 1, 4, 1, 1});
  CHECK(at::equal(model->to_decode(latents, cond).latents_BCTHW.flatten(), at::arange(2, 4)));
}

TEST_CASE("VACE is sampled as it is published", "[schedules][vace]") {
  using Row = std::tuple<int, double, double, std::string_view>;
  const auto first = [](std::string_view variant) {
    const ScheduleDefaults& found = sampling::find_schedule(family().schedules(), "", variant);
    return Row{found.num_inference_steps, found.cfg_scale, found.shift.value, found.solver};
  };
  CHECK(first("wan2.1-vace-1.3b") == Row{50, 5, 16, "unipc"});
  CHECK(first("wan2.1-vace-14b") == Row{50, 5, 16, "unipc"});
  CHECK(first("wan2.2-vace-a14b") == Row{50, 5, 12, "euler"});
}
