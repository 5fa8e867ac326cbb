#include "host/lora/registry.h"

#include <functional>
#include <random>
#include <regex>

#include "tests/host/lora/toy_lora.h"

namespace atelier::lora {
namespace {

using test::expect_error;
using test::Folder;

// A model, its velocity without LoRAs, and two LoRAs.
struct Scene {
  Folder folder;
  std::unique_ptr<model::LoadedModel> model;
  at::Tensor plain;
  std::vector<test::Factors> style = test::toy_factors(4, 1);
  std::vector<test::Factors> light = {style[1], style[3]};  // of fewer layers, other values
  std::string style_path = folder / "style.safetensors", light_path = folder / "light.safetensors";

  Scene() {
    test::write_two_part_model(folder.path());
    model = test::open_toy(folder.path());
    plain = test::toy_velocity(*model);
    for (test::Factors& of : light) of.down = at::randn({2, of.down.size(1)}) * 0.3;
    for (test::Factors& of : light) of.up = at::randn({of.up.size(0), 2}) * 0.3;
    test::write_lora(style_path, style);
    test::write_lora(light_path, light, "diffusion_model.", /*alpha=*/1);
  }
  at::Tensor velocity() { return test::toy_velocity(*model); }
  at::Tensor merged(double of_style, double of_light) const {
    std::vector<test::Factors> all = style;
    all.insert(all.end(), light.begin(), light.end());
    std::vector<double> scales(style.size(), of_style);
    scales.insert(scales.end(), light.size(), of_light * 0.5);  // alpha 1, rank 2
    return test::merged_velocity(folder.path(), all, scales);
  }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all;
    model->model().component("dit").visit_weights(
        [&](const std::string&, Weight& weight) { all.push_back(weight.draw().clone()); });
    return all;
  }
};

}  // namespace

