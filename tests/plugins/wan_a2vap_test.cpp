// Wan2.2-Animate-2 and Video-As-Prompt: what they are known by, what is made of their inputs, and
// how they are sampled.
#include <algorithm>
#include <array>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/model_family.h"

#include "formats/glob.h"
#include "host/model/config_check.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

constexpr const char* kDistilled = "wan2.2-animate2-14b-distill";

const ModelFamily& family() {
  return test::opened_family();
}

Detection animate2(const std::string& path = "wan_animate_2_bf16.safetensors",
                   const DetectHint& hint = {}) {
  const TensorIndex index = index_of(read_keys("wan22_animate2_original.txt"));
  FoundPart found = {family().detect(index, hint).value(), "/models/" + path, hint};
  family().assign({&found, 1});
  return found.part;
}

// What files say before they are read: a picture and a clip of these sizes.
Inputs inputs_of(int64_t height, int64_t width, int64_t frames) {
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  return {{"animate2_reference_image", at::empty({3, height, width}, meta)},
          {"animate2_reference_video", at::empty({3, frames, 90, 160}, meta)}};
}

}  // namespace

TEST_CASE("Both spellings of Animate-2 fill every weight once", "[weights]") {
  const Keys original = read_keys("wan22_animate2_original.txt");
  const Keys diffusers = read_keys("wan22_animate2.txt");
  for (const auto& [keys, spelling] :
       {std::pair(&original, "original"), std::pair(&diffusers, "diffusers")}) {
    INFO(spelling);
    const TensorIndex index = index_of(*keys);
    const Detection part = model::detect_with_config(family(), index, {}).value();
    CHECK(part.variant == "wan2.2-animate2-14b");
    CHECK(part.spelling == spelling);
    CHECK(part.integer("layers") == 40);
    const auto model = family().make_model({&part, 1}, {});
    nn::Module& dit = model->component("dit");
    const auto binding = weights::bind_weights(family().weight_map(part), "", index, dit);
    CHECK_NOTHROW(binding.throw_unless_complete("keys", "dit"));
    CHECK(binding.unused.empty());
    for (const std::string& other : family().spellings(part)) {
      Detection respelled = part;
      respelled.spelling = other;
      Keys names;
      const TensorIndex spelled = weights::published_index(dit, family().weight_map(respelled));
      for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
      CHECK(names == (other == "original" ? original : diffusers));
    }
  }
}

TEST_CASE("A path or a hint tells the distilled form, which leans away from its first frame",
          "[detect]") {
  const auto bias_of = [](const Detection& part) {
    return part.config.contains("first_frame_bias") ? part.real("first_frame_bias") : 0.0;
  };
  CHECK(bias_of(animate2()) == 0);
  const Detection by_path = animate2("wan_animate_2_bf16_distillation.safetensors");
  CHECK(by_path.variant == kDistilled);
  CHECK(bias_of(by_path) == -1.3);
  CHECK((bias_of(animate2("a.safetensors", {.variant = kDistilled})) == -1.3));
  const Detection hinted =
      animate2("wan_animate_2_bf16_distillation.safetensors", {.variant = "wan2.2-animate2-14b"});
  CHECK(hinted.variant == "wan2.2-animate2-14b");
  CHECK(bias_of(hinted) == 0);
}

TEST_CASE("Animate-2's config is that of diffusers, and has to fit", "[config]") {
  const Keys keys = read_keys("wan22_animate2.txt");
  const TensorIndex::Config config = {{"_class_name", "WanAnimate2Transformer3DModel"},
                                      {"cross_attn_norm", true},
                                      {"dim", int64_t{5120}},
                                      {"eps", 1e-6},
                                      {"ffn_dim", int64_t{13824}},
                                      {"freq_dim", int64_t{256}},
                                      {"in_dim", int64_t{36}},
                                      {"num_heads", int64_t{40}},
                                      {"num_layers", int64_t{40}},
                                      {"out_dim", int64_t{16}},
                                      {"patch_size", std::vector<double>{1, 2, 2}},
                                      {"refer_offset_h", int64_t{0}},
                                      {"refer_offset_t", int64_t{1}},
                                      {"refer_offset_w", int64_t{-1}},
                                      {"refer_stride", int64_t{1}},
                                      {"text_dim", int64_t{4096}},
                                      {"text_len", int64_t{512}},
                                      {"use_img_emb", true}};
  CHECK_NOTHROW(model::detect_with_config(family(), index_of(keys, "", config), {}));
  for (const char* field : {"refer_offset_t", "refer_stride", "dim"}) {
    INFO(field);
    TensorIndex::Config other = config;
    other[field] = int64_t{3};
    CHECK_THROWS_AS(model::detect_with_config(family(), index_of(keys, "", other), {}), Error);
  }
}

