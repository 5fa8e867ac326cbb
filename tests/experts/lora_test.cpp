// LoRAs in a model of two denoisers whose layers have the same names.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/conditioning.h"

#include "formats/lora_names.h"
#include "host/files/safetensors_writer.h"
#include "host/generate/lora_set.h"
#include "host/lora/convert.h"
#include "host/lora/merge.h"
#include "host/lora/registry.h"
#include "host/model/model_loader.h"
#include "host/plugins/plugin_loader.h"
#include "random_model.h"
#include "tests/support/files.h"

namespace atelier::lora {
namespace {

using test::expect_error;
using test::Folder;

constexpr int64_t kWidth = 32, kRank = 2;
constexpr const char* kLayer = "transformer.blocks.1.out";

const ModelFamily& family() {
  static const ModelFamily& opened = *plugins::open_plugin(EXPERTS_PLUGIN, "").family;
  return opened;
}

// The two experts, and LoRAs of one of their layers.
struct LoraScene {
  Folder folder;
  std::unique_ptr<model::LoadedModel> model;

  LoraScene() {
    test::write_model(family(), folder.path());
    model = open({"dit", "dit_low"});
  }
  std::unique_ptr<model::LoadedModel> open(const std::vector<std::string>& components) const {
    nlohmann::json paths = nlohmann::json::array();
    for (const std::string& name : components) paths.push_back(folder / name);
    return model::LoadedModel::open(family(), {.model_paths = paths.dump(),
                                               .dtype = "float32",
                                               .device = "cpu",
                                               .components = components});
  }

  // A file of random factors that says `component` of itself, if anything.
  std::string write_lora(const std::string& name, const std::string& component = "",
                         const std::string& layer = kLayer,
                         std::map<std::string, std::string> metadata = {}) const {
    const std::string path = folder / (name + ".safetensors");
    if (!component.empty()) metadata[formats::kLoraComponentKey] = component;
    files::write_safetensors(path,
                             {{layer + ".lora_A.weight", at::randn({kRank, kWidth})},
                              {layer + ".lora_B.weight", at::randn({kWidth, kRank})}},
                             metadata);
    return path;
  }