TEST_CASE("A loaded LoRA gives what merged weights give, and unloading gives the base's bits",
          "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  const double effect = test::error(scene.merged(1, 0), scene.plain);
  REQUIRE(effect > 0.05);
  registry.load({"style", scene.style_path});
  CHECK(test::error(scene.velocity(), scene.merged(1, 0)) < 5e-5);
  registry.load({"light", scene.light_path, 0.5});
  CHECK(test::error(scene.velocity(), scene.merged(1, 0.5)) < 5e-5);
  const std::vector<LoraRef> turned = {{"style", scene.style_path, -0.7},
                                       {"light", scene.light_path, 0.5}};
  registry.use(turned);
  CHECK(test::error(scene.velocity(), scene.merged(-0.7, 0.5)) < 5e-5);
  registry.unload("style");  // the layers that only it has are plain again
  CHECK(test::error(scene.velocity(), scene.merged(0, 0.5)) < 5e-5);
  const std::vector<LoraRef> silent = {{"light", scene.light_path, 0}};
  registry.use(silent);
  CHECK(at::equal(scene.velocity(), scene.plain));
  registry.unload("light");
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("All spellings of one LoRA give the same bits", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  registry.load({"style", scene.style_path});
  const at::Tensor wanted = scene.velocity();
  REQUIRE_FALSE(at::equal(wanted, scene.plain));
  struct Spelling {
    std::string prefix, down, up;
    bool is_flat = false;
  };
  const Spelling spellings[] = {{"", ".lora_A.weight", ".lora_B.weight"},
                                {"", ".lora_A.default.weight", ".lora_B.default.weight"},
                                {"", ".lora_down.weight", ".lora_up.weight"},
                                {"base_model.model.", ".lora_A.weight", ".lora_B.weight"},
                                {"diffusion_model.", ".lora_A.weight", ".lora_B.weight"},
                                {"diffusion_model.", ".lora_down.weight", ".lora_up.weight"},
                                {"transformer.", ".lora.down.weight", ".lora.up.weight"},
                                {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true},
                                {"lora_unet__", ".lora_down.weight", ".lora_up.weight", true},
                                {"lycoris_", ".lora_down.weight", ".lora_up.weight", true}};
  for (const Spelling& spelling : spellings) {
    for (const bool with_alpha : {false, true}) {
      INFO(spelling.prefix << spelling.down << (with_alpha ? ", alpha" : ""));
      NamedTensors tensors;
      for (const test::Factors& of : scene.style) {
        std::string layer = of.layer;
        if (spelling.is_flat) std::replace(layer.begin(), layer.end(), '.', '_');
        tensors.emplace(spelling.prefix + layer + spelling.down, of.down);
        tensors.emplace(spelling.prefix + layer + spelling.up, of.up);
        if (with_alpha)
          tensors.emplace(spelling.prefix + layer + ".alpha", at::tensor(4.0, at::kFloat));
      }
      const std::string path = scene.folder / "spelled.safetensors";
      files::write_safetensors(path, tensors);
      const std::vector<LoraRef> set = {{"spelled", path}};
      registry.use(set);
      CHECK(registry.check({.name = "x", .path = path}).empty());
      CHECK(at::equal(scene.velocity(), wanted));
    }
  }
}

TEST_CASE("A LoHa gives what merged weights give", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  NamedTensors tensors;
  std::vector<test::Factors> deltas;  // as products with the identity
  for (const auto& [layer, in, out] :
       {std::tuple("blocks.0.qkv", 32, 96), {"blocks.1.value", 32, 32}, {"embed", 48, 32}}) {
    const auto first = test::random_factors(layer, in, out, 3);
    const auto second = test::random_factors(layer, in, out, 3);
    const std::string name = "lycoris_" + std::regex_replace(first.layer, std::regex("\\."), "_");
    tensors.emplace(name + ".hada_w1_a", first.up);
    tensors.emplace(name + ".hada_w1_b", first.down);
    tensors.emplace(name + ".hada_w2_a", second.up);
    tensors.emplace(name + ".hada_w2_b", second.down);
    tensors.emplace(name + ".alpha", at::tensor(6.0, at::kFloat));
    deltas.push_back(
        {layer, at::mm(first.up, first.down) * at::mm(second.up, second.down), at::eye(out)});
  }
  const std::string path = scene.folder / "loha.safetensors";
  files::write_safetensors(path, tensors);
  registry.load({"loha", path, 0.5});
  const at::Tensor merged = test::merged_velocity(scene.folder.path(), deltas, {1, 1, 1});
  REQUIRE(test::error(merged, scene.plain) > 0.05);
  CHECK(test::error(scene.velocity(), merged) < 5e-5);
  registry.unload("loha");
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("Every kind gives what changed weights give, hot and merged", "[lora]") {
  Scene scene;
  at::manual_seed(31);
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape) * 0.3; };
  struct Kind {
    std::string name;
    NamedTensors file;
    std::function<void(NamedTensors&)> change;  // of the published weights, at strength 1
  };
  std::vector<Kind> kinds;
  {
    const at::Tensor a = random({3, 32}), b = random({96, 3}), m = at::rand({96}) + 0.5;
    kinds.push_back({"DoRA by rows",
                     {{"transformer.blocks.0.qkv.lora_A.weight", a},
                      {"transformer.blocks.0.qkv.lora_B.weight", b},
                      {"transformer.blocks.0.qkv.lora_magnitude_vector", m},
                      {"transformer.blocks.0.qkv.alpha", at::tensor(6.0f)}},
                     [=](NamedTensors& weights) {
                       at::Tensor& w = weights.at("blocks.0.qkv.weight");
                       w = w + 2 * at::mm(b, a);
                       w = w * m.unsqueeze(1) / w.norm(2, 1, true);
                     }});
  }
  {
    const at::Tensor a = random({3, 32}), b = random({32, 3}), m = at::rand({1, 32}) + 0.5;
    kinds.push_back({"DoRA by columns",
                     {{"lora_unet_blocks_1_value.lora_down.weight", a},
                      {"lora_unet_blocks_1_value.lora_up.weight", b},
                      {"lora_unet_blocks_1_value.dora_scale", m}},
                     [=](NamedTensors& weights) {
                       at::Tensor& w = weights.at("blocks.1.value.weight");
                       w = w + at::mm(b, a);
                       w = w * m / w.norm(2, 0, true);
                     }});
  }
  {
    const at::Tensor w1 = random({8, 4}), a = random({12, 2}), b = random({2, 8});
    kinds.push_back({"LoKr",
                     {{"lycoris_blocks_0_qkv.lokr_w1", w1},
                      {"lycoris_blocks_0_qkv.lokr_w2_a", a},
                      {"lycoris_blocks_0_qkv.lokr_w2_b", b},
                      {"lycoris_blocks_0_qkv.alpha", at::tensor(1.0f)}},
                     [=](NamedTensors& weights) {
                       weights.at("blocks.0.qkv.weight").add_(at::kron(w1, at::mm(a, b)), 0.5);
                     }});
  }
  {
    const at::Tensor diff = random({32, 48}), bias = random({32});
    kinds.push_back({"whole differences",
                     {{"diffusion_model.embed.diff", diff}, {"diffusion_model.embed.diff_b", bias}},
                     [=](NamedTensors& weights) {
                       weights.at("embed.weight").add_(diff);
                       weights.at("embed.bias").add_(bias);
                     }});
  }
  {
    const at::Tensor a = random({2, 32}), b = random({32, 2}), bias = random({32});
    kinds.push_back({"LoRA with a bias",
                     {{"blocks.1.down.lora_A.weight", a},
                      {"blocks.1.down.lora_B.weight", b},
                      {"blocks.1.down.lora_B.bias", bias},
                      {"blocks.1.down.alpha", at::tensor(4.0f)}},
                     [=](NamedTensors& weights) {
                       weights.at("blocks.1.down.weight").add_(at::mm(b, a), 2);
                       weights.at("blocks.1.down.bias").add_(bias, 2);
                     }});
  }
  const std::string path = scene.folder / "kind.safetensors";
  for (const Mode mode : {Mode::kHot, Mode::kMerge}) {
    Registry registry(*scene.model, {.mode = mode});
    for (const Kind& kind : kinds) {
      INFO(kind.name << (mode == Mode::kHot ? ", hot" : ", merged"));
      files::write_safetensors(path, kind.file);
      registry.load({"kind", path});
      CHECK(registry.check({.name = "x", .path = path}).empty());
      const at::Tensor wanted = test::changed_velocity(scene.folder.path(), kind.change);
      REQUIRE(test::error(wanted, scene.plain) > 0.02);
      CHECK(test::error(scene.velocity(), wanted) < 5e-5);
      // Half of it, beside a plain LoRA.
      const std::vector<LoraRef> set = {{"kind", path, 0.5}, {"style", scene.style_path, -0.7}};
      registry.use(set);
      const at::Tensor both =
          test::changed_velocity(scene.folder.path(), [&](NamedTensors& weights) {
            NamedTensors changed;
            for (const auto& [name, value] : weights) changed.emplace(name, value.clone());
            kind.change(changed);
            for (auto& [name, value] : weights) value.lerp_(changed.at(name), 0.5);
            for (const test::Factors& of : scene.style)
              weights.at(of.layer + ".weight").add_(at::mm(of.up, of.down), -0.7);
          });
      CHECK(test::error(scene.velocity(), both) < 5e-5);
      registry.unload("kind");
      registry.unload("style");
      CHECK(at::equal(scene.velocity(), scene.plain));
    }
  }
}

