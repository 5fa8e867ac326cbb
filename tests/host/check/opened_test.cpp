#include <algorithm>

#include "host/check/generation.h"
#include "host/check/training.h"
#include "host/generate/session.h"
#include "tests/host/train/image_toy.h"

using namespace atelier;
using namespace atelier::check;
using test::Folder;
using test::fs::exists;

namespace {

// Files of a model and of a dataset, and a folder for what is made of them.
struct Workshop {
  Folder folder;
  plugins::Plugin plugin;
  progress::Progress progress{progress::Options{.quiet = true}};
  report::Problems problems;

  Workshop() {
    plugin.file.family = "toy";
    plugin.file.version = "1.2";
    plugin.family = &test::image_toy();
    test::write_toy_model(folder / "model");
    // Random weights of the denoiser would make numbers that are not finite.
    test::write_toy_component(folder / "model/transformer/model.safetensors", "dit", 1, 0.01f);
    for (int i = 0; i < 2; ++i)
      test::write_toy_image(folder / ("data/" + std::to_string(i) + ".png"), 16, 16, i);
    test::write_bytes(folder / "data/metadata.csv", "image,prompt\n0.png,red\n1.png,blue\n");
  }

  order::Generation images(std::vector<std::string> outputs) const {
    order::Generation order = {
        .plugin = &plugin,
        .load = model::LoadOptions{
            .model_paths = folder / "model", .dtype = "float32", .device = "cpu"}};
    order.base.prompt = "a lighthouse";
    order.base.negative_prompt = "grey";  // the toy encodes no empty text
    order.base.num_frames = 1;
    order.base.height = order.base.width = 16;
    for (const std::string& output : outputs) {
      order.jobs.push_back({{"jobs.jsonl", order.jobs.size() + 1}, order.base});
      order.jobs.back().settings.output = folder / output;
    }
    return order;
  }

  order::Training training(std::vector<std::string> more, std::string_view command = "train") {
    std::vector<std::string> arguments = {"--plugin",
                                          "toy",
                                          "--model_paths",
                                          folder / "model",
                                          "--dataset_base_path",
                                          folder / "data",
                                          "--dataset_metadata_path",
                                          folder / "data/metadata.csv",
                                          "--output_path",
                                          folder / "run",
                                          "--device",
                                          "cpu"};
    if (std::ranges::find(more, "--trainable_models") == more.end())
      arguments.insert(arguments.end(), {"--lora_base_model", "dit"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    order::Training order =
        order::read_training({arguments, order::train_command(nullptr), problems},
                             &test::image_toy(), problems, command);
    problems.throw_if_any();
    return order;
  }

  train::PreparedRun open(order::Training order) {
    return open_training(std::move(order), progress, problems);
  }
  train::RunEnd train(std::vector<std::string> more) {
    train::PreparedRun run = open(training(std::move(more)));
    return train::run_training(run, nullptr, progress);
  }
};

}  // namespace

TEST_CASE("What is wrong with any job is told before a weight is read", "[check]") {
  Workshop shop;
  order::Generation order = shop.images({"a.png", "model/transformer/model.safetensors/b.png"});
  order.jobs[0].settings.height = 15;
  order.jobs[1].settings.loras = {{"style", shop.folder / "style.safetensors", 1.0}};
  order.is_tiled = true;
  order.tiles = {64, 96};
  const OpenedGeneration opened(order, shop.progress, shop.problems);
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"jobs.jsonl:1: height: 15 is no multiple of 8",
                      "jobs.jsonl:2: output: ", "jobs.jsonl:2: loras", "--tile_stride"},
                     [&] { shop.problems.throw_if_any(); });
}

TEST_CASE("A job that comes later is checked as those before", "[check]") {
  Workshop shop;
  OpenedGeneration opened(shop.images({"a.png"}), shop.progress, shop.problems);
  REQUIRE(shop.problems.empty());
  order::Job job = shop.images({"b.png"}).jobs.front();
  opened.check(job, shop.problems);
  CHECK(shop.problems.empty());
  job.settings.prompt = std::string(test::kToyLongestText + 1, 'a');
  opened.check(job, shop.problems);
  CHECK(shop.problems.size() == 1);
}

TEST_CASE("Nothing is planned on the CPU without a limit, and all stays there", "[check]") {
  Workshop shop;
  order::Generation order = shop.images({"a.png"});
  order.prompts_file = "jobs.jsonl";
  order.cfg_batch = false;
  OpenedGeneration opened(order, shop.progress, shop.problems);
  const plan::Outcome outcome =
      plan::plan_generation(opened.model(), opened.order(), opened.planned_jobs());
  CHECK(!outcome.planned);
  CHECK_FALSE(outcome.unplanned);
  const generate::Layout layout = plan::layout_of(opened.order(), opened.model(), outcome.planned);
  CHECK(layout.keeps_all);
  CHECK(!layout.batches_cfg);
  CHECK(layout.graph_rows == 0);
  generate::Session session(opened.model(), opened.loras(), opened.order(), layout, {},
                            shop.progress);
  generate::JobResult result;
  session.run(order.jobs[0].settings, result);
  CHECK(exists(shop.folder / "a.png"));
}

