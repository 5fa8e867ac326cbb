#include "host/lora/lora_file.h"

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {
namespace {

using test::expect_error;
using test::Folder;

at::Tensor number(double value) {
  return at::tensor(value, at::kFloat);
}

std::string write(const Folder& folder, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {}) {
  const std::string path = folder / "lora.safetensors";
  files::write_safetensors(path, tensors, metadata);
  return path;
}

// One layer of rank 4 with more tensors beside it.
NamedTensors layer_and(const NamedTensors& more = {}, const std::string& name = "a.b") {
  NamedTensors tensors = {{name + ".lora_A.weight", at::ones({4, 6})},
                          {name + ".lora_B.weight", at::ones({5, 4})}};
  tensors.insert(more.begin(), more.end());
  return tensors;
}

}  // namespace

TEST_CASE("The scale is alpha over rank, and 1 where no alpha is given", "[lora]") {
  const Folder folder;
  const auto scale = [&](const std::string& path) {
    const LoraFile file = LoraFile::open(path);
    REQUIRE(file.layers().size() == 1);
    CHECK(file.layers()[0].rank == 4);
    CHECK(file.layers()[0].in == 6);
    CHECK(file.layers()[0].out == 5);
    return file.layers()[0].scale;
  };
  CHECK(scale(write(folder, layer_and())) == 1.0);
  CHECK(scale(write(folder, layer_and({{"a.b.alpha", number(2)}}))) == 0.5);
  CHECK(scale(write(folder, layer_and({{"a.b.alpha", at::full({1}, 8, at::kBFloat16)}}))) == 2.0);

  const auto with = [&](const std::string& metadata, const NamedTensors& more = {}) {
    return scale(
        write(folder, layer_and(more, "transformer.a.b"), {{"lora_adapter_metadata", metadata}}));
  };
  CHECK(with(R"({"transformer.r": 4, "transformer.lora_alpha": 8})") == 2.0);
  CHECK(with(R"({"transformer.lora_alpha": 8, "transformer.use_rslora": true})") == 4.0);
  CHECK(with(R"({"text_encoder.lora_alpha": 8})") == 1.0);
  CHECK(with(R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"b": 1}})") == 0.25);
  CHECK(with(R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"^b": 1}})") == 2.0);
  CHECK(with(R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"^a.b": 1}})") == 0.25);
  CHECK(with(R"({"transformer.lora_alpha": 8})", {{"transformer.a.b.alpha", number(2)}}) == 0.5);
}

TEST_CASE("A factor may be blocks on a diagonal, and a scale stand for the alpha", "[lora]") {
  const Folder folder;
  const std::string name = "lora___lorahyphen___a___lorahyphen___b.";
  const at::Tensor down = at::randn({4, 6}), first = at::randn({3, 2}), second = at::randn({3, 2});
  const NamedTensors whole = {{name + "lora_down.weight", down},
                              {name + "lora_up.blocks.0.weight", first},
                              {name + "lora_up.blocks.1.weight", second},
                              {name + "alpha_scale", number(0.5)}};
  const LoraFile file = LoraFile::open(write(folder, whole));
  REQUIRE(file.layers().size() == 1);
  const LoraLayer& layer = file.layers()[0];
  CHECK(layer.name == "a.b");
  CHECK(layer.rank == 4);
  CHECK(layer.shape == std::vector<int64_t>{6, 6});
  CHECK(layer.scale == 0.5);
  CHECK(layer.alpha == 2.0);
  CHECK(at::equal(file.read_up(layer, at::kFloat), at::block_diag({first, second})));
  const at::Tensor product =
      at::cat({at::mm(first, down.narrow(0, 0, 2)), at::mm(second, down.narrow(0, 2, 2))});
  CHECK(at::allclose(file.read_difference(layer).value(), 0.5 * product));

  const auto without = [&](const std::string& tensor, const NamedTensors& more = {}) {
    NamedTensors tensors = more;
    tensors.insert(whole.begin(), whole.end());
    tensors.erase(name + tensor);
    return write(folder, tensors);
  };
  const auto refuses = [&](const std::string& text, const std::string& path) {
    expect_error(ErrorCode::kInvalidArgument, {text}, [&] { LoraFile::open(path); });
  };
  refuses("one of the layer's blocks of lora_up is missing", without("lora_up.blocks.0.weight"));
  refuses("lora_down is missing", without("lora_down.weight"));
  refuses("rank 2 and the rows of",
          without("", {{name + "lora_up.blocks.1.weight", at::ones({4, 2})}}));
  expect_error(ErrorCode::kUnsupported, {"is the same factor"}, [&] {
    LoraFile::open(without("", {{name + "lora_up.weight", at::ones({6, 4})}}));
  });
}

