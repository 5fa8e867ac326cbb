#include "host/plan/size_guard.h"

#include "tests/host/train/image_toy.h"

namespace atelier::plan {
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

// Images of `side` on a device of 1 MiB; what is told goes to `said`.
report::Problems check_image(const ModelFamily& family, int64_t side, std::string& said) {
  Folder folder;
  test::write_toy_model(folder / "model");
  const model::LoadRequest request = {
      .model_paths = folder / "model", .dtype = "float32", .device = "cpu"};
  const auto model = model::LoadedModel::open(family, request);
  std::FILE* file = std::tmpfile();
  progress::Progress progress({.quiet = true, .out = file});
  const SizeGuard guard(*model, request, {.vram = "1MiB"}, progress);
  generate::Settings settings;
  settings.num_frames = 1;
  settings.height = settings.width = side;
  report::Problems problems;
  guard.check(settings, {}, std::nullopt, /*may_tile=*/false, problems);
  said.resize(4096);
  std::rewind(file);
  said.resize(std::fread(said.data(), 1, said.size(), file));
  std::fclose(file);
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
  CHECK_THAT(said, Catch::Contains("sizes are not checked beforehand: ") &&
                       Catch::Contains("there is nothing to decode"));
}

}  // namespace
}  // namespace atelier::plan
