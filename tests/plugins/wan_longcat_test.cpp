// LongCat-Video in the plugin of Wan: its files, its defaults, its pieces and what guides it.
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "host/model/config_check.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

namespace longcat {
using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

constexpr const char *kKeys = "longcat_video.txt", *kVariant = "longcat-video";

const ModelFamily& family() {
  return test::opened_family();
}

Detection detected(const TensorIndex& index) {
  const auto part = model::detect_with_config(family(), index, {});
  REQUIRE(part);
  return *part;
}

TensorIndex::Config published_config() {
  return {{"_class_name", "LongCatVideoTransformer3DModel"},
          {"_diffusers_version", "0.35.1"},
          {"adaln_tembed_dim", int64_t{512}},
          {"bsa_params.sparsity", 0.9375},
          {"caption_channels", int64_t{4096}},
          {"cp_split_hw", nullptr},
          {"depth", int64_t{48}},
          {"enable_bsa", false},
          {"enable_flashattn2", true},
          {"frequency_embedding_size", int64_t{256}},
          {"hidden_size", int64_t{4096}},
          {"in_channels", int64_t{16}},
          {"mlp_ratio", int64_t{4}},
          {"num_heads", int64_t{32}},
          {"out_channels", int64_t{16}},
          {"patch_size", std::vector<double>{1, 2, 2}},
          {"text_tokens_zero_pad", true}};
}

// A denoiser of random weights.
std::unique_ptr<Model> tiny_model() {
  Detection part = {.component = "dit", .variant = kVariant, .spelling = "original"};
  part.config = {{"layers", int64_t{2}},     {"width", int64_t{32}},
                 {"heads", int64_t{2}},      {"mlp_width", int64_t{48}},
                 {"text_width", int64_t{8}}, {"time_width", int64_t{16}},
                 {"channels", int64_t{4}},   {"modulation_width", int64_t{12}},
                 {"patch", int64_t{2}}};
  auto model = family().make_model({&part, 1}, {});
  at::manual_seed(3);
  model->component("dit").visit_weights(
      [](const std::string&, Weight& weight) { weight.set(0.3 * at::randn(weight.sizes())); });
  return model;
}

}  // namespace

TEST_CASE("The published denoiser is known by its names and shapes", "[detect]") {
  const Keys keys = read_keys(kKeys);
  const Detection part = detected(index_of(keys, "", published_config()));
  CHECK(part.component == "dit");
  CHECK(part.variant == kVariant);
  CHECK(part.spelling == "original");
  for (const auto& [number, value] :
       {std::pair("layers", 48), std::pair("width", 4096), std::pair("heads", 32),
        std::pair("mlp_width", 11008), std::pair("text_width", 4096), std::pair("time_width", 256),
        std::pair("modulation_width", 512), std::pair("channels", 16), std::pair("patch", 2)}) {
    INFO(number);
    CHECK(part.integer(number) == value);
  }
  const bool is_same = detected(index_of(keys, "model.diffusion_model.")).config == part.config;
  CHECK(is_same);
  const auto model = family().make_model({&part, 1}, {});
  nn::Module& dit = model->component("dit");
  const auto binding = weights::bind_weights(family().weight_map(part), "", index_of(keys), dit);
  CHECK_NOTHROW(binding.throw_unless_complete(kKeys, "dit"));
  CHECK(binding.unused.empty());
  dit.visit_weights([](const std::string& path, Weight& weight) {
    INFO(path);
    const bool is_wide = path.find("adaLN_modulation") != std::string::npos ||
                         path.starts_with("t_embedder") ||
                         path.find("pre_crs_attn_norm") != std::string::npos;
    CHECK(weight.keeps_float32() == is_wide);
  });
}

TEST_CASE("A config that means another model is refused", "[config]") {
  const Keys keys = read_keys(kKeys);
  const auto refused = [&](const char* field, const ConfigValue& value, const std::string& part) {
    TensorIndex::Config config = published_config();
    config[field] = value;
    const Error error = test::error_of([&] { detected(index_of(keys, "", config)); });
    INFO(error.what());
    CHECK(test::mentions(error, part));
  };
  refused("text_tokens_zero_pad", false, "text_tokens_zero_pad");
  refused("enable_bsa", true, "enable_bsa");
  refused("depth", int64_t{47}, "depth");
  TensorIndex::Config config = published_config();
  config.erase("text_tokens_zero_pad");
  const Error error = test::error_of([&] { detected(index_of(keys, "", config)); });
  CHECK(test::mentions(error, "text_tokens_zero_pad"));
}

TEST_CASE("The one that hears is refused by its name", "[detect]") {
  Keys keys = read_keys(kKeys);
  keys["blocks.0.audio_cross_attn.q_linear.weight"] = {4096, 4096};
  const Error error = test::error_of([&] { detected(index_of(keys)); });
  CHECK(test::mentions(error, "LongCat-Video-Avatar"));
}

