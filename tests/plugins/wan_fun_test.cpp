// Wan-Fun Control and Camera: how their files are told, and what they are given.
#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/inputs/parse.h"
#include "host/model/config_check.h"
#include "host/model/stages.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/published_tensors.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;

namespace {

const ModelFamily& family() {
  return test::opened_family();
}

Detection detected(const TensorIndex& index) {
  const auto part = model::detect_with_config(family(), index, {});
  REQUIRE(part);
  return *part;
}

// Published files, the channels beside the latents of a clip to follow and of what is known, and
// the inputs beside texts and what is learnt: required ones with a star.
struct Published {
  const char *keys, *variant;
  int64_t control, given, image_width;
  bool has_reference, has_camera;
  const char *inputs, *stages;
};
constexpr Published kPublished[] = {
    {"wan_fun_1_3b_control_original.txt", "wan2.1-fun-control-1.3b", 16, 16, 1280, false, false,
     "input_image control_video", "shown_image control_clip start_image"},
    {"wan_fun_14b_control_original.txt", "wan2.1-fun-control-14b", 16, 16, 1280, false, false,
     "input_image control_video", "shown_image control_clip start_image"},
    {"wan_fun_v11_1_3b_control_original.txt", "wan2.1-fun-control-v1.1-1.3b", 16, 16, 1280, true,
     false, "input_image control_video reference_image",
     "shown_image control_clip reference start_image"},
    {"wan_fun_v11_14b_control_original.txt", "wan2.1-fun-control-v1.1-14b", 16, 16, 1280, true,
     false, "input_image control_video reference_image",
     "shown_image control_clip reference start_image"},
    {"wan22_fun_a14b_control_original.txt", "wan2.2-fun-control-a14b", 16, 20, 0, true, false,
     "input_image end_image control_video reference_image", "given_clip control_clip reference"},
    {"wan_fun_v11_1_3b_camera_original.txt", "wan2.1-fun-camera-1.3b", 0, 16, 1280, false, true,
     "input_image* camera_control_direction* camera_control_speed camera_control_origin",
     "shown_image start_image camera"},
    {"wan_fun_v11_14b_camera_original.txt", "wan2.1-fun-camera-14b", 0, 16, 1280, false, true,
     "input_image* camera_control_direction* camera_control_speed camera_control_origin",
     "shown_image start_image camera"},
    {"wan22_fun_a14b_camera_original.txt", "wan2.2-fun-camera-a14b", 0, 20, 0, false, true,
     "input_image* end_image camera_control_direction* camera_control_speed camera_control_origin",
     "given_clip camera"},
};

// As VideoX-Fun writes it.
TensorIndex::Config config_of(const Published& published, const Detection& part) {
  const int64_t inputs = part.integer("channels") + published.control + published.given;
  return {{"_class_name", "WanTransformer3DModel"},
          {"_diffusers_version", "0.33.0"},
          {"add_control_adapter", published.has_camera},
          {"add_ref_conv", published.has_reference},
          {"dim", part.integer("width")},
          {"downscale_factor_control_adapter", int64_t{8}},
          {"eps", 1e-6},
          {"hidden_size", part.integer("width")},
          {"in_channels", inputs},
          {"in_dim", inputs},
          {"in_dim_control_adapter", int64_t{24}},
          {"in_dim_ref_conv", int64_t{16}},
          {"model_type", "i2v"},
          {"num_heads", part.integer("heads")},
          {"num_layers", part.integer("layers")}};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

TEST_CASE("Published Wan-Fun is known by its names and shapes, and filled whole", "[detect][fun]") {
  for (const Published& published : kPublished) {
    INFO(published.keys);
    const Keys keys = read_keys(published.keys);
    const Detection part = detected(index_of(keys));
    CHECK(part.variant == published.variant);
    const auto control = part.config.find("control_channels");
    CHECK((control == part.config.end() ? 0 : part.integer("control_channels")) ==
          published.control);
    CHECK(part.integer("given_channels") == published.given);
    CHECK(part.integer("image_width") == published.image_width);
    const auto config = config_of(published, part);
    const bool is_same = detected(index_of(keys, "", config)).config == part.config;
    CHECK(is_same);
    const auto model = family().make_model({&part, 1}, {});
    nn::Module& dit = model->component("dit");
    Keys names;
    const TensorIndex spelled = weights::published_index(dit, family().weight_map(part));
    for (const auto& [name, meta] : spelled.tensors()) names[name] = meta.shape;
    CHECK(names == keys);
    const size_t adapters = published.has_camera ? 1 : 0;
    CHECK(model->blocks("dit").size() == static_cast<size_t>(part.integer("layers")) + adapters);
  }
}

TEST_CASE("Each Wan-Fun takes its own inputs", "[fun]") {
  for (const Published& published : kPublished) {
    INFO(published.variant);
    std::vector<std::string> inputs, stages;
    for (const InputSpec& input : family().inputs()) {
      const bool is_own = input.role == InputRole::kCondition && !input.name.ends_with("prompt");
      if (!is_own || !inputs::holds_for(input, published.variant)) continue;
      inputs.emplace_back(input.name);
      if (inputs::is_required(input, published.variant)) inputs.back() += "*";
    }
    for (const EncodeStage& stage : model::encode_stages(family(), published.variant)) {
      if (stage.name != "text" && stage.name != "latents") stages.emplace_back(stage.name);
    }
    std::vector<std::string> wanted;
    std::istringstream words(published.stages);
    for (std::string word; words >> word;) wanted.push_back(word);
    std::ranges::sort(stages);
    std::ranges::sort(wanted);
    CHECK(joined(inputs) == published.inputs);
    CHECK(stages == wanted);
  }
}

TEST_CASE("Files that are near to Wan-Fun and not run are refused by name", "[detect][fun]") {
  const auto refused = [](const char* file, const std::function<void(Keys&)>& change,
                          const char* text) {
    Keys keys = read_keys(file);
    change(keys);
    const Error error = test::error_of([&] { family().detect(index_of(keys), {}); });
    INFO(error.what());
    CHECK(error.code() == ErrorCode::kUnsupported);
    CHECK(test::mentions(error, text));
  };
  const auto with_inputs = [](int64_t channels) {
    return [=](Keys& keys) { keys["patch_embedding.weight"][1] = channels; };
  };
  const char* const text = "a Wan-Fun DiT with ";
  refused("wan_fun_v11_1_3b_control_original.txt", with_inputs(36), text);  // a reference without
  refused("wan_fun_v11_1_3b_camera_original.txt", with_inputs(48), text);   // a camera and a clip
  refused("wan22_fun_a14b_control_original.txt", with_inputs(48), text);
  refused(
      "wan22_fun_a14b_control_original.txt",
      [](Keys& keys) { keys.erase("ref_conv.weight"), keys.erase("ref_conv.bias"); }, text);
}

TEST_CASE("Experts of Wan-Fun are told as others are, and change at 0.9", "[detect][fun]") {
  for (const char* file :
       {"wan22_fun_a14b_control_original.txt", "wan22_fun_a14b_camera_original.txt"}) {
    INFO(file);
    const Detection part = detected(index_of(read_keys(file)));
    std::vector<FoundPart> parts = {{part, "/W/low_noise_model/a.safetensors", {}},
                                    {part, "/W/high_noise_model/a.safetensors", {}}};
    family().assign(parts);
    CHECK(parts[0].part.component == "dit2");
    CHECK(parts[1].part.component == "dit");
    for (const FoundPart& found : parts) CHECK(found.part.variant == part.variant);
    CHECK(family().sigma_range(parts[0].part).high == 0.9);
    CHECK(family().sigma_range(parts[1].part).low == 0.9);
  }
}

TEST_CASE("Wan-Fun is sampled as VideoX-Fun samples it", "[schedules][fun]") {
  for (const Published& published : kPublished) {
    INFO(published.variant);
    const ScheduleDefaults& found =
        sampling::find_schedule(family().schedules(), "", published.variant);
    CHECK(found.num_inference_steps == 50);
    CHECK(found.cfg_scale == 6.0);
    CHECK(found.shift.value == (published.image_width > 0 ? 3.0 : 5.0));
    CHECK(found.solver == "euler");
  }
}
