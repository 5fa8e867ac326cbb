#include "host/check/size_guard.h"

#include "host/check/generation.h"
#include "tests/host/train/image_toy.h"

namespace atelier::check {
namespace {

using test::Folder;

// A toy that decodes nothing without values.
class UntriableToy final : public test::ImageToy {
 public:
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    struct Untriable final : test::ToyModel {
      using ToyModel::ToyModel;
      void decode(const at::Tensor& latents, BlockRunner& runner, const FrameSink& sink) override {
        if (latents.is_meta())
          throw Error(ErrorCode::kUnsupported, "there is nothing to decode", "give values");
        ToyModel::decode(latents, runner, sink);
      }
    };
    return std::make_unique<Untriable>(parts, options, test::ToyMistakes{});
  }
};

// Images of `side` within `limits`; why they are not checked goes to `said`.
report::Problems check_image(const ModelFamily& family, int64_t side, std::string& said,
                             const model::MemoryLimits& limits = {.vram = 1 << 20}) {
  Folder folder;
  test::write_toy_model(folder / "model");
  const model::LoadOptions request = {
      .model_paths = folder / "model", .dtype = "float32", .device = "cpu"};
  const auto model = model::LoadedModel::open(family, request);
  const SizeGuard guard(*model, limits);
  order::Settings settings;
  settings.num_frames = 1;
  settings.height = settings.width = side;
  report::Problems problems;
  guard.check(settings, {}, std::nullopt, /*may_tile=*/false, problems);
  said = guard.unchecked();
  return problems;
}

TEST_CASE("Sizes that cannot fit are refused, small ones never", "[size_guard]") {
  std::string said;
  CHECK(check_image(test::image_toy(), 1024, said).size() == 1);
  CHECK(check_image(test::image_toy(), 64, said).size() == 0);
  CHECK(said.empty());
}

TEST_CASE("Why sizes cannot be checked is told, and nothing is refused", "[size_guard]") {
  std::string said;
  CHECK(check_image(UntriableToy(), 1024, said).size() == 0);
  CHECK_THAT(said, Catch::Contains("there is nothing to decode"));
  CHECK(check_image(UntriableToy(), 1024, said, {.host_memory = int64_t{1} << 30}).size() == 0);
  CHECK_FALSE(said.empty());
  CHECK(check_image(UntriableToy(), 1024, said, {}).size() == 0);
  CHECK(said.empty());  // nobody said a limit, and on the CPU nothing is planned
}

TEST_CASE("A model that cannot be run without values is told once", "[size_guard]") {
  Folder folder;
  test::write_toy_model(folder / "model");
  const UntriableToy family;
  plugins::Plugin plugin;
  plugin.family = &family;
  order::Generation order = {
      .plugin = &plugin,
      .load = model::LoadOptions{
          .model_paths = folder / "model", .dtype = "float32", .device = "simulated:1GiB:4GB/s"}};
  order.jobs.emplace_back().settings.prompt = "a lighthouse";
  order::Settings& settings = order.jobs.front().settings;
  settings.negative_prompt = "grey";
  settings.num_frames = 1;
  settings.height = settings.width = 16;
  settings.output = folder / "a.png";
  std::FILE* file = std::tmpfile();
  progress::Progress progress({.quiet = true, .out = file});
  report::Problems problems;
  OpenedGeneration opened(std::move(order), progress, problems);
  problems.throw_if_any();
  const plan::Outcome outcome =
      plan::plan_generation(opened.model(), opened.order(), opened.planned_jobs());
  plan::follow_plan(outcome, opened.order(), opened.model(), opened.unchecked(), progress);
  std::string said(4096, ' ');
  std::rewind(file);
  said.resize(std::fread(said.data(), 1, said.size(), file));
  std::fclose(file);
  CHECK_THAT(said, Catch::StartsWith("warning: no plan: "));
  CHECK(std::ranges::count(said, '\n') == 1);
}

TEST_CASE("A GPU's allocator gets what the driver leaves of --vram", "[size_guard]") {
  CHECK(plan::allocator_limit(int64_t{12} << 30) ==
        (int64_t{12} << 30) - memory::kCudaReserveBytes);
  test::expect_error(ErrorCode::kInvalidArgument, {"--vram 512.0 MiB", "768.0 MiB"},
                     [] { plan::allocator_limit(int64_t{512} << 20); });
  plan::apply_limits({.vram = 512 << 20}, at::kCPU);  // limits nothing there
}

}  // namespace
}  // namespace atelier::check
