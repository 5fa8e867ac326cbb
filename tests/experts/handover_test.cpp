// One expert's blocks come while those of the other run for the last time.
#include "host/model/handover.h"

#include <ATen/ATen.h>

#include "host/generate/engine.h"
#include "host/model/model_loader.h"
#include "host/plugins/plugin_loader.h"
#include "random_model.h"
#include "tests/support/files.h"

namespace atelier::model {
namespace {

constexpr int64_t kLayers = 8, kResident = 6, kWidth = 64;
constexpr const char* kSimulated = "simulated:1GiB:1GB/s";

const ModelFamily& family() {
  static const ModelFamily& opened = *plugins::open_plugin(EXPERTS_PLUGIN, "").family;
  return opened;
}

// Experts of some blocks, of which a few come and go.
struct HandoverScene {
  test::Folder folder;
  bool hands_over = true;
  memory::Place place = memory::Place::kHost;
  int64_t copies_before =
      0;             // blocks of the second expert that were on their way to the first step
  int64_t peak = 0;  // bytes of the device
  int64_t held = 0;  // of these, what was told of the second expert's

  HandoverScene() {
    std::vector<Detection> parts = family().tiny_parts();
    for (Detection& part : parts) {
      if (part.component == "vae") continue;
      part.config["width"] = kWidth;
      if (part.component.starts_with("dit")) part.config["layers"] = kLayers;
    }
    std::erase_if(parts, [](const Detection& part) { return part.component == "image_encoder"; });
    test::write_model(family(), folder.path(), parts);
  }

  std::unique_ptr<LoadedModel> open(const std::string& device) const {
    LoadOptions request = {.dtype = "float32", .device = device, .prepares_levels = true};
    nlohmann::json paths = nlohmann::json::array();
    for (const char* name : {"text_encoder", "vae", "dit", "dit_low"})
      paths.push_back(folder / name);
    request.model_paths = paths.dump();
    if (device != "cpu") {
      for (const char* name : {"dit", "dit_low"}) {
        request.placement.offload[name] = place;
        request.placement.resident_blocks[name] = kResident;
      }
      request.placement.prefetch = 1;
    }
    return LoadedModel::open(family(), request);
  }

  static generate::Request request(bool batches_cfg) {
    generate::Request request;
    request.inputs["prompt"] = std::string("a cat");
    request.negative_prompt = "a dog";
    request.cfg_scale = 3.0;
    request.batches_cfg = batches_cfg;
    request.sigmas = {1.0F, 0.75F, 0.25F, 0.0F};
    request.solver = sampling::find_solver("unipc");
    request.target = {1, 16, 24};
    request.seeds = {3, 4};
    return request;
  }

  std::vector<at::Tensor> draw(LoadedModel& model, bool batches_cfg = true,
                               const std::function<bool()>& is_cancelled = {}) {
    generate::EngineModel of = generate::engine_model_of(model);
    if (!hands_over) of.hand_over = {};
    of.load = [&](std::string_view component) {
      if (component == "dit_low" && !model.is_loaded(component)) {
        const memory::Residency* residency = model.residency(component);
        copies_before = residency == nullptr ? 0 : residency->stats().copies;
      }
      model.load_component(component);
      if (model.residency("dit_low") != nullptr)
        held = model.residency("dit_low")->stats().device_bytes;
    };
    progress::Progress progress(progress::Options{.quiet = true});
    generate::Engine engine(std::move(of), progress, is_cancelled);
    std::vector<at::Tensor> images;
    engine.run(request(batches_cfg),
               [&](size_t, int64_t, const at::Tensor& pixels) { images.push_back(pixels); });
    if (model.transfer() != nullptr) peak = model.transfer()->stats().peak_bytes;
    return images;
  }
};

void check_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(at::equal(a[i], b[i]));
}

}  // namespace

TEST_CASE("The second expert's first blocks come during the first one's last step", "[streaming]") {
  for (const memory::Place place : {memory::Place::kHost, memory::Place::kDisk}) {
    for (const bool batches_cfg : {true, false}) {
      HandoverScene plain, ahead;
      plain.place = ahead.place = place;
      plain.hands_over = false;
      const auto expected = plain.draw(*plain.open("cpu"), batches_cfg);
      check_equal(plain.draw(*plain.open(kSimulated), batches_cfg), expected);
      check_equal(ahead.draw(*ahead.open(kSimulated), batches_cfg), expected);
      CHECK(plain.copies_before == 0);
      CHECK(ahead.copies_before == 2);  // as many as there are slots
      CHECK(ahead.peak <= plain.peak);
      CHECK(ahead.held == plain.held);
    }
  }
}

TEST_CASE("An expert that was cut off while the next one came runs again", "[streaming]") {
  HandoverScene scene;
  const auto model = scene.open(kSimulated);
  const auto expected = scene.draw(*model);
  bool stops = false;
  // The engine asks before each block, too: it ends within the first one's last call.
  const auto cut_off = [&] {
    const memory::Residency* coming = model->residency("dit_low");
    return stops && coming != nullptr && !model->is_loaded("dit_low");
  };
  stops = true;
  test::expect_error(ErrorCode::kCancelled, {"stopped"},
                     [&] { scene.draw(*model, /*batches_cfg=*/true, cut_off); });
  CHECK(!model->is_loaded("dit"));
  CHECK(model->residency("dit_low") == nullptr);
  check_equal(scene.draw(*model), expected);
}

TEST_CASE("Nothing is handed over to what is there, or does not come and go", "[streaming]") {
  HandoverScene scene;
  const auto whole = scene.open("cpu");
  whole->load_component("dit");
  hand_over(*whole, "dit", "dit_low");
  CHECK(!whole->is_loaded("dit_low"));
  const auto streamed = scene.open(kSimulated);
  hand_over(*streamed, "dit", "dit_low");  // the first one is not there
  CHECK(streamed->residency("dit_low") == nullptr);
  for (const char* name : {"dit", "dit_low"}) streamed->load_component(name);
  hand_over(*streamed, "dit", "dit_low");
  CHECK(streamed->is_loaded("dit"));
}

}  // namespace atelier::model
