#include "host/train/preview.h"

#include <algorithm>
#include <csignal>

#include "host/media/decode.h"
#include "train_toy.h"

namespace atelier::train {
namespace {

namespace fs = std::filesystem;
using test::HookScope;

struct PreviewBench : test::TrainToy {
  std::vector<std::string> loaded;  // components, in order
  std::shared_ptr<const model::LoadedModel::Listener> listener;
  std::vector<Preview::Shown> shown;

  PreviewBench() {
    open();
    listener =
        model->on_loaded([this](std::string_view component) { loaded.emplace_back(component); });
  }
  static order::Settings settings(const std::string& prompt, uint64_t seed) {
    order::Settings s;
    s.prompt = prompt;
    s.seed = seed;
    s.num_frames = 1;
    s.height = 16;
    s.width = 32;
    s.num_inference_steps = 2;
    s.cfg_scale = 1.0;
    return s;
  }
  Preview preview(std::vector<order::Settings> prompts, std::set<std::string> stays = {"dit"},
                  PreviewShare share = {}) {
    return {*model, std::move(prompts), folder / "samples", std::move(stays), progress, share};
  }
  // The bytes of the images of one step.
  std::vector<std::string> run(Preview& preview, int64_t step) {
    shown.clear();
    preview.run(step, [this](const Preview::Shown& one) { shown.push_back(one); });
    std::vector<std::string> images;
    for (const Preview::Shown& one : shown) images.push_back(one.png);
    return images;
  }
  bool is_loaded(const char* component) const { return model->is_loaded(component); }
};

TEST_CASE("Every prompt is drawn to a file of its step and shown", "[preview]") {
  PreviewBench bench;
  Preview preview =
      bench.preview({PreviewBench::settings("red", 1), PreviewBench::settings("blue", 2)});
  bench.run(preview, 7);
  REQUIRE(bench.shown.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const Preview::Shown& one = bench.shown[i];
    CHECK(one.number == i);
    CHECK(one.prompt == (i == 0 ? "red" : "blue"));
    CHECK(one.height == 16);
    CHECK(one.width == 32);
    const std::string file = bench.folder / ("samples/step-00000007_" + std::to_string(i) + ".png");
    CHECK(test::read_bytes(file) == one.png);
    const media::ImageInfo image = media::probe_image(fs::path(file));
    CHECK(image.width == 32);
    CHECK(image.height == 16);
  }
  CHECK(bench.shown[0].png != bench.shown[1].png);
}

TEST_CASE("Of several processes each draws its prompts, to the files of one", "[preview]") {
  PreviewBench bench;
  std::vector<order::Settings> prompts;
  for (uint64_t seed = 0; seed < 5; ++seed)
    prompts.push_back(PreviewBench::settings("number " + std::to_string(seed), seed));
  Preview all = bench.preview(prompts);
  const auto expected = bench.run(all, 7);
  for (size_t rank = 0; rank < 6; ++rank) {
    Preview one = bench.preview(prompts, {"dit"}, {.first = rank, .stride = 3});
    bench.loaded.clear();
    one.encode_ahead();
    CHECK(bench.loaded.empty() == (rank >= prompts.size()));
    bench.run(one, 7);
    REQUIRE(bench.shown.size() == (rank >= 5 ? 0 : rank >= 2 ? 1 : 2));
    for (const Preview::Shown& shown : bench.shown) {
      CHECK(shown.number % 3 == rank % 3);
      CHECK(shown.png == expected[shown.number]);
      CHECK(shown.path ==
            bench.folder / ("samples/step-00000007_" + std::to_string(shown.number) + ".png"));
    }
  }
}

TEST_CASE("What training does not run comes for the images and leaves again", "[preview]") {
  PreviewBench bench;
  Preview preview = bench.preview({PreviewBench::settings("red", 1)});
  bench.run(preview, 1);
  CHECK(bench.loaded == std::vector<std::string>{"text_encoder", "vae"});
  CHECK(bench.is_loaded("dit"));
  CHECK_FALSE(bench.is_loaded("text_encoder"));
  CHECK_FALSE(bench.is_loaded("vae"));
}

TEST_CASE("What training runs stays", "[preview]") {
  PreviewBench bench;
  bench.model->load_component("vae");
  Preview preview = bench.preview({PreviewBench::settings("red", 1)}, {"dit", "vae"});
  bench.run(preview, 1);
  CHECK(bench.is_loaded("vae"));
  CHECK_FALSE(bench.is_loaded("text_encoder"));
}

TEST_CASE("Texts that were encoded ahead need no encoder during training", "[preview]") {
  PreviewBench bench;
  Preview plain =
      bench.preview({PreviewBench::settings("red", 1), PreviewBench::settings("blue", 2)});
  const auto expected = bench.run(plain, 1);
  bench.loaded.clear();
  Preview preview =
      bench.preview({PreviewBench::settings("red", 1), PreviewBench::settings("blue", 2)});
  preview.encode_ahead();
  CHECK(bench.loaded == std::vector<std::string>{"text_encoder"});
  CHECK_FALSE(bench.is_loaded("text_encoder"));
  bench.loaded.clear();
  CHECK(bench.run(preview, 1) == expected);
  CHECK(bench.run(preview, 2) == expected);
  CHECK(std::ranges::count(bench.loaded, "text_encoder") == 0);
}

TEST_CASE("An encoder that is trained encodes anew at each step", "[preview]") {
  PreviewBench bench;
  bench.model->load_component("text_encoder");
  Preview preview = bench.preview({PreviewBench::settings("red", 1)}, {"dit", "text_encoder"});
  preview.encode_ahead();
  const auto first = bench.run(preview, 1);
  CHECK(bench.run(preview, 2) == first);
  Weight& table = *bench.model->model().component("text_encoder").find_weight("table.weight");
  table.set(table.draw() * 3);
  CHECK(bench.run(preview, 3) != first);
  CHECK(bench.is_loaded("text_encoder"));
}

TEST_CASE("Images follow the model and the prompts' seeds, and draw from no other numbers",
          "[preview]") {
  PreviewBench bench;
  Preview preview =
      bench.preview({PreviewBench::settings("red", 1), PreviewBench::settings("red", 2)});
  at::manual_seed(5);
  const at::Tensor expected = at::rand({8});
  at::manual_seed(5);
  const auto images = bench.run(preview, 1);
  CHECK(at::equal(at::rand({8}), expected));
  CHECK(images[0] != images[1]);
  CHECK(bench.run(preview, 2) == images);
  Weight& embed = bench.weight("embed.weight");
  embed.set(embed.draw() * 2);
  CHECK(bench.run(preview, 3) != images);
}

TEST_CASE("A signal ends the images, and a folder that cannot be made is named", "[preview]") {
  PreviewBench bench;
  Preview preview =
      bench.preview({PreviewBench::settings("red", 1), PreviewBench::settings("blue", 2)});
  {
    const test::SignalScope signals;
    int calls = 0;
    const HookScope hook([&](const at::Tensor& velocity) {
      if (++calls == 2) std::raise(SIGTERM);
      return velocity;
    });
    test::expect_error(ErrorCode::kCancelled, {}, [&] { bench.run(preview, 1); });
    CHECK(bench.shown.size() < 2);
  }
  fs::remove_all(bench.folder / "samples");
  test::write_bytes(bench.folder / "samples", "");
  test::expect_error(ErrorCode::kEnvironment, {bench.folder / "samples"},
                     [&] { bench.run(preview, 1); });
}

}  // namespace
}  // namespace atelier::train
