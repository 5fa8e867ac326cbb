// LoRA layers of a fused product under the names and cuts of every spelling.
#include <map>

#include "host/files/safetensors_writer.h"
#include "host/lora/respell.h"
#include "host/lora/targets.h"
#include "host/weights/component_writer.h"
#include "host/weights/published_tensors.h"
#include "support/files.h"
#include "support/opened_family.h"

using namespace atelier;
using lora::Format;
using lora::LayerWeights;
using model::LoadedModel;

namespace {

// Largest difference over the largest value of `want`.
double error(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

constexpr int64_t kWidth = 96, kKeys = 48, kRows = kWidth + 2 * kKeys;  // of the tiny denoiser

// The tiny denoiser as a file of each spelling.
struct Scene {
  test::Folder folder;
  std::map<std::string, std::unique_ptr<LoadedModel>> models;

  Scene() {
    for (Detection part : test::opened_family().tiny_parts()) {
      if (part.component != "dit") continue;
      const auto model = test::opened_family().make_model({&part, 1}, {});
      nn::Module& dit = model->component("dit");
      dit.visit_weights(
          [](const std::string&, Weight& weight) { weight.set(at::randn(weight.sizes())); });
      for (const std::string& spelling : test::opened_family().spellings(part)) {
        part.spelling = spelling;
        const std::string path = folder / (spelling + ".safetensors");
        weights::save_component(dit, test::opened_family().weight_map(part), "", path,
                                {{files::kConfigKey, R"({"hidden_size": 96})"}});
        models[spelling] = LoadedModel::open(
            test::opened_family(), {.model_paths = path, .device = "cpu", .components = {"dit"}});
      }
    }
    REQUIRE(models.size() == 2);
  }
};

LayerWeights layer(const std::string& path, int64_t out, int64_t rank, double alpha) {
  return {.component = "dit",
          .path = path,
          .down = at::randn({rank, kWidth}),
          .up = at::randn({out, rank}),
          .alpha = alpha};
}

at::Tensor addition(const LayerWeights& of) {
  return at::mm(of.up.to(at::kDouble), of.down.to(at::kDouble)) *
         (of.alpha / static_cast<double>(of.down.size(0)));
}

std::map<std::string, LayerWeights> by_path(std::vector<LayerWeights> layers) {
  std::map<std::string, LayerWeights> result;
  for (LayerWeights& one : layers) {
    const std::string path = one.path;
    REQUIRE(result.emplace(path, std::move(one)).second);
  }
  return result;
}

const std::string kBlock = "layers.1.";

}  // namespace

TEST_CASE("Layers are found by the names of every spelling, whichever the file has", "[lora]") {
  Scene scene;
  for (const auto& [spelling, model] : scene.models) {
    INFO("the checkpoint is spelled " << spelling);
    const lora::Targets targets(*model);
    const auto rows = [&](const std::string& name) -> std::pair<int64_t, int64_t> {
      const lora::Target* target = targets.find(name);
      REQUIRE(target != nullptr);
      REQUIRE(target->slices.size() == 1);
      CHECK(target->slices[0].path == kBlock + "attention.qkv");
      return {target->slices[0].layer_start, target->out};
    };
    for (const char* name :
         {"lora_unet_layers_1_attention_qkv", "diffusion_model.layers.1.attention.qkv",
          "transformer.layers.1.attention.qkv"})
      CHECK(rows(name) == std::pair<int64_t, int64_t>(0, kRows));
    CHECK(rows("transformer.layers.1.attn.to_q") == std::pair<int64_t, int64_t>(0, kWidth));
    CHECK(rows("lora_unet_layers_1_attn_to_k") == std::pair<int64_t, int64_t>(kWidth, kKeys));
    CHECK(rows("layers.1.attn.to_v") == std::pair<int64_t, int64_t>(kWidth + kKeys, kKeys));
    CHECK(targets.find("lora_unet_layers_1_adaLN_modulation_1") ==
          targets.find("diffusion_model.layers.1.adaLN_modulation.1"));
    CHECK(targets.find("transformer.layers.1.norm1.linear") != nullptr);
    CHECK(targets.find("transformer.layers.1.attn.to_z") == nullptr);
  }
}

TEST_CASE("A fused layer is cut for diffusers, and is itself again when it comes back", "[lora]") {
  Scene scene;
  at::manual_seed(2);
  const LayerWeights fused = layer(kBlock + "attention.qkv", kRows, 4, 3);
  const LayerWeights plain = layer(kBlock + "feed_forward.w1", 256, 2, 2);
  for (const auto& [spelling, model] : scene.models) {
    const auto cut = by_path(lora::respell({fused, plain}, *model, Format::kDiffusers));
    REQUIRE(cut.size() == 4);
    int64_t first = 0;
    for (const auto& [part, rows] :
         {std::pair("to_q", kWidth), std::pair("to_k", kKeys), std::pair("to_v", kKeys)}) {
      const LayerWeights& one = cut.at(kBlock + "attn." + part);
      CHECK(at::equal(one.down, fused.down));
      CHECK(at::equal(one.up, fused.up.narrow(0, first, rows)));
      CHECK(one.alpha == fused.alpha);
      first += rows;
    }
    CHECK(at::equal(cut.at(kBlock + "feed_forward.linear_1").up, plain.up));

    std::vector<LayerWeights> layers;
    for (const auto& [path, one] : cut) layers.push_back(one);
    for (const Format format : {Format::kKohya, Format::kComfy}) {
      const auto back = by_path(lora::respell(layers, *model, format));
      REQUIRE(back.size() == 2);
      const LayerWeights& one = back.at(fused.path);
      CHECK(at::equal(one.down, fused.down));
      CHECK(at::equal(one.up, fused.up));
      CHECK(one.alpha == fused.alpha);
      CHECK(back.contains(plain.path));
    }
  }
}

TEST_CASE("Separate layers stand beside each other in a fused one, and come back as they were",
          "[lora]") {
  Scene scene;
  at::manual_seed(3);
  LoadedModel& model = *scene.models.at("original");
  const std::vector<LayerWeights> separate = {layer(kBlock + "attn.to_q", kWidth, 4, 8),
                                              layer(kBlock + "attn.to_k", kKeys, 4, 8),
                                              layer(kBlock + "attn.to_v", kKeys, 2, 4)};
  const auto fused = lora::respell(separate, model, Format::kKohya);
  REQUIRE(fused.size() == 1);
  CHECK(fused[0].path == kBlock + "attention.qkv");
  CHECK(fused[0].down.size(0) == 10);
  CHECK(error(addition(fused[0]), at::cat({addition(separate[0]), addition(separate[1]),
                                           addition(separate[2])})) < 1e-14);
  const auto back = by_path(lora::respell(fused, model, Format::kDiffusers));
  for (const LayerWeights& one : separate) {
    CHECK(at::equal(back.at(one.path).down, one.down));
    CHECK(at::equal(back.at(one.path).up, one.up));
    CHECK(back.at(one.path).alpha == one.alpha);
  }

  // Only k is trained, with another scale than v's.
  const LayerWeights k = layer(kBlock + "attn.to_k", kKeys, 4, 1);
  const LayerWeights v = layer(kBlock + "attn.to_v", kKeys, 4, 8);
  const auto part = lora::respell({k, v}, model, Format::kComfy);
  REQUIRE(part.size() == 1);
  const at::Tensor whole = addition(part[0]);
  CHECK(whole.narrow(0, 0, kWidth).eq(0).all().item<bool>());
  CHECK(error(whole.narrow(0, kWidth, 2 * kKeys), at::cat({addition(k), addition(v)})) < 1e-6);
}

TEST_CASE("DoRA is cut with its rows, and joined where all rows have it", "[lora]") {
  Scene scene;
  at::manual_seed(4);
  LoadedModel& model = *scene.models.at("original");
  LayerWeights fused = layer(kBlock + "attention.qkv", kRows, 4, 3);
  fused.others["dora_scale"] = at::rand({kRows, 1}) + 1;
  auto cut = lora::respell({fused}, model, Format::kDiffusers);
  REQUIRE(cut.size() == 3);
  const at::Tensor keys = by_path(cut).at(kBlock + "attn.to_k").others.at("dora_scale");
  CHECK(at::equal(keys, fused.others.at("dora_scale").narrow(0, kWidth, kKeys)));
  const auto back = lora::respell(cut, model, Format::kComfy);
  REQUIRE(back.size() == 1);
  CHECK(at::equal(back[0].others.at("dora_scale"), fused.others.at("dora_scale")));
  CHECK(at::equal(back[0].up, fused.up));

  cut.back().others.clear();
  test::expect_error(ErrorCode::kUnsupported, {"with others that are no DoRA"},
                     [&] { lora::respell(cut, model, Format::kComfy); });
}

TEST_CASE("Forms without two factors keep their layer or are refused", "[lora]") {
  Scene scene;
  LoadedModel& model = *scene.models.at("diffusers");
  LayerWeights whole = {"dit", kBlock + "attention.out", {}, {}};
  whole.others["diff"] = at::randn({kWidth, kWidth});
  const auto kept = lora::respell({whole}, model, Format::kDiffusers);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].path == kBlock + "attn.to_out.0");
  CHECK(at::equal(kept[0].others.at("diff"), whole.others.at("diff")));
  whole.path = kBlock + "attention.qkv";
  whole.others["diff"] = at::randn({kRows, kWidth});
  test::expect_error(ErrorCode::kUnsupported, {"attention.qkv", "cannot be cut"},
                     [&] { lora::respell({whole}, model, Format::kDiffusers); });
}