TEST_CASE("Merged LoRAs are what hot ones are, and leave the base's bits", "[lora]") {
  Scene scene;
  const std::vector<at::Tensor> weights = scene.weights();
  const std::vector<LoraRef> both = {{"style", scene.style_path, 0.5}, {"light", scene.light_path}};
  at::Tensor hot;
  {
    Registry registry(*scene.model);
    registry.use(both);
    hot = scene.velocity();
  }
  {
    Registry registry(*scene.model, {.mode = Mode::kMerge});
    registry.use(both);
    CHECK(test::error(scene.velocity(), hot) < 2e-5);
    CHECK_FALSE(test::same_bits(scene.weights(), weights));
    scene.model->model().component("dit").visit([](nn::Module& module) {
      if (auto* linear = dynamic_cast<nn::Linear*>(&module)) CHECK(linear->adapters.empty());
    });
    registry.use({});
    CHECK(test::same_bits(scene.weights(), weights));
    CHECK(at::equal(scene.velocity(), scene.plain));
    registry.use(both);
    CHECK(test::error(scene.velocity(), hot) < 2e-5);
  }
  CHECK(test::same_bits(scene.weights(), weights));
}

TEST_CASE("On weights that stream LoRAs are what they are otherwise, and leave no sums behind",
          "[lora]") {
  const Scene scene;
  for (const Mode mode : {Mode::kHot, Mode::kMerge}) {
    for (const int64_t stay : {0, 1}) {
      const auto resident = test::open_toy(scene.folder.path());
      const auto streamed = test::open_toy(scene.folder.path(), "float32",
                                           {.offload = {{"dit", memory::Place::kHost}},
                                            .resident_blocks = {{"dit", stay}},
                                            .prefetch = 0});
      Registry a(*resident, {.mode = mode}), b(*streamed, {.mode = mode});
      const LoraRef style = {"style", scene.style_path, 0.7},
                    light = {"light", scene.light_path, 1.0};
      for (const std::vector<LoraRef>& set :
           std::vector<std::vector<LoraRef>>{{style}, {light, style}, {}, {style}}) {
        a.use(set);
        b.use(set);
        CHECK(at::equal(test::toy_velocity(*resident), test::toy_velocity(*streamed)));
      }
      if (mode == Mode::kMerge) CHECK(b.bytes() < a.bytes());
      streamed->unload_component("dit");
      CHECK(at::equal(test::toy_velocity(*resident), test::toy_velocity(*streamed)));
      b.use({});
      CHECK(at::equal(test::toy_velocity(*streamed), scene.plain));
    }
  }
}

