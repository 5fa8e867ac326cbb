#include <ATen/ATen.h>

#include "atelier/model_family.h"

#include "host/inputs/parse.h"
#include "host/model/config_check.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

namespace speech {

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

constexpr const char* kVariant = "wan2.2-s2v-14b";
constexpr MediaTarget kOpen = {.frames = 0};

const ModelFamily& family() {
  return test::opened_family();
}

Keys keys() {
  return read_keys("wan22_s2v_original.txt");
}

// The config.json of the published folder.
TensorIndex::Config config() {
  return {{"_class_name", "WanModel_S2V"},
          {"_diffusers_version", "0.34.0"},
          {"adain_mode", "attn_norm"},
          {"add_last_motion", true},
          {"audio_dim", int64_t{1024}},
          {"audio_inject_layers", std::vector<double>{0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39}},
          {"cond_dim", int64_t{16}},
          {"dim", int64_t{5120}},
          {"enable_adain", true},
          {"enable_framepack", true},
          {"enable_motioner", false},
          {"enable_tsm", false},
          {"eps", 1e-6},
          {"ffn_dim", int64_t{13824}},
          {"framepack_drop_mode", "padd"},
          {"freq_dim", int64_t{256}},
          {"in_dim", int64_t{16}},
          {"model_type", "s2v"},
          {"motion_token_num", int64_t{1024}},
          {"num_audio_token", int64_t{4}},
          {"num_heads", int64_t{40}},
          {"num_layers", int64_t{40}},
          {"out_dim", int64_t{16}},
          {"text_len", int64_t{512}},
          {"trainable_token_pos_emb", false},
          {"zero_init", true},
          {"zero_timestep", true}};
}

Detection detected(const TensorIndex& index) {
  const auto part = model::detect_with_config(family(), index, {});
  REQUIRE(part);
  return *part;
}

void refuses(const TensorIndex& index, const std::string& why) {
  const Error error = test::error_of([&] { model::detect_with_config(family(), index, {}); });
  INFO(error.what());
  CHECK(test::mentions(error, why));
}

std::unique_ptr<Model> speech_model() {
  const Detection part = detected(index_of(keys()));
  return family().make_model({&part, 1}, {});
}

at::Tensor shape(std::vector<int64_t> sizes) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat));
}

Inputs sound_of(double seconds) {
  return {{"input_audio", shape({1, static_cast<int64_t>(seconds * 16000)})}};
}

}  // namespace

TEST_CASE("A model that hears is known, with its config and without", "[detect]") {
  const Detection part = detected(index_of(keys()));
  CHECK(part.component == "dit");
  CHECK(part.variant == kVariant);
  CHECK(part.spelling == "original");
  CHECK(part.integer("audio_states") == 25);
  CHECK(part.integer("audio_width") == 1024);
  CHECK(part.integer("audio_tokens") == 4);
  const bool is_same = detected(index_of(keys(), "", config())).config == part.config;
  CHECK(is_same);
  CHECK(family().media_defaults(part).fps == 16);
  CHECK(family().sigma_range(part).low == 0);
}

TEST_CASE("A config of another way to hear or to see motion is refused", "[config]") {
  const auto with = [&](const char* field, ConfigValue value) {
    TensorIndex::Config other = config();
    other[field] = std::move(value);
    return index_of(keys(), "", other);
  };
  refuses(with("enable_motioner", true), "enable_motioner");
  refuses(with("zero_timestep", false), "zero_timestep");
  refuses(with("audio_dim", int64_t{768}), "audio_dim");
  refuses(with("audio_inject_layers", std::vector<double>{0, 4}), "audio_inject_layers");
  refuses(
      with("audio_inject_layers", std::vector<double>{0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 40}),
      "audio_inject_layers");
  refuses(
      with("audio_inject_layers", std::vector<double>{4, 0, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39}),
      "audio_inject_layers");
}

TEST_CASE("The table fills every weight of a model that hears once", "[weights]") {
  const TensorIndex index = index_of(keys());
  const Detection part = detected(index);
  const auto model = family().make_model({&part, 1}, {});
  nn::Module& dit = model->component("dit");
  const auto binding = weights::bind_weights(family().weight_map(part), "", index, dit);
  CHECK_NOTHROW(binding.throw_unless_complete("S2V", "dit"));
  CHECK(binding.unused.empty());
  int64_t parameters = 0;
  dit.visit_weights([&](const std::string&, Weight& weight) { parameters += weight.numel(); });
  CHECK(parameters == 16295755609);
  Keys names;
  const TensorIndex spelled = weights::published_index(dit, family().weight_map(part));
  for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
  const bool are_same = names == keys();
  CHECK(are_same);
  // What hears runs behind its block, and is streamed in that order.
  const std::vector<Block*> blocks = model->blocks("dit");
  REQUIRE(blocks.size() == 52);
  CHECK(blocks[0]->path() == "blocks.0");
  CHECK(blocks[1]->path() == "audio_injector.0");
  CHECK(blocks[6]->path() == "audio_injector.1");
  CHECK(blocks.back()->path() == "audio_injector.11");
}

