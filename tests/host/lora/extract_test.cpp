#include "host/lora/extract.h"

#include <cmath>

#include "host/lora/lora_file.h"
#include "host/lora/registry.h"
#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::expect_error;
using test::Folder;

namespace {

// The model of `folder` with other published weights.
template <class Change>
void write_changed(const Folder& folder, const Folder& changed, Change change,
                   const std::map<std::string, std::string>& metadata = {}) {
  const auto file = files::Checkpoint::open("dit", {folder / "dit.safetensors"});
  NamedTensors tensors;
  for (const auto& [name, meta] : file.index().tensors()) tensors.emplace(name, file.read(name));
  change(tensors);
  files::write_safetensors(changed / "dit.safetensors", tensors, metadata);
  test::fs::copy_file(folder / "vae.safetensors", changed / "vae.safetensors");
}

void add(NamedTensors& tensors, const std::vector<test::Factors>& factors) {
  for (const test::Factors& of : factors)
    tensors.at(of.layer + ".weight").add_(at::mm(of.up, of.down));
}

}  // namespace

TEST_CASE("A known addition of low rank is extracted", "[lora]") {
  const Folder folder, tuned;
  test::write_two_part_model(folder.path());
  const std::vector<test::Factors> factors = test::toy_factors(4, 5);
  write_changed(folder, tuned, [&](NamedTensors& tensors) { add(tensors, factors); });
  const auto base = test::open_toy(folder.path()), after = test::open_toy(tuned.path());
  const std::string path = folder / "out.safetensors";
  const ExtractReport report = extract(*base, *after, path, {.rank = 4});
  // q, k and v of block 0, up and down of block 1, embed.
  CHECK(report.total.layers == 6);
  CHECK(report.total.relative_error() < 1e-5);
  CHECK(report.left_out.empty());
  REQUIRE(report.kinds.size() == 6);
  CHECK(report.kinds[0].name == "blocks.{}.down");
  for (const ExtractReport::Kind& kind : report.kinds) CHECK(kind.relative_error() < 1e-5);
  const LoraFile file = LoraFile::open(path);
  for (const LoraLayer& layer : file.layers()) {
    if (layer.name != "transformer.blocks.1.down") continue;
    const at::Tensor expected = at::mm(factors[2].up, factors[2].down);
    const at::Tensor got =
        at::mm(file.read_up(layer, at::kFloat), file.read_down(layer, at::kFloat));
    CHECK(test::error({got}, {expected}) < 1e-5);
  }
  Registry registry(*base);
  registry.load({"out", path});
  CHECK(test::error({test::toy_velocity(*base)}, {test::toy_velocity(*after)}) < 1e-4);
}

TEST_CASE("An extraction says what it lacks", "[lora]") {
  const Folder folder, tuned;
  test::write_two_part_model(folder.path());
  at::manual_seed(8);
  const at::Tensor change = at::randn({32, 32}), bias = at::randn({32});
  write_changed(folder, tuned, [&](NamedTensors& tensors) {
    tensors.at("blocks.0.down.weight").add_(change);
    tensors.at("blocks.0.down.bias").add_(bias);
    tensors.at("blocks.1.value.weight").add_(change);
  });
  const auto base = test::open_toy(folder.path()), after = test::open_toy(tuned.path());
  const std::string path = folder / "out.safetensors";
  const ExtractReport report = extract(
      *base, *after, path, {.rank = 3, .target_modules = {"down"}, .format = Format::kKohya});
  CHECK(report.total.layers == 1);
  const at::Tensor values = std::get<1>(at::linalg_svd(change.to(at::kDouble), false));
  const double least = (values.narrow(0, 3, 29).norm() / values.norm()).item<double>();
  CHECK(std::abs(report.total.relative_error() - least) < 1e-4);
  CHECK(report.left_out == std::vector<std::string>{"blocks.0.down.bias", "blocks.1.up.weight"});
  const double left = change.square().sum().item<double>() + bias.square().sum().item<double>();
  CHECK(std::abs(report.squared_left_out / left - 1) < 1e-4);
  const LoraFile file = LoraFile::open(path);
  CHECK(file.layers().at(0).name == "lora_unet_blocks_0_down");
  CHECK(file.layers().at(0).rank == 3);
  CHECK(file.tensors().metadata().at("targets") == "down");
  // A rank above the shorter side is that side.
  const std::string whole = folder / "whole.safetensors";
  extract(*base, *after, whole, {.rank = 64, .target_modules = {"blocks.*.down"}});
  CHECK(LoraFile::open(whole).layers().at(0).rank == 32);
}

TEST_CASE("Models that do not fit, or do not differ, are refused", "[lora]") {
  const Folder folder, tuned;
  test::write_two_part_model(folder.path());
  write_changed(folder, tuned,
                [&](NamedTensors& tensors) { tensors.at("blocks.0.down.bias").add_(1); });
  const auto base = test::open_toy(folder.path()), after = test::open_toy(tuned.path());
  const std::string path = folder / "out.safetensors";
  expect_error(ErrorCode::kInvalidArgument, {"rank 0 is too small"},
               [&] { extract(*base, *after, path, {.rank = 0}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"no targeted linear layer differs", "\"blocks.0.down.bias\""},
               [&] { extract(*base, *after, path, {}); });
  const auto same = test::open_toy(folder.path());
  expect_error(ErrorCode::kInvalidArgument, {"the two models are equal"},
               [&] { extract(*base, *same, path, {}); });

  const Folder without_values;
  write_changed(folder, without_values, [](NamedTensors&) {}, {{"atelier.random_weights", "3"}});
  const auto holes = test::open_toy(without_values.path());
  const std::vector<std::string> said = {"dit.safetensors", "no values"};
  expect_error(ErrorCode::kUnsupported, said, [&] { extract(*base, *holes, path, {}); });
  expect_error(ErrorCode::kUnsupported, said, [&] { extract(*holes, *base, path, {}); });

  // One block less.
  const Detection small = {"dit", "base", "", "toy", {{"layers", int64_t{1}}, {"width", 32}}};
  const auto made = test::toy_family().make_model({&small, 1}, {});
  made->component("dit").visit_weights(
      [&](const std::string&, Weight& weight) { weight.set(at::zeros(weight.sizes())); });
  const Folder other;
  weights::save_component(made->component("dit"), test::toy_family().weight_map(small), "",
                          other / "dit.safetensors", {});
  test::fs::copy_file(folder / "vae.safetensors", other / "vae.safetensors");
  const auto smaller = test::open_toy(other.path());
  expect_error(ErrorCode::kInvalidArgument, {"dit.safetensors: is no tuned", "is missing"},
               [&] { extract(*base, *smaller, path, {}); });
  CHECK(!test::fs::exists(path));
}

}  // namespace atelier::lora
