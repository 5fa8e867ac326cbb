#include "host/lora/convert.h"

#include <cmath>

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {

using test::expect_error;
using test::Folder;

namespace {

// A file of `layers` in peft's names, with alpha tensors where `alpha` is not 0.
std::string write(const Folder& folder, double alpha, const std::string& prefix = "transformer.",
                  const NamedTensors& more = {}) {
  NamedTensors tensors = more;
  for (const test::Factors& of : test::toy_factors(4, 5)) {
    tensors.emplace(prefix + of.layer + ".lora_A.weight", of.down);
    tensors.emplace(prefix + of.layer + ".lora_B.weight", of.up);
    if (alpha != 0) tensors.emplace(prefix + of.layer + ".alpha", at::tensor(alpha, at::kFloat));
  }
  const std::string path = folder / "in.safetensors";
  files::write_safetensors(
      path, tensors,
      {{"ss_output_name", "mine"}, {"sshs_model_hash", "old"}, {"targets", "qkv,down"}});
  return path;
}

std::string convert_to(const Folder& folder, const std::string& from, Format format,
                       const LayerNames& names,
                       std::optional<at::ScalarType> dtype = std::nullopt) {
  static int count = 0;
  const std::string path = folder / ("out" + std::to_string(count++) + ".safetensors");
  convert(LoraFile::open(from), path, format, dtype, names);
  return path;
}

// All values of two files by the names of the first.
void check_equal_tensors(const std::string& first, const std::string& second) {
  const LoraFile a = LoraFile::open(first), b = LoraFile::open(second);
  REQUIRE(a.tensors().index().tensors().size() == b.tensors().index().tensors().size());
  for (const auto& [name, meta] : a.tensors().index().tensors()) {
    INFO(name);
    REQUIRE(b.tensors().index().contains(name));
    CHECK(at::equal(a.tensors().read(name), b.tensors().read(name)));
  }
}

struct Toy {
  Folder folder;
  std::unique_ptr<model::LoadedModel> model;
  Toy() {
    test::write_two_part_model(folder.path());
    model = test::open_toy(folder.path());
  }
};

}  // namespace

TEST_CASE("The way through all spellings and back gives the same bits", "[lora]") {
  const Toy toy;
  const LayerNames names(toy.model.get());
  const std::string start = convert_to(toy.folder, write(toy.folder, 0), Format::kDiffusers, names);
  std::string path = start;
  for (const Format format :
       {Format::kKohya, Format::kComfy, Format::kDiffsynth, Format::kDiffusers})
    path = convert_to(toy.folder, path, format, names);
  check_equal_tensors(start, path);
  // With any alpha as long as the file can say it.
  const std::string third = convert_to(toy.folder, write(toy.folder, 1.37), Format::kComfy, names);
  path = third;
  for (const Format format : {Format::kDiffusers, Format::kKohya, Format::kComfy})
    path = convert_to(toy.folder, path, format, names);
  check_equal_tensors(third, path);
}

TEST_CASE("Alpha is multiplied into lora_B where the spelling has none", "[lora]") {
  const Toy toy;
  const LayerNames names(toy.model.get());
  const std::string start = convert_to(toy.folder, write(toy.folder, 16), Format::kKohya, names);
  const LoraFile before = LoraFile::open(start);
  const std::string folded = convert_to(toy.folder, start, Format::kDiffsynth, names);
  const LoraFile after = LoraFile::open(convert_to(toy.folder, folded, Format::kKohya, names));
  for (size_t i = 0; i < before.layers().size(); ++i) {
    const LoraLayer &a = before.layers()[i], &b = after.layers()[i];
    CHECK(a.scale == 4);
    CHECK(b.scale == 1);
    CHECK(at::equal(before.read_down(a, at::kFloat), after.read_down(b, at::kFloat)));
    // A power of two: no bit is lost.
    CHECK(at::equal(before.read_up(a, at::kFloat) * 4, after.read_up(b, at::kFloat)));
  }
}

TEST_CASE("Metadata comes along, but for hashes and what the tensors say", "[lora]") {
  const Toy toy;
  const std::string path = convert_to(toy.folder, write(toy.folder, 2), Format::kDiffsynth,
                                      LayerNames(nullptr), at::kBFloat16);
  const LoraFile file = LoraFile::open(path);
  const auto& metadata = file.tensors().metadata();
  CHECK(metadata.at("ss_output_name") == "mine");
  CHECK(metadata.at("targets") == "qkv,down");
  CHECK(metadata.at("alpha") == "4");
  CHECK(!metadata.contains("sshs_model_hash"));
  CHECK(file.tensors().index().tensors().begin()->second.dtype == at::kBFloat16);
}

TEST_CASE("Names are split by the model, or refused where nothing tells", "[lora]") {
  const Toy toy;
  const LayerNames none(nullptr), model(toy.model.get());
  const std::string dotted = write(toy.folder, 4, "base_model.model.transformer.");
  const std::string flat = convert_to(toy.folder, dotted, Format::kKohya, none);
  CHECK(LoraFile::open(flat).layers()[0].name == "lora_unet_blocks_0_qkv");
  expect_error(ErrorCode::kInvalidArgument,
               {"out", "\"lora_unet_blocks_0_qkv\"", "pass --plugin and --model_paths"},
               [&] { convert_to(toy.folder, flat, Format::kComfy, none); });
  // No dots are needed, and none are made up.
  check_equal_tensors(flat, convert_to(toy.folder, flat, Format::kKohya, none));
  const std::string back = convert_to(toy.folder, flat, Format::kComfy, model);
  CHECK(LoraFile::open(back).layers()[0].name == "diffusion_model.blocks.0.qkv");
  // Another file that has the dots tells as well.
  LayerNames learnt(nullptr);
  learnt.learn(LoraFile::open(dotted));
  check_equal_tensors(back, convert_to(toy.folder, flat, Format::kComfy, learnt));
  // With a model, a file of another one is refused.
  test::write_lora(toy.folder / "other.safetensors", {test::random_factors("x.y", 8, 8, 2)});
  expect_error(ErrorCode::kInvalidArgument, {"other.safetensors", "none of its 1 layers"}, [&] {
    convert_to(toy.folder, toy.folder / "other.safetensors", Format::kComfy, model);
  });
}

TEST_CASE("Layers of other forms keep their tensors where the spelling has names", "[lora]") {
  const Folder folder;
  const LayerNames names(nullptr);
  const at::Tensor magnitude = at::rand({6}) + 1;
  const NamedTensors forms = {
      {"p.dora.lora_A.weight", at::randn({2, 5})},
      {"p.dora.lora_B.weight", at::randn({6, 2})},
      {"p.dora.lora_magnitude_vector.weight", magnitude},
      {"p.loha.hada_w1_a", at::randn({6, 2})},
      {"p.loha.hada_w1_b", at::randn({2, 5})},
      {"p.loha.hada_w2_a", at::randn({6, 2})},
      {"p.loha.hada_w2_b", at::randn({2, 5})},
      {"p.loha.alpha", at::tensor(1.0f)},
      {"p.lokr.lokr_w1", at::randn({2, 2})},
      {"p.lokr.lokr_w2_a", at::randn({3, 2})},
      {"p.lokr.lokr_w2_b", at::randn({2, 4})},
      {"p.lokr.alpha", at::tensor(6.0f)},
      {"p.diff.diff", at::randn({6, 5})},
      {"p.diff.diff_b", at::randn({6})},
  };
  NamedTensors spelled;
  for (const auto& [name, value] : forms) spelled.emplace("diffusion_model." + name, value);
  const std::string path = folder / "forms.safetensors";
  files::write_safetensors(path, spelled);
  const LoraFile file = LoraFile::open(path);
  for (const Format format : {Format::kComfy, Format::kKohya}) {
    const LoraFile out = LoraFile::open(convert_to(folder, path, format, names));
    REQUIRE(out.layers().size() == file.layers().size());
    for (size_t i = 0; i < file.layers().size(); ++i) {
      const LoraLayer &a = file.layers()[i], &b = out.layers()[i];
      INFO(a.name);
      CHECK(a.form == b.form);
      CHECK(a.scale == b.scale);
      CHECK(at::equal(file.read_difference(a).value(), out.read_difference(b).value()));
      CHECK(a.magnitude.empty() == b.magnitude.empty());
      if (!a.bias.empty()) CHECK(at::equal(file.read_bias(a).value(), out.read_bias(b).value()));
    }
    const std::string name =
        format == Format::kComfy ? "diffusion_model.p.dora" : "lora_unet_p_dora";
    CHECK(at::equal(out.tensors().read(name + ".dora_scale"), magnitude.reshape({6, 1})));
  }
  for (const Format format : {Format::kDiffusers, Format::kDiffsynth})
    expect_error(ErrorCode::kUnsupported, {"spelling has no name for", "comfy and kohya have"},
                 [&] { convert_to(folder, path, format, names); });
}

TEST_CASE("DoRA goes into every spelling that has names for it, and back to the bit", "[lora]") {
  const Folder folder;
  const LayerNames names(nullptr);
  const std::string start = folder / "start.safetensors";
  files::write_safetensors(
      start,
      {{"transformer.a.lora_A.weight", at::randn({2, 5})},
       {"transformer.a.lora_B.weight", at::randn({6, 2})},
       {"transformer.a.lora_magnitude_vector", at::rand({6}) + 1}},
      {{"lora_adapter_metadata", R"({"transformer.r": 2, "transformer.lora_alpha": 3})"}});
  std::string path = start;
  for (const Format format : {Format::kKohya, Format::kComfy, Format::kDiffusers})
    path = convert_to(folder, path, format, names);
  check_equal_tensors(start, path);
  const auto metadata = LoraFile::open(path).tensors().metadata();
  const auto config = nlohmann::json::parse(metadata.at("lora_adapter_metadata"));
  CHECK(config.at("transformer.use_dora") == true);
  CHECK(config.at("transformer.lora_alpha") == 3);
}

TEST_CASE("A bias of lora_B and a LoKr without a rank keep what they add", "[lora]") {
  const Folder folder;
  // peft divides by the rank it was asked for, which a file in LyCORIS' names does not say.
  test::write_bytes(folder / "adapter_config.json", R"({"r": 8, "alpha": 2, "lora_alpha": 6})");
  files::write_safetensors(folder / "adapter_model.safetensors",
                           {{"base_model.model.a.lokr_w1", at::randn({2, 2})},
                            {"base_model.model.a.lokr_w2", at::randn({3, 4})},
                            {"base_model.model.b.lora_A.weight", at::randn({4, 8})},
                            {"base_model.model.b.lora_B.weight", at::randn({6, 4})},
                            {"base_model.model.b.lora_B.bias", at::randn({6})}});
  const LoraFile file = LoraFile::open(folder.path());
  REQUIRE(file.layers().at(0).scale == 0.25);
  const Folder out_folder;
  const LoraFile out =
      LoraFile::open(convert_to(out_folder, folder.path(), Format::kKohya, LayerNames(nullptr)));
  CHECK(at::equal(file.read_difference(file.layers()[0]).value(),
                  out.read_difference(out.layers()[0]).value()));
  CHECK(out.layers()[0].scale == 1);
  CHECK(
      at::equal(file.read_bias(file.layers()[1]).value(), out.read_bias(out.layers()[1]).value()));
}

TEST_CASE("Text encoders keep apart in every spelling of their names", "[lora]") {
  const Folder folder;
  const LayerNames names(nullptr);
  NamedTensors tensors;
  for (const std::string layer :
       {"lora_te_x_y", "lora_te2_x_y", "text_encoder.x.y", "lora_unet_a"}) {
    tensors.emplace(layer + ".lora_down.weight", at::randn({2, 4}));
    tensors.emplace(layer + ".lora_up.weight", at::randn({4, 2}));
  }
  const std::string path = folder / "te.safetensors";
  files::write_safetensors(path, tensors);
  const LoraFile file = LoraFile::open(path);
  CHECK(names.find("text_encoder.x.y").component == "text_encoder");
  CHECK(names.find("lora_te1_x_y").component == "text_encoder");
  CHECK(names.find("lora_te2_x_y").component == "text_encoder_2");
  CHECK(names.find("lora_te2_x_y").is_flat);
  CHECK(!names.find("lora_unet_a").is_flat);  // there is nothing to split
  CHECK(names.find("proj_out").path == "proj_out");
  LayerNames learnt(nullptr);
  learnt.learn(file);
  CHECK(learnt.find("lora_te_x_y").path == "x.y");
}

TEST_CASE("8-bit factors are written as bfloat16, which holds them", "[lora]") {
  const Folder folder;
  const at::Tensor down = at::randn({2, 4}).to(at::kFloat8_e4m3fn);
  const at::Tensor diff = at::randn({4, 4}).to(at::kFloat8_e4m3fn);
  const std::string path = folder / "f8.safetensors";
  files::write_safetensors(
      path, {{"diffusion_model.a.lora_A.weight", down},
             {"diffusion_model.a.lora_B.weight", at::randn({4, 2}).to(at::kFloat8_e4m3fn)},
             {"diffusion_model.b.diff", diff}});
  const LoraFile out =
      LoraFile::open(convert_to(folder, path, Format::kComfy, LayerNames(nullptr)));
  const at::Tensor got = out.tensors().read("diffusion_model.a.lora_A.weight");
  CHECK(got.scalar_type() == at::kBFloat16);
  CHECK(at::equal(got, down.to(at::kBFloat16)));
  CHECK(at::equal(out.tensors().read("diffusion_model.b.diff"), diff.to(at::kBFloat16)));
}

TEST_CASE("A LoRA is not written over itself", "[lora]") {
  const Folder folder;
  const std::string path = write(folder, 4);
  const std::string bytes = test::read_bytes(path);
  test::fs::create_symlink(path, folder / "link.safetensors");
  for (const std::string& output : {path, folder / "link.safetensors"})
    expect_error(ErrorCode::kInvalidArgument, {"is the file that is read"}, [&] {
      convert(LoraFile::open(path), output, Format::kComfy, std::nullopt, LayerNames(nullptr));
    });
  CHECK(test::read_bytes(path) == bytes);
}

}  // namespace atelier::lora