TEST_CASE("What became a part of weights is not added to them again, and stays", "[lora]") {
  const Scene scene;
  const auto added = test::open_toy(scene.folder.path()),
             merged = test::open_toy(scene.folder.path());
  merged->load_component("dit");
  const LoraRef style = {"style", scene.style_path, 0.7};
  Registry a(*added, {.mode = Mode::kMerge}), b(*merged, {.mode = Mode::kMerge});
  Weight& down = *merged->model().component("dit").find_weight("blocks.1.down.weight");
  const at::Tensor before = down.draw().clone();
  b.merge(style, {&down});
  CHECK(down.state().is_trainable() == false);
  CHECK(down.state().store()->added() == nullptr);
  CHECK_FALSE(at::equal(down.draw(), before));
  down.state().set_trainable(true);  // as it is when the others are added to
  a.use({&style, 1});
  b.use({&style, 1});
  CHECK(at::equal(test::toy_velocity(*added), test::toy_velocity(*merged)));
  a.use({});
  b.use({});
  CHECK_FALSE(at::equal(test::toy_velocity(*added), test::toy_velocity(*merged)));
}

TEST_CASE("Two registries add to one weight, and each takes its own away", "[lora]") {
  Scene scene;
  Registry first(*scene.model, {.mode = Mode::kMerge});
  {
    Registry second(*scene.model, {.mode = Mode::kMerge});
    first.load({"style", scene.style_path});
    second.load({"light", scene.light_path});
    CHECK(test::error(scene.velocity(), scene.merged(1, 1)) < 5e-5);
    first.unload("style");
    CHECK(test::error(scene.velocity(), scene.merged(0, 1)) < 5e-5);
    first.load({"style", scene.style_path});
  }
  CHECK(test::error(scene.velocity(), scene.merged(1, 0)) < 5e-5);
  first.unload("style");
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("A set replaces another, whatever layers they have", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  const std::vector<LoraRef> style = {{"style", scene.style_path}},
                             light = {{"light", scene.light_path}},
                             both = {{"style", scene.style_path, 0.5}, {"light", scene.light_path}};
  registry.use(light);
  const at::Tensor of_light = scene.velocity();
  registry.use(both);
  const at::Tensor of_both = scene.velocity();
  CHECK(test::error(of_both, scene.merged(0.5, 1)) < 5e-5);
  registry.use(style);
  registry.use(light);
  CHECK(at::equal(scene.velocity(), of_light));
  registry.use(both);
  CHECK(at::equal(scene.velocity(), of_both));
  registry.use({});
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("LoRAs outlive the weights of their layers", "[lora]") {
  const Mode mode = GENERATE(Mode::kHot, Mode::kMerge);
  Scene scene;
  Registry registry(*scene.model, {.mode = mode});
  scene.model->unload_component("dit");
  registry.load({"style", scene.style_path});
  const at::Tensor with = scene.velocity();
  CHECK(test::error(with, scene.merged(1, 0)) < 5e-5);
  scene.model->unload_component("dit");
  CHECK(at::equal(scene.velocity(), with));
  registry.unload("style");
  scene.model->unload_component("dit");
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("Adapters have the compute dtype, and those of others stay where they are", "[lora]") {
  Scene scene;
  scene.model = test::open_toy(scene.folder.path(), "bfloat16");
  nn::Linear* down = nullptr;
  scene.model->model().component("dit").visit([&](nn::Module& module) {
    if (module.path() == "blocks.1.down") down = dynamic_cast<nn::Linear*>(&module);
  });
  REQUIRE(down != nullptr);
  const ops::Adapter other = {at::randn({3, 32}), at::randn({32, 3}), 0.5};
  down->adapters.push_back(other);
  {
    Registry registry(*scene.model);
    registry.load({"style", scene.style_path});
    REQUIRE(down->adapters.size() == 2);
    CHECK(down->adapters[0].a.is_same(other.a));
    CHECK(down->adapters[1].a.scalar_type() == at::kBFloat16);
    CHECK_FALSE(down->adapters[1].a.requires_grad());
    CHECK(registry.bytes() > 0);
  }
  REQUIRE(down->adapters.size() == 1);
  CHECK(down->adapters[0].a.is_same(other.a));
}

TEST_CASE("LoRAs that share a layer are one adapter there, and leave it as one", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  scene.velocity();
  const auto adapters = [&] {
    std::map<std::string, std::vector<ops::Adapter>> result;
    scene.model->model().component("dit").visit([&](nn::Module& module) {
      const auto* linear = dynamic_cast<nn::Linear*>(&module);
      if (linear != nullptr && !linear->adapters.empty()) result[module.path()] = linear->adapters;
    });
    return result;
  };
  registry.load({"style", scene.style_path, 0.7});
  const auto of_style = adapters();
  const int64_t bytes = registry.bytes();
  const at::Tensor with_style = scene.velocity();
  registry.load({"again", scene.style_path, -1.4});
  const auto of_both = adapters();
  REQUIRE(of_both.size() == of_style.size());
  for (const auto& [layer, of_one] : of_style) {
    INFO(layer);
    REQUIRE(of_both.at(layer).size() == 1);
    const ops::Adapter &one = of_one[0], &both = of_both.at(layer)[0];
    const int64_t rank = one.a.size(0);
    CHECK(both.scale == one.scale);
    CHECK(at::equal(both.a, at::cat({one.a, one.a}, 0)));
    CHECK(at::equal(both.b.narrow(1, 0, rank), one.b));
    CHECK(test::error(both.b.narrow(1, rank, rank), one.b * -2) < 1e-6);
  }
  CHECK(registry.bytes() > bytes);
  CHECK(test::error(scene.velocity(), scene.merged(-0.7, 0)) < 5e-5);
  registry.unload("again");
  CHECK(at::equal(scene.velocity(), with_style));
  registry.unload("style");
  CHECK(adapters().empty());
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("A mistake leaves the set as it was", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  registry.load({"style", scene.style_path, 0.5});
  const at::Tensor before = scene.velocity();
  expect_error(ErrorCode::kInvalidArgument, {"\"style\"", "given twice"}, [&] {
    registry.load({"style", scene.light_path});
  });
  expect_error(ErrorCode::kInvalidArgument, {"not finite"}, [&] {
    registry.load({"light", scene.light_path, NAN});
  });
  expect_error(ErrorCode::kNotFound, {"none.safetensors"}, [&] {
    registry.load({"none", scene.folder / "none.safetensors"});
  });
  expect_error(ErrorCode::kNotFound, {"\"light\" is not loaded", "there are \"style\""},
               [&] { registry.unload("light"); });
  const std::vector<LoraRef> broken = {{"light", scene.light_path},
                                       {"none", scene.folder / "none.safetensors"}};
  expect_error(ErrorCode::kNotFound, {"none.safetensors"}, [&] { registry.use(broken); });
  auto factors = scene.light;
  factors[0].up[0][0] = INFINITY;
  test::write_lora(scene.folder / "bad.safetensors", factors);
  expect_error(ErrorCode::kDataLoss, {"bad.safetensors", "not finite"}, [&] {
    registry.load({"bad", scene.folder / "bad.safetensors"});
  });
  CHECK(at::equal(scene.velocity(), before));
}

TEST_CASE("A file that is written again is read again", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  const std::vector<LoraRef> set = {{"style", scene.style_path}};
  registry.use(set);
  const at::Tensor first = scene.velocity();
  test::write_lora(scene.style_path, test::toy_factors(3, 9));
  registry.use(set);
  CHECK_FALSE(at::equal(scene.velocity(), first));
  test::write_lora(scene.style_path, scene.style);
  registry.use(set);
  CHECK(at::equal(scene.velocity(), first));
}

TEST_CASE("A fingerprint tells what a set does to a component", "[lora]") {
  Scene scene;
  Registry registry(*scene.model);
  const auto of = [&](const std::vector<LoraRef>& set, std::string_view component) {
    return registry.fingerprint(set, component);
  };
  const LoraRef style = {"style", scene.style_path}, weak = {"style", scene.style_path, 0.5},
                none = {"style", scene.style_path, 0}, light = {"light", scene.light_path};
  CHECK(of({style}, "vae").empty());
  CHECK(of({none}, "dit").empty());
  CHECK(of({style}, "dit") == of({style, none}, "dit"));
  CHECK(of({style}, "dit") != of({weak}, "dit"));
  CHECK(of({style}, "dit") != of({light}, "dit"));
  const std::string before = of({style}, "dit");
  test::write_lora(scene.style_path, test::toy_factors(3, 9));
  CHECK(of({style}, "dit") != before);
  files::write_safetensors(scene.style_path, {{"vae.scale.lora_A.weight", at::ones({1, 3})},
                                              {"vae.scale.lora_B.weight", at::ones({3, 1})}});
  CHECK(of({style}, "dit").empty());
  CHECK_FALSE(of({style}, "vae").empty());
}

TEST_CASE("Files that are not in use leave memory when there are too many", "[lora]") {
  Scene scene;
  Registry registry(*scene.model, {.idle_bytes = 0});
  registry.load({"style", scene.style_path});
  const int64_t of_style = registry.bytes();
  registry.load({"light", scene.light_path});
  const int64_t of_both = registry.bytes();
  REQUIRE(of_both > of_style);
  registry.unload("light");
  CHECK(registry.bytes() == of_style);
  registry.unload("style");
  CHECK(registry.bytes() == 0);
  Registry keeping(*scene.model);
  keeping.load({"style", scene.style_path});
  keeping.unload("style");
  CHECK(keeping.bytes() == of_style);
}

TEST_CASE("500 random changes leave every weight, the velocity and the memory as they were",
          "[lora]") {
  Scene scene;
  const std::vector<at::Tensor> weights = scene.weights();
  const at::Tensor x = at::randn({2, test::kToyChannels, 1, 4, 4});
  const Conditioning cond = {{"prompt_embeds", at::randn({5, test::kToyWidth})}};
  const auto gradient = [&] {
    const at::Tensor leaf = test::trained(x);
    const Conditioning* both[] = {&cond, &cond};
    DirectRunner runner;
    const at::Tensor v =
        scene.model->model().denoise({leaf, at::tensor({0.25f, 0.75f}), both}, runner);
    return test::gradients({v}, {leaf});
  };
  const test::Tensors plain_gradient = gradient();
  for (uint64_t i = 0; i < 3; ++i)
    test::write_lora(scene.folder / ("lora" + std::to_string(i) + ".safetensors"),
                     test::toy_factors(2 + static_cast<int64_t>(i), 20 + i));
  const auto pair = test::random_factors("blocks.0.qkv", 32, 96, 2);
  files::write_safetensors(scene.folder / "lora3.safetensors",
                           {{"blocks.0.qkv.lora_A.weight", pair.down},
                            {"blocks.0.qkv.lora_B.weight", pair.up},
                            {"blocks.0.qkv.dora_scale", at::rand({96}) + 0.5},
                            {"embed.diff", at::randn({32, 48}) * 0.3},
                            {"embed.diff_b", at::randn({32}) * 0.3}});
  files::write_safetensors(scene.folder / "lora4.safetensors",
                           {{"blocks.0.qkv.lokr_w1", at::randn({8, 4}) * 0.3},
                            {"blocks.0.qkv.lokr_w2", at::randn({12, 8}) * 0.3},
                            {"blocks.1.down.hada_w1_a", at::randn({32, 2})},
                            {"blocks.1.down.hada_w1_b", at::randn({2, 32})},
                            {"blocks.1.down.hada_w2_a", at::randn({32, 2})},
                            {"blocks.1.down.hada_w2_b", at::randn({2, 32})},
                            {"blocks.1.down.diff_b", at::randn({32}) * 0.3}});
  const Mode mode = GENERATE(Mode::kHot, Mode::kMerge);
  Registry registry(*scene.model, {.mode = mode, .idle_bytes = 0});
  const auto use_of = [&](size_t i, double strength) {
    const std::string name = "lora" + std::to_string(i);
    return LoraRef{name, scene.folder / (name + ".safetensors"), strength};
  };
  for (size_t i = 0; i < 5; ++i) registry.check(use_of(i, 1));
  test::Bytes live;
  scene.model->unload_component("dit");
  scene.velocity();  // weights that are counted when they leave
  const int64_t live_before = live.now();
  std::mt19937 random(5);
  size_t with_adapters = 0;
  std::vector<LoraRef> set;  // that is in use
  for (int cycle = 0; cycle < 500; ++cycle) {
    const LoraRef use = use_of(random() % 5, static_cast<double>(random() % 5) / 2 - 1);
    const auto own = std::find_if(set.begin(), set.end(),
                                  [&](const LoraRef& each) { return each.name == use.name; });
    if (own == set.end()) {
      registry.load(use);
      set.push_back(use);
    } else if (random() % 2 == 0) {
      registry.unload(use.name);
      set.erase(own);
    } else {
      own->strength = use.strength;
      registry.use(set);
    }
    if (cycle % 100 == 99) scene.model->unload_component("dit");
    if (cycle % 50 == 0) {
      const bool adds = std::any_of(set.begin(), set.end(),
                                    [](const LoraRef& each) { return each.strength != 0; });
      with_adapters += adds;
      CHECK(at::equal(scene.velocity(), scene.plain) == !adds);
    }
  }
  CHECK(with_adapters > 3);
  for (const LoraRef& use : set) registry.unload(use.name);
  CHECK(registry.bytes() == 0);
  CHECK(at::equal(scene.velocity(), scene.plain));  // and loads the weights
  CHECK(live.now() == live_before);
  CHECK(test::same_bits(scene.weights(), weights));
  CHECK(test::same_bits(gradient(), plain_gradient));
}

namespace {

// LoRAs of a layer whose rows stand by sample, and what each sample has of them.
struct BySample : Scene {
  std::string first = folder / "first.safetensors", second = folder / "second.safetensors";
  Registry registry;
  BySample() : registry(*model) {
    test::write_lora(first, {test::random_factors("embed", 48, 32, 4)});
    test::write_lora(second, {test::random_factors("embed", 48, 32, 2)}, "transformer.",
                     /*alpha=*/1);
  }
  using Sets = std::vector<std::vector<LoraRef>>;
  at::Tensor alone(const std::vector<LoraRef>& set, int64_t sample) {
    registry.use(set);
    return velocity().narrow(0, sample, 1);
  }
  // Both samples in one call.
  at::Tensor together(const Sets& sets) {
    const auto strengths = registry.use_each(sets);
    REQUIRE(strengths);
    const ops::SampleScope scope(*strengths);
    return velocity();
  }
  void check(const Sets& sets) {
    const at::Tensor both = together(sets);
    CHECK(at::equal(velocity(), plain));  // outside of the scope
    for (int64_t s = 0; s < 2; ++s)
      CHECK(test::error(both.narrow(0, s, 1), alone(sets[static_cast<size_t>(s)], s)) < 1e-5);
  }
};

}  // namespace

TEST_CASE("Samples of one call have LoRAs of their own", "[lora][samples]") {
  BySample scene;
  scene.check({{{"a", scene.first, 0.5}}, {{"b", scene.second, -1.5}}});
  scene.check({{{"a", scene.first, 0.5}}, {{"b", scene.first, 2}}});
  scene.check({{{"a", scene.first, 0.5}, {"b", scene.second, 2}}, {{"b", scene.second}}});
  scene.check({{}, {{"b", scene.second, 0.5}, {"off", scene.first, 0}}});
  const at::Tensor both = scene.together({{}, {{"b", scene.second}}});
  CHECK(at::equal(both[0], scene.plain[0]));  // beside one that has a LoRA
  scene.registry.use({});
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("Sets that are all the same are in use for all samples", "[lora][samples]") {
  BySample scene;
  const std::vector<LoraRef> set = {{"a", scene.first, 0.5}, {"b", scene.second}};
  scene.registry.use(set);
  const at::Tensor wanted = scene.velocity();
  scene.together({{}, {{"b", scene.second}}});
  const std::vector<LoraRef> renamed = {{"x", scene.first, 0.5}, {"y", scene.second}};
  CHECK_FALSE(scene.registry.use_each(BySample::Sets{set, renamed}));
  CHECK(at::equal(scene.velocity(), wanted));
  CHECK_FALSE(scene.registry.use_each(BySample::Sets{{}, {}}));
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("LoRAs of samples stay where they are when the same are used again", "[lora][samples]") {
  BySample scene;
  nn::Linear* embed = nullptr;
  scene.model->model().component("dit").visit([&](nn::Module& module) {
    if (module.path() == "embed") embed = dynamic_cast<nn::Linear*>(&module);
  });
  REQUIRE(embed != nullptr);
  const std::vector<LoraRef> a = {{"a", scene.first, 0.5}}, b = {{"b", scene.second}};
  scene.together({a, b});
  const uint64_t version = scene.registry.version();
  std::vector<void*> placed;
  for (const ops::Adapter& adapter : embed->adapters) placed.push_back(adapter.a.data_ptr());
  REQUIRE(placed.size() == 2);
  scene.together({b, a});  // other samples have them
  for (size_t i = 0; i < 2; ++i) CHECK(embed->adapters[i].a.data_ptr() == placed[i]);
  scene.together({b, {}});  // one less
  CHECK(embed->adapters.size() == 1);
  // Nothing of it is in use for all.
  CHECK(scene.registry.version() == version);
  scene.registry.use(a);
  CHECK(scene.registry.version() != version);
  scene.together({a, b});
  scene.registry.load({"b", scene.second});
  CHECK(embed->adapters.size() == 1);
  CHECK(test::error(scene.velocity(), scene.plain) > 0.01);
  scene.registry.unload("b");
  CHECK(at::equal(scene.velocity(), scene.plain));
}

TEST_CASE("What is added to weights is the same for all samples of a call", "[lora][samples]") {
  BySample scene;
  const std::string whole = scene.folder / "whole.safetensors";
  files::write_safetensors(whole, {{"transformer.embed.diff", at::randn({32, 48}) * 0.1},
                                   {"transformer.blocks.1.down.diff", at::randn({32, 32}) * 0.1}});
  const LoraRef w = {"w", whole, 0.5}, a = {"a", scene.first}, b = {"b", scene.second};
  using Sets = BySample::Sets;
  CHECK(scene.registry.can_share(Sets{{a}, {b}, {}}));
  CHECK(scene.registry.can_share(Sets{{a, w}, {w}, {w, b}}));
  CHECK_FALSE(scene.registry.can_share(Sets{{a, w}, {a}}));
  CHECK_FALSE(scene.registry.can_share(Sets{{w}, {{"w", whole, 0.25}}}));

  scene.registry.use(std::vector<LoraRef>{a});
  const at::Tensor before = scene.velocity();
  test::expect_error(ErrorCode::kInvalidArgument, {"add to weights"}, [&] {
    scene.registry.use_each(Sets{{a, w}, {b}});
  });
  CHECK(at::equal(scene.velocity(), before));

  const at::Tensor both = scene.together({{a, w}, {w}});
  CHECK(test::error(both.narrow(0, 0, 1), scene.alone({a, w}, 0)) < 1e-5);
  CHECK(test::error(both.narrow(0, 1, 1), scene.alone({w}, 1)) < 1e-5);
  Registry merging(*scene.model, {.mode = Mode::kMerge});
  CHECK_FALSE(merging.can_share(Sets{{a}, {b}}));
}

TEST_CASE("A layer that does not say whose its rows are leaves samples to calls of their own",
          "[lora][samples]") {
  BySample scene;
  const auto strengths = scene.registry.use_each(BySample::Sets{{{"style", scene.style_path}}, {}});
  REQUIRE(strengths);
  const ops::SampleScope scope(*strengths);
  CHECK(test::error_of([&] { scene.velocity(); }).code() == ErrorCode::kInternal);
  CHECK(scope.is_unresolved());
}

}  // namespace atelier::lora