TEST_CASE("A driven clip has the shape of its reference image and the length of the clip",
          "[target]") {
  const Detection part = animate2();
  const auto model = family().make_model({&part, 1}, {});
  const auto made = [&](int64_t height, int64_t width, const MediaTarget& asked) {
    return model->target(inputs_of(height, width, 50), asked);
  };
  CHECK((made(800, 640, {0, 0, 0}) == MediaTarget{50, 800, 640}));
  CHECK((made(720, 1280, {0, 0, 0}) == MediaTarget{50, 528, 944}));
  CHECK((made(1280, 720, {17, 0, 0}) == MediaTarget{17, 944, 528}));
  CHECK((made(1280, 720, {0, 640, 352}) == MediaTarget{50, 640, 352}));
  CHECK((made(1280, 720, {0, 640, 0}) == MediaTarget{50, 640, 352}));
  CHECK((model->target({}, {0, 64, 0}) == MediaTarget{0, 64, 0}));
}

TEST_CASE("A driven clip is made in pieces of 81 frames, which share one", "[target]") {
  const Detection part = animate2();
  const auto model = family().make_model({&part, 1}, {});
  const auto pieces_of = [&](int64_t frames) {
    std::vector<std::array<int64_t, 3>> pieces;
    for (const Piece& piece : model->pieces(inputs_of(64, 64, frames), {frames, 64, 64}))
      pieces.push_back({piece.first, piece.frames, piece.shared});
    return pieces;
  };
  using Pieces = std::vector<std::array<int64_t, 3>>;
  CHECK(pieces_of(81).empty());
  CHECK(pieces_of(17).empty());
  CHECK((pieces_of(18) == Pieces{{0, 21, 0}}));
  CHECK((pieces_of(82) == Pieces{{0, 81, 0}, {80, 81, 1}}));
  CHECK((pieces_of(161) == Pieces{{0, 81, 0}, {80, 81, 1}}));
  CHECK((pieces_of(162) == Pieces{{0, 81, 0}, {80, 81, 1}, {160, 81, 1}}));
  CHECK((model->pieces({}, {200, 64, 64}).empty()));
}

TEST_CASE("The reference image is denoised in front of a driven clip", "[target]") {
  const Detection part = animate2();
  const auto model = family().make_model({&part, 1}, {});
  const Conditioning cond = {{"driving_clip", at::zeros({16, 2, 8, 8})}};
  CHECK((model->latent_shape({5, 64, 64}, {}) == std::vector<int64_t>{16, 2, 8, 8}));
  CHECK((model->latent_shape({5, 64, 64}, cond) == std::vector<int64_t>{16, 3, 8, 8}));
  const at::Tensor latents = at::randn({1, 16, 3, 8, 8});
  CHECK(at::equal(model->to_decode(latents, cond).latents_BCTHW, latents.narrow(2, 1, 2)));
  CHECK((at::equal(model->to_decode(latents, {}).latents_BCTHW, latents)));
}

TEST_CASE("Animate-2 is sampled as published, and LoRAs train its queries, keys and values",
          "[schedule]") {
  for (const auto& [variant, steps, scale] :
       {std::tuple("wan2.2-animate2-14b", 40, 3.0), std::tuple(kDistilled, 10, 1.0)}) {
    INFO(variant);
    const ScheduleDefaults& schedule = sampling::find_schedule(family().schedules(), {}, variant);
    CHECK(schedule.name == "default");
    CHECK(schedule.num_inference_steps == steps);
    CHECK(schedule.cfg_scale == scale);
    CHECK(schedule.shift.value == 5);
    CHECK(schedule.solver == "dpm++");
    CHECK(schedule.grid.high == 1);
  }
  const Detection part = animate2();
  CHECK(family().media_defaults(part).fps == 24);
  // Encoders alone know the variant and no numbers.
  CHECK((family().media_defaults({.component = "dit", .variant = kDistilled}).target ==
         MediaTarget{81, 800, 640}));
  CHECK(family().sigma_range(part).low == 0);
  CHECK((family().lora_targets(part).include == std::vector<std::string>{"blocks.*.self_attn.q",
                                                                         "blocks.*.self_attn.k",
                                                                         "blocks.*.self_attn.v"}));
}