TEST_CASE("A LoKr's scale is alpha over its rank, and 1 for two whole matrices", "[lora]") {
  const Folder folder;
  const NamedTensors whole = {{"a.b.lokr_w1", at::ones({2, 3})}, {"a.b.lokr_w2", at::ones({5, 7})}};
  const auto layer = [&](NamedTensors tensors, double alpha, const std::string& config = "") {
    if (alpha != 0) tensors.emplace("a.b.alpha", number(alpha));
    files::write_safetensors(folder / "adapter_model.safetensors", tensors);
    test::write_bytes(folder / "adapter_config.json", config.empty() ? "{}" : config);
    const LoraFile file = LoraFile::open(folder.path());
    REQUIRE(file.layers().size() == 1);
    CHECK((file.layers()[0].form == LayerForm::kLokr));
    CHECK(file.layers()[0].shape == std::vector<int64_t>{10, 21});
    CHECK_FALSE(file.layers()[0].is_product());
    CHECK(file.read_difference(file.layers()[0]).value().sizes() == at::IntArrayRef({10, 21}));
    return file.layers()[0];
  };
  CHECK(layer(whole, 0).scale == 1.0);
  CHECK(layer(whole, 8).scale == 1.0);  // LyCORIS writes any number there
  CHECK(layer(whole, 0, R"({"r": 4, "alpha": 2})").scale == 0.5);
  CHECK(layer(whole, 0, R"({"r": 4, "rank_pattern": {"b": 8}, "alpha": 2})").scale == 0.25);
  const NamedTensors right = {{"a.b.lokr_w1", at::ones({2, 3})},
                              {"a.b.lokr_w2_a", at::ones({5, 4})},
                              {"a.b.lokr_w2_b", at::ones({4, 7})}};
  CHECK(layer(right, 0).scale == 1.0);
  CHECK(layer(right, 2).scale == 0.5);
  CHECK(layer(right, 2).rank == 4);
  CHECK(layer(right, 0, R"({"r": 4, "alpha": 2})").scale == 0.5);
  CHECK(layer({{"a.b.lokr_w1_a", at::ones({2, 2})},
               {"a.b.lokr_w1_b", at::ones({2, 3})},
               {"a.b.lokr_w2", at::ones({5, 7})}},
              6)
            .scale == 3.0);
}

TEST_CASE("Differences, biases and lengths are read beside each other", "[lora]") {
  const Folder folder;
  const at::Tensor bias = at::randn({5}), diff = at::randn({3, 2, 1, 1}), lengths = at::rand({5});
  const LoraFile file =
      LoraFile::open(write(folder, layer_and({{"a.b.alpha", number(2)},
                                              {"a.b.dora_scale", lengths.reshape({5, 1})},
                                              {"a.b.lora_B.bias", bias},
                                              {"c.diff", diff.to(at::kBFloat16)},
                                              {"c.alpha", number(2)},
                                              {"d.diff_b", bias}})));
  REQUIRE(file.layers().size() == 3);
  const LoraLayer &dora = file.layers()[0], &whole = file.layers()[1], &only = file.layers()[2];
  CHECK((dora.form == LayerForm::kLora));
  CHECK_FALSE(dora.is_product());
  CHECK(at::equal(file.read_difference(dora).magnitude, lengths.reshape({5, 1})));
  CHECK(at::equal(file.read_difference(dora).value(), at::full({5, 6}, 2.0)));
  CHECK(at::equal(file.read_bias(dora).value(), bias * 0.5));
  CHECK((whole.form == LayerForm::kDifference));
  CHECK(whole.scale == 1.0);  // alpha means nothing there
  CHECK(whole.shape == std::vector<int64_t>{3, 2, 1, 1});
  CHECK(at::equal(file.read_difference(whole).value(), diff.to(at::kBFloat16).to(at::kFloat)));
  CHECK((only.form == LayerForm::kNone));
  CHECK(at::equal(file.read_bias(only).value(), bias));
}

