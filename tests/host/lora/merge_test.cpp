#include "host/lora/merge.h"

#include <cmath>

#include "host/lora/low_rank.h"
#include "host/lora/registry.h"
#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::distance;
using test::expect_error;
using test::Folder;

namespace {

std::vector<MergeSource> sources(const Folder& folder, double first, double second) {
  test::write_lora(folder / "a.safetensors", test::toy_factors(4, 5), "transformer.", 2);
  std::vector<test::Factors> other = test::toy_factors(2, 6);
  other.pop_back();  // the layers are not all the same
  other.push_back(test::random_factors("blocks.0.down", 32, 32, 3));
  test::write_lora(folder / "b.safetensors", other, "diffusion_model.");
  return {{LoraFile::open(folder / "a.safetensors"), first},
          {LoraFile::open(folder / "b.safetensors"), second}};
}

at::Tensor addition(const LoraFile& file, const std::string& layer) {
  for (const LoraLayer& of : file.layers()) {
    if (of.name.ends_with("." + layer))
      return at::mm(file.read_up(of, at::kDouble), file.read_down(of, at::kDouble)) * of.scale;
  }
  return at::zeros({}, at::kDouble);
}

MergeReport merge(const std::vector<MergeSource>& of, const std::string& output,
                  std::optional<int64_t> rank = std::nullopt) {
  LayerNames names(nullptr);
  return merge_loras(of, output, Format::kDiffusers, rank, at::kFloat, names);
}

}  // namespace

TEST_CASE("A merged LoRA adds what its sources add together", "[lora]") {
  const Folder folder;
  const std::vector<MergeSource> of = sources(folder, 0.8, -0.5);
  const MergeReport report = merge(of, folder / "sum.safetensors");
  CHECK(report.layers == 5);
  CHECK(report.most_rank == 6);
  CHECK(report.relative_error == 0);
  const LoraFile sum = LoraFile::open(folder / "sum.safetensors");
  REQUIRE(sum.layers().size() == 5);
  for (const std::string layer :
       {"blocks.0.qkv", "blocks.1.value", "blocks.1.down", "embed", "blocks.0.down"}) {
    INFO(layer);
    const at::Tensor expected =
        addition(of[0].file, layer) * 0.8 - addition(of[1].file, layer) * 0.5;
    CHECK(distance(addition(sum, layer), expected) < 2e-7);
  }
  CHECK(nlohmann::json::parse(sum.tensors().metadata().at("atelier.merged"))[0] ==
        nlohmann::json({{"file", "a.safetensors"}, {"strength", 0.8}}));
  // Merging one after the other is the same sum.
  const MergeSource first{LoraFile::open(folder / "a.safetensors"), 0.8};
  merge({first}, folder / "one.safetensors");
  merge({{LoraFile::open(folder / "one.safetensors"), 1.0}, of[1]}, folder / "both.safetensors");
  const LoraFile both = LoraFile::open(folder / "both.safetensors");
  for (const LoraLayer& layer : sum.layers()) {
    const std::string name = layer.name.substr(std::string("transformer.").size());
    CHECK(distance(addition(both, name), addition(sum, name)) < 2e-7);
  }
}

TEST_CASE("A rank cuts the sum where least is lost, and says how much", "[lora]") {
  const Folder folder;
  const std::vector<MergeSource> of = sources(folder, 1, 1);
  const MergeReport report = merge(of, folder / "cut.safetensors", 3);
  CHECK(report.most_rank == 3);
  const LoraFile cut = LoraFile::open(folder / "cut.safetensors");
  double lost = 0, whole = 0;
  for (const LoraLayer& layer : cut.layers()) {
    const std::string name = layer.name.substr(std::string("transformer.").size());
    const at::Tensor sum = addition(of[0].file, name) + addition(of[1].file, name);
    const at::Tensor values = std::get<1>(at::linalg_svd(sum, false));
    const double least = values.narrow(0, 3, values.size(0) - 3).square().sum().item<double>();
    const double error = (addition(cut, name) - sum).square().sum().item<double>();
    whole += values.square().sum().item<double>();
    lost += error;
    CHECK(error <= least * 1.0001 + 1e-12);
  }
  CHECK(std::abs(report.relative_error - std::sqrt(lost / whole)) < 1e-6);
  CHECK(report.relative_error > 0.1);
  // A rank that is not reached cuts nothing.
  CHECK(merge(of, folder / "all.safetensors", 100).relative_error == 0);
}