TEST_CASE("A limit makes a plan, which a session follows", "[check]") {
  Workshop shop;
  order::Generation order = shop.images({"a.png"});
  order.limits.vram = int64_t{1} << 30;
  OpenedGeneration opened(order, shop.progress, shop.problems);
  REQUIRE(shop.problems.empty());
  const plan::Outcome outcome =
      plan::plan_generation(opened.model(), opened.order(), opened.planned_jobs());
  REQUIRE(outcome.planned);
  const generate::Layout layout = plan::layout_of(opened.order(), opened.model(), outcome.planned);
  CHECK(layout.batches_cfg == outcome.planned->sized.layouts.front().batches_cfg);
}

TEST_CASE("A run is prepared, trained, and found finished the next time", "[check]") {
  Workshop shop;
  const train::RunEnd end = shop.train({"--max_train_steps", "2", "--save_steps", "1"});
  CHECK(end.has_trained);
  CHECK(end.exit_code == 0);
  CHECK(exists(shop.folder / "run/config.toml"));
  CHECK(exists(shop.folder / "run/step-2.safetensors"));
  const train::RunEnd again =
      shop.train({"--max_train_steps", "2", "--resume", shop.folder / "run"});
  CHECK(!again.has_trained);
  CHECK(again.exit_code == 0);
  const train::RunEnd more =
      shop.train({"--max_train_steps", "3", "--resume", shop.folder / "run"});
  CHECK(more.has_trained);
  CHECK(exists(shop.folder / "run/step-3.safetensors"));
}

TEST_CASE("Weights that a run begins with are read in the place of the model's own", "[check]") {
  Workshop first, shop;
  first.train({"--trainable_models", "dit", "--max_train_steps", "1", "--save_steps", "1"});
  train::PreparedRun run = shop.open(
      shop.training({"--trainable_models", "dit", "--max_train_steps", "1", "--save_steps", "1",
                     "--resume_from_checkpoint", first.folder / "run/step-1.safetensors"}));
  int loads = 0;
  const auto listener = run.model->on_loaded(
      [&](std::string_view component) { loads += component == "dit" ? 1 : 0; });
  CHECK(train::run_training(run, nullptr, shop.progress).has_trained);
  CHECK(loads == 1);
}

TEST_CASE("A run whose cache is not filled does not train from it", "[check]") {
  Workshop shop;
  train::PreparedRun run =
      shop.open(shop.training({"--task", "sft:train", "--cache_path", shop.folder / "cache"}));
  test::expect_error(ErrorCode::kNotFound, {"entries are not there", "sft:data_process"},
                     [&] { train::run_training(run, nullptr, shop.progress); });

  const train::PreparedRun encoding =
      open_encoding(shop.training({"--cache_path", shop.folder / "cache"}, "cache"), shop.progress,
                    shop.problems);
  samples::Samples samples =
      train::open_samples(encoding, encoding.dataset, encoding.config.cache_path);
  CHECK(samples.missing() > 0);
  REQUIRE(samples.fill(*encoding.model, 0, shop.progress, [] { return false; }));
  CHECK(train::run_training(run, nullptr, shop.progress).has_trained);
}

TEST_CASE("Training without a denoiser is refused, and nothing is sized", "[check]") {
  // A toy that has its denoiser for some of its work only.
  struct OptionalToy final : test::ImageToy {
    std::span<const ComponentSpec> components() const override {
      static const std::vector<ComponentSpec> specs = [this] {
        const auto all = ImageToy::components();
        std::vector<ComponentSpec> some(all.begin(), all.end());
        for (ComponentSpec& spec : some) spec.required &= spec.role != Role::kDenoiser;
        return some;
      }();
      return specs;
    }
  };
  const OptionalToy toy;
  Workshop shop;
  test::fs::remove_all(shop.folder / "model/transformer");
  const std::vector<std::string> arguments = {"--plugin",
                                              "toy",
                                              "--model_paths",
                                              shop.folder / "model",
                                              "--dataset_base_path",
                                              shop.folder / "data",
                                              "--dataset_metadata_path",
                                              shop.folder / "data/metadata.csv",
                                              "--output_path",
                                              shop.folder / "run",
                                              "--device",
                                              "cpu",
                                              "--trainable_models",
                                              "text_encoder"};
  order::Training order = order::read_training(
      {arguments, order::train_command(nullptr), shop.problems}, &toy, shop.problems, "train");
  shop.problems.throw_if_any();
  test::expect_error(ErrorCode::kNotFound, {"there is no denoiser to train with", "--model_paths"},
                     [&] { shop.open(std::move(order)); });
}

TEST_CASE("Everything that is wrong with a run is one error", "[check]") {
  Workshop shop;
  test::write_bytes(shop.folder / "data/metadata.csv", "image,prompt\nnone.png,red\n");
  test::write_bytes(shop.folder / "prompts.txt", "a fox --w 15\n");
  order::Training order = shop.training({"--lora_target_modules", "blocks.9.q", "--sample_prompts",
                                         shop.folder / "prompts.txt", "--sample_at_first"});
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"blocks.9.q", "none.png", "prompts.txt:1: width", "mistakes"},
                     [&] { shop.open(std::move(order)); });
  CHECK(!exists(shop.folder / "run"));
}