TEST_CASE("A folder stands for the LoRA that peft or diffusers saved there", "[lora]") {
  const Folder folder;
  files::write_safetensors(folder / "adapter_model.safetensors",
                           layer_and({}, "base_model.model.a.b"));
  test::write_bytes(folder / "adapter_config.json", R"({"r": 4, "lora_alpha": 12})");
  CHECK(LoraFile::open(folder.path()).layers().at(0).scale == 3.0);
  test::fs::rename(folder / "adapter_model.safetensors", folder / "other.safetensors");
  CHECK(LoraFile::open(folder.path()).layers().at(0).scale == 1.0);
  files::write_safetensors(folder / "second.safetensors", layer_and());
  expect_error(ErrorCode::kNotFound, {"2 .safetensors files"},
               [&] { LoraFile::open(folder.path()); });
}

TEST_CASE("Factors are read in any dtype, convolutions of width 1 as matrices", "[lora]") {
  const Folder folder;
  const at::Tensor down = at::randn({4, 6}), up = at::randn({5, 4});
  const LoraFile file = LoraFile::open(
      write(folder, {{"c.lora_down.weight", down.reshape({4, 6, 1, 1})},
                     {"c.lora_up.weight", up.reshape({5, 4, 1, 1}).to(at::kBFloat16)}}));
  CHECK(at::equal(file.read_down(file.layers()[0], at::kFloat), down));
  CHECK(at::equal(file.read_up(file.layers()[0], at::kFloat), up.to(at::kBFloat16).to(at::kFloat)));
  CHECK(at::equal(file.read_down(file.layers()[0], at::kHalf), down.to(at::kHalf)));
}

