#include "host/generate/metadata.h"

#include "support/catch.h"
#include "tests/host/generate/fake_family.h"

namespace atelier::generate {
namespace {

using namespace order;

TEST_CASE("Metadata tells every setting, in two forms", "[metadata]") {
  ModelRecord model = {.version = "1.2",
                       .family = "fake",
                       .plugin_version = "3",
                       .variant = "plain",
                       .dtype = "Float",
                       .device = "cpu"};
  model.inputs = FakeFamily().inputs();
  model.files["dit"] = {short_path("/home/someone/model/transformer/a.safetensors")};
  Settings settings;
  settings.prompt = "a \"cat\"\n一只猫";
  settings.negative_prompt = "blurry";
  settings.num_inference_steps = 4;
  settings.family_inputs["begin"] = "/home/someone/in.png";
  settings.family_inputs["edit_strength"] = 0.25;
  settings.inpaint_mask = "/home/someone/mask.png";
  settings.loras = {{"style", "/home/someone/loras/style.safetensors", 0.7}, {"oil", "oil", -1}};
  Request request;
  request.cfg_scale = 3.5;
  request.cfg_trunc = 0.25;
  request.cfg_renorm = CfgRenorm::kClamp;
  request.cfg_renorm_ratio = 0.9;
  request.schedule = "fast";
  request.denoising_strength = 0.5;
  request.sigmas = {0.5f, 0.25f, 0.0f};
  request.target = {1, 64, 96};
  request.seeds = {7, 8};
  request.tiling = Tiling{};
  request.solver = sampling::find_solver("dpm++");
  const media::Text text = metadata_of(model, settings, request, 1);
  REQUIRE(text.size() == 2);
  REQUIRE(text[0].first == "parameters");
  REQUIRE(text[0].second ==
          "a \"cat\"\n一只猫\nNegative prompt: blurry\nSteps: 2, Sampler: DPM++ 2M, Schedule type: "
          "fast, "
          "CFG scale: 3.5, Seed: 8, Size: 96x64, Model: fake plain, Denoising strength: 0.5, "
          "Loras: \"style: 0.7, oil: -1\", Version: atelier 1.2");
  REQUIRE(text[1].first == "atelier");
  const auto record = nlohmann::json::parse(text[1].second);
  REQUIRE(
      record ==
      nlohmann::json({{"version", "1.2"},
                      {"family", "fake"},
                      {"plugin_version", "3"},
                      {"variant", "plain"},
                      {"model_files", {{"dit", {"transformer/a.safetensors"}}}},
                      {"dtype", "Float"},
                      {"device", "cpu"},
                      {"prompt", *settings.prompt},
                      {"negative_prompt", "blurry"},
                      {"seed", 8},
                      {"num_inference_steps", 4},
                      {"cfg_scale", 3.5},
                      {"cfg_trunc", 0.25},
                      {"cfg_renorm", "clamp"},
                      {"cfg_renorm_ratio", 0.9},
                      {"schedule", "fast"},
                      {"solver", "dpm++"},
                      {"sigmas", {0.5, 0.25, 0.0}},
                      {"height", 64},
                      {"width", 96},
                      {"begin", "someone/in.png"},
                      {"denoising_strength", 0.5},
                      {"inpaint_mask", "someone/mask.png"},
                      {"tiled", true},
                      {"tile_size", 256},
                      {"tile_stride", 192},
                      {"loras",
                       {{{"name", "style"}, {"file", "loras/style.safetensors"}, {"strength", 0.7}},
                        {{"name", "oil"}, {"file", "oil"}, {"strength", -1.0}}}},
                      {"edit_strength", 0.25}}));

  settings.fps = 16;
  request.target.frames = 5;
  const auto of_clip = nlohmann::json::parse(metadata_of(model, settings, request, 1)[1].second);
  REQUIRE(of_clip["num_frames"] == 5);
  REQUIRE(of_clip["fps"] == 16);
}

}  // namespace
}  // namespace atelier::generate