// ---- Video-As-Prompt ----

TEST_CASE("A file of Video-As-Prompt holds a denoiser and its branch, and nothing else",
          "[weights]") {
  const Keys keys = read_keys("wan_vap_14b.txt");
  Keys of_dit, of_branch;
  for (const auto& [name, shape] : keys)
    (name.find("_mot_ref") == std::string::npos ? of_dit : of_branch)[name] = shape;
  const Detection dit = model::detect_with_config(family(), index_of(keys), {}).value();
  CHECK(dit.component == "dit");
  CHECK(dit.variant == "wan2.1-i2v-14b");
  CHECK(dit.integer("layers") == 40);
  for (const auto& [name, shape] : keys) {
    INFO(name);
    const bool is_own = std::ranges::any_of(
        dit.owns, [&](const std::string& glob) { return formats::glob_match(glob, name); });
    CHECK(is_own == of_dit.contains(name));
  }
  const TensorIndex rest = index_of(of_branch);
  const Detection branch = model::detect_with_config(family(), rest, {}).value();
  CHECK(branch.component == "vap");
  CHECK(branch.integer("layers") == 10);
  const auto model = family().make_model({&branch, 1}, {});
  nn::Module& vap = model->component("vap");
  const auto binding = weights::bind_weights(family().weight_map(branch), "", rest, vap);
  CHECK_NOTHROW(binding.throw_unless_complete("keys", "vap"));
  CHECK(binding.unused.empty());
  Keys names;
  const TensorIndex spelled = weights::published_index(vap, family().weight_map(branch));
  for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
  CHECK(names == of_branch);
}

TEST_CASE("The config of Video-As-Prompt says which blocks have a branch", "[config]") {
  Keys of_branch;
  for (const auto& [name, shape] : read_keys("wan_vap_14b.txt"))
    if (name.find("_mot_ref") != std::string::npos) of_branch[name] = shape;
  TensorIndex::Config config = {
      {"_class_name", "WanTransformer3DMOTModel"},
      {"attention_head_dim", int64_t{128}},
      {"attention_head_dim_mot_ref", nullptr},
      {"block_idx_with_mot_ref", std::vector<double>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36}},
      {"num_attention_heads", int64_t{40}},
      {"num_layers", int64_t{40}},
      {"reference_train_mode", nullptr}};
  CHECK_NOTHROW(model::detect_with_config(family(), index_of(of_branch, "", config), {}));
  config["block_idx_with_mot_ref"] = std::vector<double>{0, 10, 20};
  CHECK_THROWS_AS(model::detect_with_config(family(), index_of(of_branch, "", config), {}), Error);
}

TEST_CASE("A clip that is a prompt asks for 49 frames", "[target]") {
  const TensorIndex index = index_of(read_keys("wan_vap_14b.txt"));
  const Detection part = family().detect(index, {}).value();
  const auto model = family().make_model({&part, 1}, {});
  const Inputs inputs = {{"vap_video", at::empty({3, 90, 64, 64}, at::kMeta)}};
  CHECK((model->target(inputs, {0, 480, 832}) == MediaTarget{49, 480, 832}));
  CHECK((model->target(inputs, {17, 480, 832}) == MediaTarget{17, 480, 832}));
  CHECK(model->pieces(inputs, {161, 480, 832}).empty());

  // A text about a clip that is not there is told before a weight is read.
  for (const char* text : {"vap_prompt", "negative_vap_prompt"}) {
    const Inputs alone = {{text, std::string("a candle melts")}};
    const Error error = test::error_of([&] { model->target(alone, {0, 480, 832}); });
    CHECK(error.message().find(std::string(text) + ": it says what is seen in a clip") !=
          std::string::npos);
  }
}
