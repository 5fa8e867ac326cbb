#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "formats/glob.h"
#include "host/model/config_check.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

constexpr const char* kAnimateVariant = "wan2.2-animate-14b";
constexpr const char* kAnimateFiles[] = {"wan22_animate_original.txt", "wan22_animate.txt"};
constexpr int64_t kAnimateParameters[] = {17274817108, 17274816884};
constexpr int64_t kBlurs = 7 * 2 * 16;  // values of kernels that the original file holds

// As the original repository and diffusers write them.
TensorIndex::Config animate_config(bool is_original) {
  if (is_original)
    return {{"_class_name", "WanAnimateModel"},
            {"_diffusers_version", "0.35.0.dev0"},
            {"cross_attn_norm", true},
            {"dim", int64_t{5120}},
            {"eps", 1e-6},
            {"ffn_dim", int64_t{13824}},
            {"freq_dim", int64_t{256}},
            {"in_dim", int64_t{36}},
            {"motion_encoder_dim", int64_t{512}},
            {"num_heads", int64_t{40}},
            {"num_layers", int64_t{40}},
            {"out_dim", int64_t{16}},
            {"patch_size", std::vector<double>{1, 2, 2}},
            {"qk_norm", true},
            {"text_dim", int64_t{4096}},
            {"text_len", int64_t{512}},
            {"use_context_parallel", false},
            {"use_img_emb", true},
            {"window_size", std::vector<double>{-1, -1}}};
  return {{"_class_name", "WanAnimateTransformer3DModel"},
          {"_diffusers_version", "0.36.0.dev0"},
          {"added_kv_proj_dim", int64_t{5120}},
          {"attention_head_dim", int64_t{128}},
          {"cross_attn_norm", true},
          {"eps", 1e-6},
          {"face_encoder_hidden_dim", int64_t{1024}},
          {"face_encoder_num_heads", int64_t{4}},
          {"ffn_dim", int64_t{13824}},
          {"freq_dim", int64_t{256}},
          {"image_dim", int64_t{1280}},
          {"in_channels", int64_t{36}},
          {"inject_face_latents_blocks", int64_t{5}},
          {"latent_channels", int64_t{16}},
          {"motion_dim", int64_t{20}},
          {"motion_encoder_batch_size", int64_t{8}},
          {"motion_encoder_channel_sizes", nullptr},
          {"motion_encoder_dim", int64_t{512}},
          {"motion_encoder_size", int64_t{512}},
          {"motion_style_dim", int64_t{512}},
          {"num_attention_heads", int64_t{40}},
          {"num_layers", int64_t{40}},
          {"out_channels", int64_t{16}},
          {"patch_size", std::vector<double>{1, 2, 2}},
          {"pos_embed_seq_len", nullptr},
          {"qk_norm", "rms_norm_across_heads"},
          {"rope_max_seq_len", int64_t{1024}},
          {"text_dim", int64_t{4096}}};
}

Detection animate_part(const TensorIndex& index) {
  const auto part = model::detect_with_config(test::opened_family(), index, {});
  REQUIRE(part);
  return *part;
}

// The tensors that are not the part's, or only those.
Keys divided(const Keys& keys, const Detection& part, bool is_own) {
  Keys some;
  for (const auto& [name, shape] : keys) {
    const bool owns = std::ranges::any_of(
        part.owns, [&](const std::string& glob) { return formats::glob_match(glob, name); });
    if (owns == is_own) some.emplace(name, shape);
  }
  return some;
}

std::vector<std::string> shown(const std::vector<Piece>& pieces) {
  std::vector<std::string> texts;
  for (const Piece& piece : pieces)
    texts.push_back(std::to_string(piece.first) + "+" + std::to_string(piece.frames) + "/" +
                    std::to_string(piece.shared));
  return texts;
}

}  // namespace

TEST_CASE("The published file of Animate is a denoiser and its adapter", "[detect]") {
  for (const bool is_original : {true, false}) {
    for (const bool has_config : {true, false}) {
      INFO(kAnimateFiles[is_original ? 0 : 1] << ", config: " << has_config);
      const Keys keys = read_keys(kAnimateFiles[is_original ? 0 : 1]);
      const auto config = has_config ? animate_config(is_original) : TensorIndex::Config();
      const Detection dit = animate_part(index_of(keys, "", config));
      CHECK(dit.component == "dit");
      CHECK(dit.variant == kAnimateVariant);
      CHECK(dit.integer("given_channels") == 20);
      const Keys rest = divided(keys, dit, /*is_own=*/false);
      const Detection adapter = animate_part(index_of(rest, "", config));
      CHECK(adapter.component == "animate_adapter");
      CHECK(adapter.variant == kAnimateVariant);
      CHECK(adapter.integer("adapters") == 8);
      CHECK(adapter.integer("interval") == 5);
      CHECK(adapter.integer("face_heads") == 4);
      int64_t parameters = 0;
      for (const auto& [part, tensors] :
           {std::pair(dit, divided(keys, dit, /*is_own=*/true)), std::pair(adapter, rest)}) {
        const auto model = test::opened_family().make_model({&part, 1}, {});
        nn::Module& module = model->component(part.component);
        const auto binding = weights::bind_weights(test::opened_family().weight_map(part), "",
                                                   index_of(tensors), module);
        CHECK_NOTHROW(binding.throw_unless_complete("Animate", part.component));
        CHECK(binding.unused.size() == (is_original && part.component != "dit" ? 14 : 0));
        module.visit_weights(
            [&](const std::string&, Weight& weight) { parameters += weight.numel(); });
      }
      CHECK(parameters == kAnimateParameters[is_original ? 0 : 1] - (is_original ? kBlurs : 0));
    }
  }
}