TEST_CASE("What cannot be merged into a LoRA is refused", "[lora]") {
  const Folder folder;
  std::vector<MergeSource> of = sources(folder, 1, 1);
  const std::string output = folder / "out.safetensors";
  const auto refused = [&](ErrorCode code, const std::vector<std::string>& parts,
                           const std::vector<MergeSource>& all,
                           std::optional<int64_t> rank = std::nullopt) {
    expect_error(code, parts, [&] { merge(all, output, rank); });
    CHECK(!test::fs::exists(output));
  };
  refused(ErrorCode::kInvalidArgument, {"rank 0 is too small"}, of, 0);
  refused(ErrorCode::kInvalidArgument, {"there is no layer to write"}, {{of[0].file, 0.0}});
  test::write_lora(folder / "wide.safetensors", {test::random_factors("embed", 40, 32, 2)});
  const LoraFile wide = LoraFile::open(folder / "wide.safetensors");
  refused(ErrorCode::kInvalidArgument,
          {"wide.safetensors: layer \"transformer.embed\": is [32, 40], and [32, 48] in",
           "a.safetensors"},
          {of[0], {wide, 1.0}});
  files::write_safetensors(folder / "dora.safetensors", {{"a.b.lora_A.weight", at::randn({2, 5})},
                                                         {"a.b.lora_B.weight", at::randn({6, 2})},
                                                         {"a.b.dora_scale", at::rand({6, 1})}});
  refused(ErrorCode::kUnsupported, {"\"a.b.dora_scale\"", "is no product of two factors"},
          {of[0], {LoraFile::open(folder / "dora.safetensors"), 1.0}});
  expect_error(ErrorCode::kInvalidArgument, {"is the file that is read"},
               [&] { merge(of, folder / "b.safetensors"); });
}

TEST_CASE("A model with LoRAs merged in is the model with LoRAs", "[lora]") {
  const Folder folder, out;
  test::write_two_part_model(folder.path());
  const std::vector<MergeSource> of = sources(folder, 0.8, -0.5);
  auto model = test::open_toy(folder.path());
  size_t calls = 0;
  const auto merged =
      merge_into_model(of, *model, out / "dit.safetensors", [&](const MergeProgress& state) {
        ++calls;
        CHECK(state.total == 16);
      });
  CHECK(calls == 16);
  REQUIRE(merged.size() == 1);
  CHECK(merged[0].component == "dit");
  CHECK(merged[0].path == out / "dit.safetensors");
  // qkv of block 0, value and gate of block 1 (one weight), down of both, embed.
  CHECK(merged[0].changed == 6);
  CHECK(merged[0].unmatched.empty());
  test::fs::copy_file(folder / "vae.safetensors", out / "vae.safetensors");
  const at::Tensor got = test::toy_velocity(*test::open_toy(out.path()));
  Registry registry(*model);
  registry.load({"a", folder / "a.safetensors", 0.8});
  registry.load({"b", folder / "b.safetensors", -0.5});
  CHECK(test::error({got}, {test::toy_velocity(*model)}) < 1e-5);
  // What nothing is added to keeps its bits.
  const auto before = files::Checkpoint::open("", {folder / "dit.safetensors"});
  const auto after = files::Checkpoint::open("", {out / "dit.safetensors"});
  for (const std::string name : {"blocks.1.qkv.weight", "blocks.1.gate.weight", "time.weight",
                                 "blocks.0.down.bias", "unembed.bias"})
    CHECK(at::equal(before.read(name), after.read(name)));
  CHECK(!at::equal(before.read("embed.weight"), after.read("embed.weight")));
}

TEST_CASE("A merge into bfloat16 rounds once", "[lora]") {
  const Folder folder, out;
  test::write_two_part_model(folder.path());
  const std::string path = folder / "dit.safetensors";
  const auto file = files::Checkpoint::open("dit", {path});
  NamedTensors tensors;
  for (const auto& [name, meta] : file.index().tensors())
    tensors.emplace(name, file.read(name).to(name == "time.bias" ? at::kFloat : at::kBFloat16));
  files::write_safetensors(path, tensors, {{"note", "kept"}});
  const std::vector<MergeSource> of = sources(folder, 0.8, -0.5);
  merge_into_model(of, *test::open_toy(folder.path()), out / "merged.safetensors");
  const auto merged = files::Checkpoint::open("", {out / "merged.safetensors"});
  CHECK(merged.metadata().at("note") == "kept");
  CHECK(merged.index().find("time.bias")->dtype == at::kFloat);
  const at::Tensor expected = tensors.at("blocks.0.qkv.weight").to(at::kDouble) +
                              addition(of[0].file, "blocks.0.qkv") * 0.8 -
                              addition(of[1].file, "blocks.0.qkv") * 0.5;
  const at::Tensor got = merged.read("blocks.0.qkv.weight");
  REQUIRE(got.scalar_type() == at::kBFloat16);
  // Half a unit in the last place of bfloat16, and a little for float32.
  CHECK(((got.to(at::kDouble) - expected).abs() <= expected.abs() * (0.00390625 * 1.001) + 1e-6)
            .all()
            .item<bool>());
}