TEST_CASE("One file may hold several components, and other files take their places",
          "[checkpoint]") {
  test::Folder folder;
  // All three tiny components behind prefixes of their own.
  std::vector<std::pair<Detection, std::unique_ptr<Model>>> parts;
  const std::map<std::string, std::string> prefixes = {
      {"dit", "model.diffusion_model."},
      {"vae", "vae."},
      {"text_encoder", "text_encoders.gemma2_2b."}};
  // A file of several components has no config, and shapes of tiny ones do not tell the rest.
  const std::map<std::string, std::string> configs = {{"dit", R"({"hidden_size": 96})"},
                                                      {"vae", R"({"latent_channels": 16})"},
                                                      {"text_encoder", R"({"hidden_size": 48})"}};
  std::vector<model::LoadedPart> lenders;
  std::vector<formats::TensorEntry> entries;
  std::map<std::string, at::Tensor> values;
  for (Detection part : test::opened_family().tiny_parts()) {
    auto model = test::opened_family().make_model({&part, 1}, {});
    model->component(part.component).visit_weights([](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()));
    });
    const std::string path = folder / (part.component + ".safetensors");
    weights::save_component(model->component(part.component),
                            test::opened_family().weight_map(part), "", path,
                            {{files::kConfigKey, configs.at(part.component)}});
    const auto lender =
        model::detect_parts(test::opened_family(), files::Checkpoint::open(path, {path}));
    lenders.push_back(lender.at(0));
    if (part.component == "text_encoder") part.spelling = "bundle";
    if (part.component == "vae") part.spelling = "original";
    for (const auto& tensor : weights::published_tensors(model->component(part.component),
                                                         test::opened_family().weight_map(part),
                                                         prefixes.at(part.component)))
      values[tensor.name] = tensor.value();
    parts.emplace_back(part, std::move(model));
  }
  const auto write = [&](const std::string& name) {
    entries.clear();
    for (const auto& [tensor, value] : values)
      entries.push_back(
          {tensor, files::file_dtype(value.scalar_type()), value.sizes().vec(), 0, 0});
    files::write_safetensors(folder / name, entries, {},
                             [&](const std::string& tensor) { return values.at(tensor); });
    return folder / name;
  };
  const std::string bundle = write("bundle.safetensors");
  const std::vector<std::string> components = {"dit", "vae", "text_encoder"};
  test::expect_error(ErrorCode::kInvalidArgument, {"bundle.safetensors", "has no config"}, [&] {
    LoadedModel::open(test::opened_family(),
                      {.model_paths = bundle, .device = "cpu", .components = components});
  });
  const auto model = LoadedModel::open(
      test::opened_family(),
      {.model_paths = bundle, .lenders = lenders, .device = "cpu", .components = components});
  CHECK(model->parts().size() == 3);
  for (const auto& [part, made] : parts) {
    model->load_component(part.component);
    int64_t equal = 0, count = 0;
    nn::Module& written = made->component(part.component);
    model->model()
        .component(part.component)
        .visit_weights([&](const std::string& path, Weight& weight) {
          ++count;
          equal += at::equal(written.find_weight(path)->draw(), weight.draw());
        });
    CHECK(count > 0);
    INFO(part.component);
    CHECK(equal == count);
  }

  // A file of one component takes the place of the one in the bundle.
  const auto other = LoadedModel::open(
      test::opened_family(),
      {.model_paths = "[\"" + bundle + "\", \"" + (folder / "vae.safetensors") + "\"]",
       .lenders = lenders,
       .device = "cpu",
       .components = components});
  CHECK(other->find_part("vae")->checkpoint.name() == folder / "vae.safetensors");
  CHECK(other->find_part("dit")->checkpoint.name() == bundle);

  // A tensor that is no component's is named.
  values["stray.weight"] = at::zeros({2});
  const std::string bad = write("bad.safetensors");
  test::expect_error(ErrorCode::kInvalidArgument, {"stray.weight"}, [&] {
    LoadedModel::open(
        test::opened_family(),
        {.model_paths = bad, .lenders = lenders, .device = "cpu", .components = components});
  });
}
