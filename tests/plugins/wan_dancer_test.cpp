#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/model_family.h"

#include "host/model/config_check.h"
#include "host/weights/weight_binding.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

namespace atelier::test {
namespace {

constexpr const char* kFile = "wan_dancer_14b.txt";
constexpr const char *kGlobal = "wan-dancer-14b-global", *kLocal = "wan-dancer-14b-local";

const ModelFamily& wan_family() {
  return opened_family();
}

Detection detected_dancer(const Keys& keys, const DetectHint& hint = {}) {
  const auto part = model::detect_with_config(wan_family(), index_of(keys), hint);
  REQUIRE(part);
  return *part;
}

// The denoiser of a file at this path.
Detection at_path(const std::string& path, const DetectHint& hint = {}) {
  std::vector<FoundPart> parts = {{detected_dancer(read_keys(kFile), hint), path, hint}};
  wan_family().assign(parts);
  return parts.front().part;
}

}  // namespace

TEST_CASE("The table fills every weight of Wan-Dancer once", "[weights]") {
  const Keys keys = read_keys(kFile);
  const Detection part = detected_dancer(keys);
  CHECK(part.component == "dit");
  CHECK(part.integer("music_channels") == 35);
  CHECK(part.integer("music_layers") == 2);
  const auto model = wan_family().make_model({&part, 1}, {});
  nn::Module& dit = model->component("dit");
  const auto binding =
      weights::bind_weights(wan_family().weight_map(part), "", index_of(keys), dit);
  CHECK_NOTHROW(binding.throw_unless_complete(kFile, "dit"));
  CHECK(binding.unused.empty());
  int64_t parameters = 0;
  dit.visit_weights([&](const std::string&, Weight& weight) { parameters += weight.numel(); });
  CHECK(parameters == 17245198464);
}

TEST_CASE("Blocks of Wan-Dancer are declared as they run", "[weights]") {
  const Detection part = detected_dancer(read_keys(kFile));
  const auto model = wan_family().make_model({&part, 1}, {});
  const std::vector<Block*> blocks = model->blocks("dit");
  CHECK(blocks.size() == 2 + 40 + 8);
  std::vector<size_t> injectors;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i]->kind() == "music_injector") injectors.push_back(i);
  }
  // Behind two layers of the music's encoder, blocks 0, 4, 8, 12, 16, 20, 24 and 27.
  CHECK(injectors == std::vector<size_t>{3, 8, 13, 18, 23, 28, 33, 37});
}

TEST_CASE("Paths and hints tell Wan-Dancer's two models apart", "[detect]") {
  CHECK(at_path("/models/Wan-Dancer-14B/global_model.safetensors").variant == kGlobal);
  CHECK(at_path("/models/Wan-Dancer-14B/local_model.safetensors").variant == kLocal);
  CHECK(at_path("/models/a.safetensors").variant == kLocal);
  CHECK(at_path("/out/Wan-Dancer-14B-global_full/epoch-1.safetensors").variant == kGlobal);
  CHECK(at_path("/models/a.safetensors", {.component = "", .variant = kGlobal}).variant == kGlobal);
  CHECK(at_path("/global/a.safetensors", {.component = "", .variant = kLocal}).variant == kLocal);
}

TEST_CASE("Pictures of the global model are latent frames of their own", "[detect]") {
  const Detection global = at_path("global_model.safetensors"),
                  local = at_path("local.safetensors");
  CHECK(wan_family().make_model({&global, 1}, {})->latent_spec().temporal_stride == 1);
  CHECK(wan_family().make_model({&local, 1}, {})->latent_spec().temporal_stride == 4);
  CHECK(wan_family().media_defaults(global).target == MediaTarget{38, 1280, 720});
  CHECK(wan_family().media_defaults(global).fps == 7.5);
  CHECK(wan_family().media_defaults(local).target == MediaTarget{149, 1280, 720});
  CHECK(wan_family().media_defaults(local).fps == 30);
}

TEST_CASE("A long dance is made in pieces of 149 frames", "[pieces]") {
  const auto pieces_of = [](const char* path, int64_t frames) {
    const Detection part = at_path(path);
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (const Piece& piece :
         wan_family()
             .make_model({&part, 1}, {})
             ->pieces({{"wantodance_music_path", at::empty({1, 22050}, at::kMeta)}},
                      {frames, 1280, 720})) {
      CHECK(piece.shared == 0);
      pieces.emplace_back(piece.first, piece.frames);
    }
    return pieces;
  };
  using Pieces = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(pieces_of("local_model.safetensors", 149).empty());
  CHECK(pieces_of("local_model.safetensors", 297) == Pieces{{0, 149}, {149, 149}});
  CHECK(pieces_of("local_model.safetensors", 301) == Pieces{{0, 149}, {149, 149}, {298, 149}});
  CHECK(pieces_of("global_model.safetensors", 301).empty());
}

TEST_CASE("What Wan-Dancer cannot dance to is refused", "[inputs]") {
  const Detection global = at_path("global_model.safetensors"),
                  local = at_path("local.safetensors");
  const auto target_of = [](const Detection& part, Inputs inputs, const MediaTarget& target) {
    inputs["wantodance_music_path"] = at::empty({1, 22050}, at::kMeta);
    return wan_family().make_model({&part, 1}, {})->target(inputs, target);
  };
  const auto refused = [&](const Detection& part, const Inputs& inputs, const MediaTarget& target,
                           const std::string& text) {
    expect_error(ErrorCode::kInvalidArgument, {text}, [&] { target_of(part, inputs, target); });
  };
  const MediaTarget clip = {149, 1280, 720}, pictures = {38, 1280, 720};
  const Inputs keys = {{"wantodance_keyframes", at::empty({3, 149, 1280, 720}, at::kMeta)}};
  CHECK(target_of(local, keys, clip) == clip);
  CHECK(target_of(global, keys, pictures) == pictures);
  CHECK_NOTHROW(target_of(local, {}, {149, 832, 480}));
  refused(global, keys, clip, "149 frames, and 593 are read");
  refused(local, {{"wantodance_keyframes_mask", std::vector<int64_t>(148, 1)}}, clip,
          "148 numbers, and 149 are read");
  refused(local, {}, {149, 720, 1264}, "cut into 8 beats of music");
  refused(local, {{"wantodance_fps", 0.0}}, clip, "is not above 0");
  refused(global, {{"framewise_decoding", false}}, pictures, "stand alone");
}

TEST_CASE("Music behind other blocks than published is refused", "[detect]") {
  Keys keys = read_keys(kFile);
  std::erase_if(
      keys, [](const auto& key) { return key.first.starts_with("music_injector.injector.7."); });
  expect_error(ErrorCode::kInvalidArgument, {"adds music behind 7 blocks", "behind 8 of 40"},
               [&] { detected_dancer(keys); });
}

}  // namespace atelier::test