TEST_CASE("A denoiser of Animate without its adapter is known by the config or by that one",
          "[detect]") {
  const Keys keys = read_keys(kAnimateFiles[0]);
  const Detection whole = animate_part(index_of(keys));
  const Keys alone = divided(keys, whole, /*is_own=*/true);
  CHECK(animate_part(index_of(alone, "", animate_config(true))).variant == kAnimateVariant);
  const Detection dit = animate_part(index_of(alone));
  CHECK(dit.variant == "wan2.1-i2v-14b");
  const Detection adapter = animate_part(index_of(divided(keys, whole, /*is_own=*/false)));
  std::vector<FoundPart> parts = {
      {.part = dit, .path = "/m/dit.safetensors", .hint = {}, .folder = {}},
      {.part = adapter, .path = "/m/adapter.safetensors", .hint = {}, .folder = {}}};
  test::opened_family().assign(parts);
  CHECK(parts[0].part.variant == kAnimateVariant);
}

TEST_CASE("Clips of Animate are made in segments, as many and as large as the pose", "[animate]") {
  Detection dit = animate_part(index_of(read_keys(kAnimateFiles[0])));
  const auto model = test::opened_family().make_model({&dit, 1}, {});
  const Inputs pose = {
      {"animate_pose_video", at::empty({3, 90, 730, 1290}, at::TensorOptions(at::kMeta))}};
  const auto pieces = [&](int64_t frames, Inputs inputs = {}) {
    inputs.insert(pose.begin(), pose.end());
    return shown(model->pieces(inputs, {frames, 64, 64}));
  };
  using Texts = std::vector<std::string>;
  CHECK(pieces(77).empty());
  CHECK(pieces(49).empty());
  CHECK(pieces(50) == Texts{"0+77/0"});
  CHECK(pieces(153) == Texts{"0+77/0", "76+77/1"});
  CHECK(pieces(154) == Texts{"0+77/0", "76+77/1", "152+77/1"});
  const auto shared = [](int64_t frames) {
    return Inputs{{"prev_segment_conditioning_frames", frames}};
  };
  // As the original repository has it; diffusers counts one too many of short segments.
  CHECK(pieces(149, shared(5)) == Texts{"0+77/0", "72+77/5"});
  CHECK(pieces(21, {{"segment_frame_length", int64_t{9}},
                    {"prev_segment_conditioning_frames", int64_t{5}}}) ==
        Texts{"0+9/0", "4+9/5", "8+9/5", "12+9/5"});
  for (const auto& [inputs, what] :
       {std::pair(shared(3), "--prev_segment_conditioning_frames is 3"),
        std::pair(Inputs{{"segment_frame_length", int64_t{8}}}, "--segment_frame_length is 8"),
        std::pair(Inputs{{"segment_frame_length", int64_t{1}}}, "--segment_frame_length is 1, and"),
        std::pair(Inputs{{"segment_frame_length", int64_t{5}},
                         {"prev_segment_conditioning_frames", int64_t{5}}},
                  "more than the frames that it shares, which are 5")}) {
    const Error error = test::error_of([&, &inputs = inputs] { pieces(100, inputs); });
    CHECK(test::mentions(error, what));
  }

  CHECK(model->target(pose, {0, 0, 0}) == MediaTarget{90, 720, 1280});
  CHECK(model->target(pose, {49, 320, 0}) == MediaTarget{49, 320, 0});
  const Conditioning cond = {{"animate_pose", at::zeros({16, 20, 8, 6})}};
  CHECK(model->latent_shape({77, 64, 48}, cond) == std::vector<int64_t>{16, 21, 8, 6});
  const at::Tensor latents = at::randn({1, 16, 21, 8, 6});
  CHECK(at::equal(model->to_decode(latents, cond).latents_BCTHW, latents.narrow(2, 1, 20)));
  Inputs half = pose;
  half.emplace("animate_mask_video", at::empty({1, 90, 64, 64}, at::TensorOptions(at::kMeta)));
  const Error error = test::error_of([&] { model->target(half, {}); });
  CHECK(test::mentions(error, "animate_mask_video without animate_inpaint_video"));
}
