#include "host/lora/lora_writer.h"

#include <cmath>

#include "host/lora/lora_file.h"
#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::distance;
using test::expect_error;
using test::Folder;

namespace {

const std::map<std::string, LoraTargets> kTargets = {
    {"dit", {"dit", {}, {}, "transformer."}},
    {"text_encoder", {"text_encoder", {}, {}, ""}},
    {"text_encoder_2", {"text_encoder_2", {}, {}, ""}},
    {"vae", {"vae", {}, {}, ""}}};
constexpr Format kAll[] = {Format::kDiffusers, Format::kComfy, Format::kKohya, Format::kDiffsynth};

LayerWeights layer(const std::string& path, int64_t rank, double alpha, bool use_rslora = false) {
  return {"dit", path, at::randn({rank, 6}), at::randn({5, rank}), alpha, use_rslora};
}

std::vector<LayerWeights> two_layers() {
  at::manual_seed(1);
  return {layer("blocks.0.to_q", 4, 2), layer("blocks.0.to_out.0", 2, 2)};
}

// alpha / rank * up * down, or with the root of the rank, in float64.
at::Tensor addition(const LayerWeights& of) {
  const auto rank = static_cast<double>(of.down.size(0));
  return at::mm(of.up.to(at::kDouble), of.down.to(at::kDouble)) *
         (of.alpha / (of.use_rslora ? std::sqrt(rank) : rank));
}

at::Tensor addition(const LoraFile& file, const LoraLayer& of) {
  return at::mm(file.read_up(of, at::kFloat).to(at::kDouble),
                file.read_down(of, at::kFloat).to(at::kDouble)) *
         of.scale;
}

std::vector<std::string> names(const std::string& path) {
  std::vector<std::string> names;
  const LoraFile file = LoraFile::open(path);
  for (const auto& [name, meta] : file.tensors().index().tensors()) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("Each spelling has its names", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  const std::vector<LayerWeights> layers = {layer("blocks.0.to_q", 4, 2)};
  const auto written = [&](Format format) {
    write_lora(path, format, layers, kTargets, at::kFloat, {});
    return names(path);
  };
  using Names = std::vector<std::string>;
  CHECK(written(Format::kDiffusers) == Names{"transformer.blocks.0.to_q.lora_A.weight",
                                             "transformer.blocks.0.to_q.lora_B.weight"});
  CHECK(written(Format::kComfy) == Names{"diffusion_model.blocks.0.to_q.alpha",
                                         "diffusion_model.blocks.0.to_q.lora_A.weight",
                                         "diffusion_model.blocks.0.to_q.lora_B.weight"});
  CHECK(written(Format::kKohya) == Names{"lora_unet_blocks_0_to_q.alpha",
                                         "lora_unet_blocks_0_to_q.lora_down.weight",
                                         "lora_unet_blocks_0_to_q.lora_up.weight"});
  CHECK(written(Format::kDiffsynth) ==
        Names{"blocks.0.to_q.lora_A.default.weight", "blocks.0.to_q.lora_B.default.weight"});
}

TEST_CASE("What is written is the addition, in every spelling and dtype", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  std::vector<LayerWeights> layers = two_layers();
  layers.push_back(layer("blocks.1.to_q", 4, 3, /*use_rslora=*/true));
  layers.push_back(layer("proj_out", 3, 0.7));
  for (const Format format : kAll) {
    write_lora(path, format, layers, kTargets, at::kFloat, {});
    const LoraFile file = LoraFile::open(path);
    REQUIRE(file.layers().size() == layers.size());
    for (const LayerWeights& of : layers) {
      std::string flat = of.path;
      std::replace(flat.begin(), flat.end(), '.', '_');
      const auto found =
          std::find_if(file.layers().begin(), file.layers().end(), [&](const LoraLayer& candidate) {
            return candidate.name.ends_with(of.path) || candidate.name == "lora_unet_" + flat;
          });
      REQUIRE(found != file.layers().end());
      CHECK(distance(addition(file, *found), addition(of)) < 2e-7);
      CHECK(at::equal(file.read_down(*found, at::kFloat), of.down));
      if (format != Format::kDiffsynth) CHECK(at::equal(file.read_up(*found, at::kFloat), of.up));
    }
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    write_lora(path, Format::kComfy, layers, kTargets, dtype, {});
    const LoraFile file = LoraFile::open(path);
    CHECK(file.tensors().index().find(file.layers()[0].down)->dtype == dtype);
    CHECK(file.tensors().index().find(file.layers()[0].name + ".alpha")->dtype == at::kFloat);
  }
}

TEST_CASE("A whole component of rsLoRA says so in diffusers, and folds it elsewhere", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  const std::vector<LayerWeights> layers = {layer("a.b", 4, 3, true), layer("a.c", 16, 3, true)};
  write_lora(path, Format::kDiffusers, layers, kTargets, at::kFloat, {});
  const auto config =
      nlohmann::json::parse(LoraFile::open(path).tensors().metadata().at("lora_adapter_metadata"));
  CHECK(config.at("transformer.use_rslora") == true);
  CHECK(config.at("transformer.lora_alpha") == 3);
  CHECK(LoraFile::open(path).layers()[1].scale == 0.75);
  for (const Format format : {Format::kComfy, Format::kKohya}) {
    write_lora(path, format, layers, kTargets, at::kFloat, {});
    CHECK(LoraFile::open(path).layers()[0].alpha == 6.0);
    CHECK(LoraFile::open(path).layers()[1].alpha == 12.0);
  }
}

TEST_CASE("The metadata says rank, alpha, targets and what was trained", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  const Description description = {.base_model = "org/base",
                                   .architecture = "toy",
                                   .target_modules = {"to_q", "to_out.0"},
                                   .title = "style",
                                   .step = 500,
                                   .epoch = 2,
                                   .more = {{"note", "mine"},
                                            {"ss_steps", "499"},
                                            {"rank", "wrong"},
                                            {"lora_adapter_metadata", "wrong"}}};
  write_lora(path, Format::kDiffusers, two_layers(), kTargets, at::kFloat, description);
  auto metadata = LoraFile::open(path).tensors().metadata();
  const auto config = nlohmann::json::parse(metadata.at("lora_adapter_metadata"));
  CHECK(config.at("transformer.target_modules") == nlohmann::json({"to_q", "to_out.0"}));
  CHECK(config.at("transformer.lora_alpha") == 2);
  CHECK(config.at("transformer.alpha_pattern").empty());
  CHECK(config.at("transformer.rank_pattern").size() == 1);
  CHECK(metadata.at("modelspec.date").size() == 19);
  const std::map<std::string, std::string> expected = {{"format", "pt"},
                                                       {"rank", "dynamic"},
                                                       {"alpha", "2"},
                                                       {"targets", "to_q,to_out.0"},
                                                       {"base", "org/base"},
                                                       {"ss_network_module", "networks.lora"},
                                                       {"ss_network_dim", "dynamic"},
                                                       {"ss_network_alpha", "2"},
                                                       {"ss_sd_model_name", "org/base"},
                                                       {"ss_base_model_version", "toy"},
                                                       {"ss_output_name", "style"},
                                                       {"ss_steps", "499"},
                                                       {"ss_epoch", "2"},
                                                       {"modelspec.sai_model_spec", "1.0.0"},
                                                       {"modelspec.architecture", "toy/lora"},
                                                       {"modelspec.title", "style"},
                                                       {"note", "mine"}};
  for (const auto& [key, value] : expected) {
    INFO(key);
    CHECK(metadata[key] == value);
  }
  // Names that a reader could not find the layers by are not passed on.
  Description globs = description;
  globs.target_modules = {"blocks.*.to_q"};
  write_lora(path, Format::kDiffusers, two_layers(), kTargets, at::kFloat, globs);
  metadata = LoraFile::open(path).tensors().metadata();
  CHECK(nlohmann::json::parse(metadata.at("lora_adapter_metadata"))
            .at("transformer.target_modules") ==
        nlohmann::json({"blocks.0.to_q", "blocks.0.to_out.0"}));
  write_lora(path, Format::kKohya, two_layers(), kTargets, at::kFloat, description);
  CHECK(!LoraFile::open(path).tensors().metadata().contains("lora_adapter_metadata"));
}

TEST_CASE("Several components keep apart", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  std::vector<LayerWeights> layers = {layer("a.b", 4, 4), layer("a.b", 2, 1)};
  layers[1].component = "text_encoder";
  using Names = std::vector<std::string>;
  const std::map<Format, Names> expected = {
      {Format::kDiffusers, {"text_encoder.a.b", "transformer.a.b"}},
      {Format::kComfy, {"diffusion_model.a.b", "text_encoder.a.b"}},
      {Format::kKohya, {"lora_te_a_b", "lora_unet_a_b"}},
      {Format::kDiffsynth, {"a.b", "text_encoder.a.b"}}};
  for (const auto& [format, wanted] : expected) {
    write_lora(path, format, layers, kTargets, at::kFloat, {});
    Names found;
    const LoraFile file = LoraFile::open(path);
    for (const LoraLayer& of : file.layers()) found.push_back(of.name);
    CHECK(found == wanted);
  }
  write_lora(path, Format::kDiffusers, layers, kTargets, at::kFloat, {});
  CHECK(LoraFile::open(path).layers()[0].scale == 0.5);
  layers[1].component = "text_encoder_2";
  write_lora(path, Format::kKohya, layers, kTargets, at::kFloat, {});
  CHECK(LoraFile::open(path).layers()[0].name == "lora_te2_a_b");
  layers[1].component = "vae";
  expect_error(ErrorCode::kUnsupported, {"\"a.b\" of vae", "kohya"},
               [&] { write_lora(path, Format::kKohya, layers, kTargets, at::kFloat, {}); });
}

TEST_CASE("What cannot be written is refused, and the old file stays", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  test::write_bytes(path, "old");
  const auto refused = [&](ErrorCode code, const std::vector<std::string>& parts,
                           const std::vector<LayerWeights>& layers, Format format = Format::kKohya,
                           at::ScalarType dtype = at::kFloat) {
    expect_error(code, parts, [&] { write_lora(path, format, layers, kTargets, dtype, {}); });
    CHECK(test::read_bytes(path) == "old");
  };
  refused(ErrorCode::kInvalidArgument, {"there is no layer to write"}, {});
  LayerWeights bad = layer("a", 4, 4);
  bad.up = at::randn({5, 3});
  refused(ErrorCode::kInvalidArgument, {"layer \"a\" of dit", "of one rank"}, {bad});
  bad = layer("a", 4, NAN);
  refused(ErrorCode::kInvalidArgument, {"alpha is not finite"}, {bad});
  bad = layer("a", 4, 4);
  bad.up[0][0] = 1e6;
  refused(ErrorCode::kNumerics, {"lora_up.weight", "not finite as Half"}, {bad}, Format::kKohya,
          at::kHalf);
  bad.up[0][0] = INFINITY;
  refused(ErrorCode::kNumerics, {"not finite as Float"}, {bad});
  refused(ErrorCode::kInvalidArgument, {"\"a.b\" of dit", "\"a_b\" of dit", "lora_unet_a_b"},
          {layer("a.b", 2, 2), layer("a_b", 2, 2)});
  bad = layer("a", 4, 4);
  bad.others = {{"dora_scale", at::ones({1, 6})}};  // a length for each column
  refused(ErrorCode::kUnsupported, {"diffusers spelling has no name for \"dora_scale\""}, {bad},
          Format::kDiffusers);
  bad.others = {{"dora_scale", at::ones({5, 1})}};
  refused(ErrorCode::kUnsupported,
          {"diffsynth spelling has no name for \"dora_scale\"", "diffusers, comfy and kohya have"},
          {bad}, Format::kDiffsynth);
  refused(ErrorCode::kUnsupported, {"\"b\" of dit: is no DoRA as others are", "comfy and kohya"},
          {bad, layer("b", 2, 2)}, Format::kDiffusers);
  expect_error(ErrorCode::kEnvironment, {"nowhere"}, [&] {
    write_lora(folder / "nowhere/x.safetensors", Format::kKohya, two_layers(), kTargets, at::kFloat,
               {});
  });
  expect_error(ErrorCode::kInvalidArgument, {"\"kohja\"", "did you mean kohya?"},
               [] { parse_format("kohja"); });
}

TEST_CASE("A file that reads back as something else is removed", "[lora]") {
  const Folder folder;
  const std::string path = folder / "lora.safetensors";
  // The up factor of "a.lora_A" reads as a down factor of "a", with an adapter called lora_B.
  expect_error(
      ErrorCode::kDataLoss, {"lora.safetensors", "what was read back", "was removed"}, [&] {
        write_lora(path, Format::kDiffusers, std::vector<LayerWeights>{layer("a.lora_A", 4, 4)},
                   kTargets, at::kFloat, {});
      });
  CHECK(!test::fs::exists(path));
}

}  // namespace atelier::lora