TEST_CASE("Files that are wrong are refused with file, tensor and reason", "[lora]") {
  const Folder folder;
  const auto refused = [&](ErrorCode code, const std::vector<std::string>& parts,
                           const NamedTensors& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    const std::string path = write(folder, tensors, metadata);
    std::vector<std::string> all = parts;
    all.emplace_back("lora.safetensors");
    expect_error(code, all, [&] { LoraFile::open(path); });
  };
  refused(ErrorCode::kInvalidArgument, {"is no LoRA (1 tensors"}, {{"a.weight", at::ones({2, 2})}});
  refused(ErrorCode::kInvalidArgument, {"\"a.b.lora_B.weight\"", "[5, 3]", "rank 4 expected"},
          {{"a.b.lora_A.weight", at::ones({4, 6})}, {"a.b.lora_B.weight", at::ones({5, 3})}});
  refused(ErrorCode::kInvalidArgument, {"\"c.lora_A.weight\"", "lora_B (lora_up) is missing"},
          layer_and({{"c.lora_A.weight", at::ones({4, 6})}}));
  refused(ErrorCode::kInvalidArgument, {"hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b not all"},
          layer_and({{"c.hada_w1_a", at::ones({5, 4})}}));
  refused(ErrorCode::kUnsupported, {"\"c.hada_w2_b\": shape [3, 6]"},
          {{"c.hada_w1_a", at::ones({5, 4})},
           {"c.hada_w1_b", at::ones({4, 6})},
           {"c.hada_w2_a", at::ones({5, 3})},
           {"c.hada_w2_b", at::ones({3, 6})}});
  refused(ErrorCode::kUnsupported, {"same factor of the same layer"},
          layer_and({{"a.b.lora_A.two.weight", at::ones({4, 6})}}));
  refused(ErrorCode::kUnsupported, {"[4, 6, 3, 3] is no matrix"},
          {{"a.lora_A.weight", at::ones({4, 6, 3, 3})}, {"a.lora_B.weight", at::ones({5, 4})}});
  refused(ErrorCode::kUnsupported, {"Int values"},
          {{"a.lora_A.weight", at::ones({4, 6}, at::kInt)}, {"a.lora_B.weight", at::ones({5, 4})}});
  refused(ErrorCode::kInvalidArgument, {"\"a.b.alpha\"", "one number expected"},
          layer_and({{"a.b.alpha", at::ones({2})}}));
  refused(ErrorCode::kDataLoss, {"\"a.b.alpha\"", "not finite"},
          layer_and({{"a.b.alpha", number(INFINITY)}}));
  refused(ErrorCode::kDataLoss, {"lora_adapter_metadata"}, layer_and(),
          {{"lora_adapter_metadata", "{"}});
  refused(ErrorCode::kInvalidArgument, {"\"a.b.dora_scale\"", "[4, 4]", "[5] or [1, 6] expected"},
          layer_and({{"a.b.dora_scale", at::ones({4, 4})}}));
  refused(ErrorCode::kInvalidArgument, {"\"a.b.dora_scale\"", "[5, 6], [5] or [1, 6] expected"},
          layer_and({{"a.b.dora_scale", at::ones({5, 6})}}));
  refused(ErrorCode::kInvalidArgument, {"\"c.dora_scale\"", "the pair that it belongs to"},
          layer_and({{"c.dora_scale", at::ones({5})}}));
  refused(ErrorCode::kUnsupported, {"\"a.b.lokr_w1\"", "another addition to the same layer"},
          layer_and({{"a.b.lokr_w1", at::ones({2, 2})}, {"a.b.lokr_w2", at::ones({2, 2})}}));
  refused(ErrorCode::kUnsupported, {"\"a.b.diff\"", "\"a.b.lora_A.weight\" is another addition"},
          layer_and({{"a.b.diff", at::ones({5, 6})}}));
  refused(ErrorCode::kInvalidArgument,
          {"\"c.lokr_w1\"", "not just one of lokr_w2, and lokr_w2_a with lokr_w2_b"},
          layer_and({{"c.lokr_w1", at::ones({2, 2})}, {"c.lokr_w2_a", at::ones({2, 2})}}));
  refused(ErrorCode::kInvalidArgument, {"\"c.lokr_w2_b\"", "[3, 2], 2 rows expected"},
          layer_and({{"c.lokr_w1", at::ones({2, 2})},
                     {"c.lokr_w2_a", at::ones({2, 2})},
                     {"c.lokr_w2_b", at::ones({3, 2})}}));
  refused(ErrorCode::kInvalidArgument, {"\"a.b.diff_b\"", "[4], [5] expected"},
          layer_and({{"a.b.diff_b", at::ones({4})}}));
  refused(ErrorCode::kUnsupported, {"\"a.b.lora_B.bias\"", "another addition to the same bias"},
          layer_and({{"a.b.diff_b", at::ones({5})}, {"a.b.lora_B.bias", at::ones({5})}}));
  refused(ErrorCode::kUnsupported, {"Int values"},
          layer_and({{"c.diff", at::ones({4, 6}, at::kInt)}}));
  for (const auto& [tensor, kind] :
       std::map<std::string, std::string>{{"a.b.hada_t1", "LoHa of a convolution"},
                                          {"a.b.lokr_t2", "LoKr of a convolution"},
                                          {"a.b.set_weight", "(.set_weight)"},
                                          {"a.b.lora_A.bias", "a bias within a LoRA"},
                                          {"a.b.lora_mid.weight", "middle factor"}})
    refused(ErrorCode::kUnsupported, {kind + " is not supported", tensor},
            layer_and({{tensor, at::ones({4, 4})}}));
  expect_error(ErrorCode::kNotFound, {"missing.safetensors"},
               [&] { LoraFile::open(folder / "missing.safetensors"); });
}

TEST_CASE("Damaged files and values are refused", "[lora]") {
  const Folder folder;
  NamedTensors tensors = layer_and();
  tensors.at("a.b.lora_B.weight")[1][1] = NAN;
  const LoraFile file = LoraFile::open(write(folder, tensors));
  CHECK(file.read_down(file.layers()[0], at::kFloat).sum().item<double>() == 24);
  expect_error(ErrorCode::kDataLoss, {"\"a.b.lora_B.weight\"", "not finite as Float"},
               [&] { file.read_up(file.layers()[0], at::kFloat); });
  tensors.at("a.b.lora_B.weight").fill_(3e38);  // their sum is not finite, they are
  CHECK(LoraFile::open(write(folder, tensors)).read_up(file.layers()[0], at::kFloat).numel() == 20);
  const std::string path = write(folder, layer_and({{"a.b.alpha", number(1)}}));
  const std::string whole = test::read_bytes(path);
  for (const size_t length : {size_t{4}, size_t{100}, whole.size() - 1}) {
    test::write_bytes(path, whole.substr(0, length));
    expect_error(ErrorCode::kDataLoss, {"lora.safetensors"}, [&] { LoraFile::open(path); });
  }
}

}  // namespace atelier::lora