TEST_CASE("The published audio encoder is taken, and its head is not loaded", "[weights]") {
  const TensorIndex index = index_of(read_keys("wav2vec2.txt"));
  const Detection part = detected(index);
  CHECK(part.component == "audio_encoder");
  const auto model = family().make_model({&part, 1}, {});
  const auto binding = weights::bind_weights(family().weight_map(part), "", index,
                                             model->component("audio_encoder"));
  CHECK_NOTHROW(binding.throw_unless_complete("wav2vec2", "audio_encoder"));
  CHECK(binding.unused.size() == 3);  // masked_spec_embed and the head
}

TEST_CASE("A clip is as long as its sound and has the shape of its image", "[target]") {
  const auto model = speech_model();
  CHECK(model->target(sound_of(10.0), kOpen).frames == 160);
  CHECK(model->target(sound_of(10.01), kOpen).frames == 161);
  CHECK(model->target(sound_of(0.1), kOpen).frames == 5);
  CHECK(model->target(sound_of(10.0), {33, 0, 0}).frames == 33);
  const auto size = [&](int64_t height, int64_t width) {
    Inputs inputs = sound_of(1.0);
    inputs["input_image"] = shape({3, height, width});
    const MediaTarget target = model->target(inputs, kOpen);
    return std::pair(target.height, target.width);
  };
  // As get_size_less_than_area() of the original repository gives.
  CHECK(size(600, 1000) == std::pair<int64_t, int64_t>(640, 1024));
  CHECK(size(1080, 1920) == std::pair<int64_t, int64_t>(640, 1088));
  CHECK(size(1920, 1080) == std::pair<int64_t, int64_t>(1088, 640));
  CHECK(size(100, 60) == std::pair<int64_t, int64_t>(128, 64));
  const Error error = test::error_of([&] { model->target(sound_of(0.04), kOpen); });
  CHECK(test::mentions(error, "640 samples at 16 kHz"));
}

TEST_CASE("Pieces follow on each other and share what motion is seen of", "[pieces]") {
  const auto model = speech_model();
  const auto pieces = [&](int64_t frames, Inputs inputs = {}) {
    std::vector<std::vector<int64_t>> found;
    for (const Piece& piece : model->pieces(inputs, {frames, 64, 64}))
      found.push_back({piece.first, piece.frames, piece.shared});
    return found;
  };
  using Found = std::vector<std::vector<int64_t>>;
  CHECK(pieces(9) == Found{{0, 9, 0}});
  CHECK(pieces(10) == Found{{0, 13, 0}});
  CHECK(pieces(77) == Found{{0, 77, 0}});
  CHECK(pieces(78) == Found{{0, 77, 0}, {4, 153, 73}});
  CHECK(pieces(158) == Found{{0, 77, 0}, {4, 153, 73}, {84, 153, 73}});
  CHECK(pieces(81, {{"init_first_frame", true}}) == Found{{0, 80, 0}, {7, 153, 73}});
  const Error error = test::error_of([&] { model->pieces({}, {78, 48, 64}); });
  CHECK(test::mentions(error, "48x64 pixels follows on no other frames"));
}

TEST_CASE("Inputs of speech are those of its variant alone", "[inputs]") {
  const auto input = [&](std::string_view name) -> const InputSpec& {
    return *std::ranges::find(family().inputs(), name, &InputSpec::name);
  };
  for (const char* name : {"input_image", "input_audio"}) {
    INFO(name);
    CHECK(inputs::is_required(input(name), kVariant));
    CHECK_FALSE(inputs::holds_for(input(name), "wan2.1-t2v-14b"));
  }
  for (const char* name : {"s2v_pose_video", "motion_video", "init_first_frame"}) {
    INFO(name);
    CHECK(inputs::holds_for(input(name), kVariant));
    CHECK_FALSE(inputs::is_required(input(name), kVariant));
    CHECK_FALSE(inputs::holds_for(input(name), "wan2.1-i2v-14b"));
  }
  CHECK_FALSE(inputs::holds_for(input("end_image"), kVariant));
}

}  // namespace speech