TEST_CASE("LoRAs of any form, and of several components, go into a model", "[lora]") {
  const Folder folder, out;
  test::write_two_part_model(folder.path());
  at::manual_seed(3);
  const at::Tensor diff = at::randn({32, 32}) * 0.1, bias = at::randn({32}) * 0.1;
  const at::Tensor down = at::randn({2, 3}), up = at::randn({3, 2});
  files::write_safetensors(folder / "forms.safetensors",
                           {{"transformer.blocks.0.down.diff", diff},
                            {"transformer.blocks.0.down.diff_b", bias},
                            {"vae.scale.lora_A.weight", down},
                            {"vae.scale.lora_B.weight", up},
                            {"transformer.blocks.7.down.diff", diff}});
  const auto model = test::open_toy(folder.path());
  const auto merged = merge_into_model(
      std::vector<MergeSource>{{LoraFile::open(folder / "forms.safetensors"), 2.0}}, *model,
      out / "m.safetensors");
  REQUIRE(merged.size() == 2);
  CHECK(merged[0].unmatched == std::vector<std::string>{"transformer.blocks.7.down"});
  const auto check = [&](const std::string& component, const std::string& tensor,
                         const at::Tensor& added) {
    const auto before =
        files::Checkpoint::open("", {folder / (component + ".safetensors")}).read(tensor);
    const auto after =
        files::Checkpoint::open("", {out / ("m_" + component + ".safetensors")}).read(tensor);
    CHECK(at::allclose(after, before + added, 1e-6, 1e-6));
  };
  check("dit", "blocks.0.down.weight", diff * 2);
  check("dit", "blocks.0.down.bias", bias * 2);
  check("vae", "scale.weight", at::mm(up, down) * 2);
}

TEST_CASE("A merge into a model is refused where it would lose or overwrite", "[lora]") {
  const Folder folder, out;
  test::write_two_part_model(folder.path());
  const std::vector<MergeSource> of = sources(folder, 1, 1);
  const std::string path = folder / "dit.safetensors";
  const auto model = test::open_toy(folder.path());
  expect_error(ErrorCode::kInvalidArgument, {"dit.safetensors", "is a file of the model"},
               [&] { merge_into_model(of, *model, path); });
  expect_error(ErrorCode::kInvalidArgument, {"nothing is added"}, [&] {
    merge_into_model(std::vector<MergeSource>{{of[0].file, 0.0}}, *model, out / "m.safetensors");
  });
  const auto file = files::Checkpoint::open("dit", {path});
  NamedTensors tensors;
  for (const auto& [name, meta] : file.index().tensors()) tensors.emplace(name, file.read(name));
  files::write_safetensors(path, tensors, {{"atelier.random_weights", "3"}});
  expect_error(ErrorCode::kUnsupported, {"dit.safetensors", "no values"}, [&] {
    merge_into_model(of, *test::open_toy(folder.path()), out / "m.safetensors");
  });
  tensors.at("embed.weight") = tensors.at("embed.weight").to(at::kFloat8_e4m3fn);
  files::write_safetensors(path, tensors);
  expect_error(ErrorCode::kUnsupported, {"\"embed.weight\"", "Float8_e4m3fn", "16 bits"}, [&] {
    merge_into_model(of, *test::open_toy(folder.path()), out / "m.safetensors");
  });
  CHECK(!test::fs::exists(out / "m.safetensors"));
}

TEST_CASE("Large matrices are approximated as well as small ones", "[lora]") {
  at::manual_seed(4);
  const at::Tensor exact = at::mm(at::randn({400, 6}), at::randn({6, 300}));
  const LowRank found = approximate(exact, 6);
  CHECK(distance(at::mm(found.up, found.down), exact) < 1e-5);
  // A spectrum that falls slowly: near the least error.
  const at::Tensor noisy = exact + at::randn({400, 300}) * 0.2;
  const LowRank near = approximate(noisy, 8);
  const at::Tensor values = std::get<1>(at::linalg_svd(noisy.to(at::kDouble), false));
  const double least = values.narrow(0, 8, 292).norm().item<double>();
  const double error = (at::mm(near.up, near.down) - noisy).norm().item<double>();
  CHECK(error < least * 1.005);
  CHECK(near.up.size(1) == 8);
  CHECK(approximate(at::randn({3, 500}), 8).up.size(1) == 3);
}

}  // namespace atelier::lora