TEST_CASE("What is not said is as the published program has it", "[schedules]") {
  const Detection part = detected(index_of(read_keys(kKeys)));
  const MediaDefaults media = family().media_defaults(part);
  CHECK((media.target == MediaTarget{93, 480, 832}));
  CHECK(media.fps == 15);
  const auto find = [](std::string_view name) {
    return sampling::find_schedule(family().schedules(), name, kVariant);
  };
  CHECK(find("default").num_inference_steps == 50);
  CHECK(find("default").cfg_scale == 4.0);
  const std::vector<float> levels =
      sampling::make_sigmas(find("default"), {.num_steps = 50, .tokens = 1560});
  const at::Tensor expected = at::linspace(1, 0.001, 50, at::kDouble).to(at::kFloat);
  REQUIRE(levels.size() == 51);
  for (int64_t i = 0; i < 50; ++i)
    CHECK(levels[static_cast<size_t>(i)] == Approx(expected[i].item<float>()).epsilon(1e-6));
  CHECK(levels.back() == 0);

  CHECK(find("distill").num_inference_steps == 16);
  CHECK(find("distill").cfg_scale == 1.0);
  for (const int steps : {1, 8, 16, 50}) {
    const auto few = sampling::make_sigmas(find("distill"), {.num_steps = steps, .tokens = 1560});
    for (int i = 0; i < steps; ++i)
      CHECK(few[static_cast<size_t>(i)] ==
            Approx((50 - std::floor(50.0 * i / steps)) / 50).epsilon(1e-6));
  }
  CHECK(find("euler").cfg_scale == 2.0);
  const SigmaRange range = family().sigma_range(part);
  CHECK(std::pair(range.low, range.high) == std::pair(0.0, 1.0));
}

TEST_CASE("The layers of a LoRA are those of the published script", "[lora]") {
  const LoraTargets targets = family().lora_targets(detected(index_of(read_keys(kKeys))));
  CHECK(targets.component == "dit");
  for (const char* layer :
       {"adaLN_modulation.1", "attn.qkv", "attn.proj", "cross_attn.q_linear",
        "cross_attn.kv_linear", "cross_attn.proj", "ffn.w1", "ffn.w2", "ffn.w3"}) {
    INFO(layer);
    CHECK(std::ranges::count(targets.include, std::string("blocks.*.") + layer) == 1);
  }
  CHECK(std::ranges::count(targets.include, "final_layer.adaLN_modulation.1") == 1);
}

TEST_CASE("A longer clip is made in pieces that share 13 frames", "[pieces]") {
  const auto model = tiny_model();
  // The first frame, the frames and the shared ones of each, one piece behind the other.
  const auto pieces = [&](int64_t frames) {
    std::vector<int64_t> numbers;
    for (const Piece& piece : model->pieces({}, {frames, 480, 832}))
      numbers.insert(numbers.end(), {piece.first, piece.frames, piece.shared});
    return numbers;
  };
  using Numbers = std::vector<int64_t>;
  CHECK(pieces(1).empty());
  CHECK(pieces(93).empty());
  CHECK(pieces(94) == Numbers{0, 93, 0, 80, 17, 13});
  CHECK(pieces(97) == Numbers{0, 93, 0, 80, 17, 13});
  CHECK(pieces(100) == Numbers{0, 93, 0, 80, 21, 13});
  CHECK(pieces(173) == Numbers{0, 93, 0, 80, 93, 13});
  CHECK(pieces(177) == Numbers{0, 93, 0, 80, 93, 13, 160, 17, 13});
}

TEST_CASE("Samples with known frames and without are those that they are alone", "[denoise]") {
  const auto model = tiny_model();
  DirectRunner runner;
  const at::NoGradGuard no_grad;
  at::manual_seed(4);
  const at::Tensor x = at::randn({3, 4, 3, 4, 6}), sigma = at::tensor({0.9F, 0.2F, 0.5F});
  std::vector<Conditioning> cond(3);
  for (int64_t b = 0; b < 3; ++b) {
    cond[static_cast<size_t>(b)]["prompt_embeds"] = at::randn({3 + b, 8});
    if (b > 0) cond[static_cast<size_t>(b)]["known_clip"] = x[b].narrow(1, 0, b).clone();
  }
  const std::vector<const Conditioning*> all = {&cond[0], &cond[1], &cond[2]};
  const at::Tensor together = model->denoise({.x_BCTHW = x, .sigma_B = sigma, .cond = all}, runner);
  for (int64_t b = 0; b < 3; ++b) {
    const at::Tensor alone = model->denoise({.x_BCTHW = x.narrow(0, b, 1),
                                             .sigma_B = sigma.narrow(0, b, 1),
                                             .cond = std::span(all).subspan(b, 1)},
                                            runner);
    CHECK(at::allclose(together[b], alone[0], 1e-5, 1e-5));
  }
}

TEST_CASE("Guidance brings the branch without the prompt near the other one", "[guide]") {
  const auto model = tiny_model();
  DirectRunner runner;
  at::manual_seed(5);
  const at::Tensor with = at::randn({1, 4, 3, 2, 2}), without = at::randn({1, 4, 3, 2, 2});
  const auto guided = [&](int64_t known, double scale) {
    Conditioning cond;
    if (known > 0) cond["known_clip"] = at::zeros({4, known, 2, 2});
    const Conditioning* const pointer = &cond;
    return model->guide(
        {.with_BCTHW = with,
         .without_BCTHW = without,
         .scale = scale,
         .step = {.x_BCTHW = with, .sigma_B = at::ones({1}), .cond = {&pointer, 1}}},
        runner);
  };
  const auto expected = [&](int64_t first, double scale) {
    const at::Tensor c = with.slice(2, first), u = without.slice(2, first);
    const at::Tensor near = without * ((c * u).sum() / ((u * u).sum() + 1e-8));
    return near + scale * (with - near);
  };
  // The frame of an image counts, those of a clip do not.
  CHECK(at::allclose(guided(0, 4), expected(0, 4)));
  CHECK(at::allclose(guided(1, 4), expected(0, 4)));
  CHECK(at::allclose(guided(2, 4), expected(2, 4)));
  CHECK_FALSE(at::allclose(guided(2, 4), expected(0, 4)));
  CHECK(at::allclose(guided(0, 1), with, 1e-4, 1e-5));
}

}  // namespace longcat