  // What each expert says on the same latents.
  std::map<std::string, at::Tensor> velocities() const {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> all;
    at::manual_seed(3);
    const at::Tensor x = at::randn({1, 16, 1, 4, 4});
    const Conditioning cond = {{"prompt_embeds", at::randn({5, kWidth})}};
    const Conditioning* conds[] = {&cond};
    for (const auto& [denoiser, sigma] : {std::pair("dit", 0.75f), std::pair("dit_low", 0.25f)}) {
      model->load_component(denoiser);
      all[denoiser] = model->model().denoise(
          {.x_BCTHW = x, .sigma_B = at::tensor({sigma}), .cond = conds, .denoiser = denoiser},
          model->runner());
    }
    return all;
  }
};

void check_changed(const std::map<std::string, at::Tensor>& before,
                   const std::map<std::string, at::Tensor>& after,
                   const std::set<std::string>& changed) {
  for (const auto& [denoiser, value] : before) {
    INFO(denoiser);
    CHECK(at::equal(value, after.at(denoiser)) != changed.contains(denoiser));
  }
}

}  // namespace

TEST_CASE("A LoRA reaches the denoiser that its use names, and no other", "[lora]") {
  const LoraScene scene;
  const std::string path = scene.write_lora("plain");
  const auto base = scene.velocities();
  for (const Mode mode : {Mode::kHot, Mode::kMerge}) {
    Registry registry(*scene.model, {.mode = mode});
    registry.load({.name = "low", .path = path, .component = "dit_low"});
    check_changed(base, scene.velocities(), {"dit_low"});
    registry.load({.name = "high", .path = path, .strength = 0.5, .component = "dit"});
    check_changed(base, scene.velocities(), {"dit", "dit_low"});
    registry.unload("low");
    check_changed(base, scene.velocities(), {"dit"});
    registry.unload("high");
    check_changed(base, scene.velocities(), {});
    const LoraRef both = {.name = "both", .path = path, .component = "all"};
    registry.use({&both, 1});
    check_changed(base, scene.velocities(), {"dit", "dit_low"});
  }
  check_changed(base, scene.velocities(), {});
}

TEST_CASE("A LoRA's own word for its component counts where the user has none", "[lora]") {
  const LoraScene scene;
  const std::string path = scene.write_lora("low", "dit_low");
  const auto base = scene.velocities();
  Registry registry(*scene.model);
  registry.load({.name = "low", .path = path});
  check_changed(base, scene.velocities(), {"dit_low"});
  const LoraRef other = {.name = "low", .path = path, .component = "dit"};
  CHECK(!registry.fingerprint({&other, 1}, "dit").empty());
  CHECK(registry.fingerprint({&other, 1}, "dit_low").empty());
  registry.use({&other, 1});
  check_changed(base, scene.velocities(), {"dit"});
  // Names of a component need no word: they are that component's.
  const LoraRef named = {.name = "named",
                         .path = scene.write_lora("named", "", "dit_low.blocks.1.out")};
  registry.use({&named, 1});
  check_changed(base, scene.velocities(), {"dit_low"});
}

TEST_CASE("A LoRA of which nothing else says it is for the denoiser that its name says", "[lora]") {
  const LoraScene scene;
  const auto base = scene.velocities();
  const std::string low = scene.write_lora("Style_LOW_noise_r4"),
                    high = scene.write_lora("high_noise_model"),
                    said = scene.write_lora("low_noise_said", "dit");
  Registry registry(*scene.model);
  const auto changed_by = [&](const LoraRef& use, const std::set<std::string>& changed) {
    INFO(use.path);
    registry.use({&use, 1});
    check_changed(base, scene.velocities(), changed);
  };
  changed_by({.name = "low", .path = low}, {"dit_low"});
  changed_by({.name = "high", .path = high}, {"dit"});
  changed_by({.name = "said", .path = said}, {"dit"});
  changed_by({.name = "asked", .path = low, .component = "dit"}, {"dit"});
}

TEST_CASE("A LoRA that says another denoiser than it was trained on is refused", "[lora]") {
  const LoraScene scene;
  const auto write = [&](const char* name, const char* said, const char* base) {
    return scene.write_lora(name, said, kLayer, {{"base", base}});
  };
  Registry registry(*scene.model);
  const std::string low = write("low", "dit", "transformer_2/model.safetensors");
  expect_error(ErrorCode::kInvalidArgument,
               {"low.safetensors: says that it is for dit, and was trained on",
                "transformer_2/model.safetensors", "which is dit_low", "FILE@COMPONENT"},
               [&] { registry.check({.name = "low", .path = low}); });
  CHECK_NOTHROW(registry.check({.name = "low", .path = low, .component = "dit_low"}));
  for (const auto& [said, base] :
       {std::pair("dit", "model/dit"), std::pair("dit", "tuned.safetensors"),
        std::pair("dit_low", "x_low_noise_x.safetensors")})
    CHECK_NOTHROW(registry.check({.name = "well", .path = write("well", said, base)}));
}

TEST_CASE("A LoRA that could be meant for either denoiser is refused", "[lora]") {
  const LoraScene scene;
  const std::string path = scene.write_lora("plain");
  Registry registry(*scene.model);
  expect_error(ErrorCode::kInvalidArgument,
               {"plain.safetensors: does not say which denoiser it is for",
                "is a layer of \"dit\", \"dit_low\"", "plain.safetensors@COMPONENT",
                "is one of \"dit\", \"dit_low\", \"all\""},
               [&] { registry.check({.name = "plain", .path = path}); });
  expect_error(ErrorCode::kNotFound, {"component \"dit_lo\"", "did you mean dit_low?"},
               [&] { registry.check({.name = "plain", .path = path, .component = "dit_lo"}); });
  // With one denoiser there is nothing to choose, unless the file is for another one.
  const auto high = scene.open({"dit"});
  const Targets targets(*high);
  CHECK(targets.match(LoraFile::open(path)).pairs.size() == 1);
  const std::string low = scene.write_lora("low", "dit_low");
  expect_error(ErrorCode::kNotFound, {"is for the component dit_low", "open without it"},
               [&] { targets.match(LoraFile::open(low)); });
  CHECK(targets.match(LoraFile::open(low), "dit").pairs.size() == 1);
}

TEST_CASE("A client is told how to say which denoiser a LoRA is for", "[lora]") {
  const LoraScene scene;
  progress::Progress progress{progress::Options{.quiet = true}};
  generate::LoraSet loras(*scene.model, Mode::kHot, progress);
  order::Settings settings;
  settings.loras = {{.name = "plain", .path = scene.write_lora("plain")}};
  const auto check = [&](const order::Origin& place) {
    report::Problems problems;
    loras.check(settings, place, problems);
    problems.throw_if_any();
  };
  expect_error(ErrorCode::kInvalidArgument,
               {"loras: ", "plain.safetensors: does not say which denoiser it is for",
                R"(; give it a name by POST /v1/loras with "component", which is one of "dit", )"
                R"("dit_low", "all")"},
               [&] { check({.is_request = true}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"jobs.jsonl:3: loras: ", R"(; say it in the line, {"name": "plain", "component": )",
                R"(which is one of "dit", "dit_low", "all")"},
               [&] { check({.file = "jobs.jsonl", .line = 3}); });
  expect_error(ErrorCode::kInvalidArgument, {"--lora: ", "plain.safetensors@COMPONENT"},
               [&] { check({}); });
  settings.loras.front().component = "dit_low";
  CHECK_NOTHROW(check({.is_request = true}));
}

TEST_CASE("Converted and merged LoRAs keep their component", "[lora]") {
  const LoraScene scene;
  const std::string low = scene.write_lora("low", "dit_low"),
                    out = scene.folder / "out.safetensors";
  const LoraFile file = LoraFile::open(low);
  const LayerNames names(scene.model.get(), file.component());
  CHECK(names.find(kLayer).component == "dit_low");
  convert(file, out, Format::kComfy, std::nullopt, names);
  CHECK(LoraFile::open(out).component() == "dit_low");
  LayerNames plain(nullptr);
  const auto merge = [&](const std::string& path, const std::vector<MergeSource>& sources) {
    merge_loras(sources, path, Format::kDiffusers, std::nullopt, at::kFloat, plain);
    return LoraFile::open(path).component();
  };
  CHECK(merge(scene.folder / "twice.safetensors", {{file, 1.0}, {file, 0.5}}) == "dit_low");
  const LoraFile unsaid = LoraFile::open(scene.write_lora("plain"));
  CHECK(merge(scene.folder / "open.safetensors", {{file, 1.0}, {unsaid, 0.5}}).empty());
  expect_error(ErrorCode::kInvalidArgument, {"is for the component dit,", "for dit_low"}, [&] {
    merge(scene.folder / "both.safetensors", {{file, 1.0}, {unsaid, 0.5, "dit"}});
  });
}

}  // namespace atelier::lora
