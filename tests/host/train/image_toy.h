// The toy family with images to learn, its model as files, and datasets of small images.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/data/dataset.h"
#include "host/media/png.h"
#include "host/model/model_loader.h"
#include "host/weights/component_writer.h"
#include "support/files.h"
#include "support/toy_family.h"

namespace atelier::test {

class ImageToy : public ToyFamily {
 public:
  std::span<const InputSpec> inputs() const override {
    static constexpr InputSpec kInputs[] = {
        {"prompt", InputKind::kText, true, "*", InputUse::kBoth, "*", "what to show"},
        {"image", InputKind::kImage, true, "*", InputUse::kTrain, "*", "the image to learn",
         InputRole::kTarget},
        {"style", InputKind::kText, false, "*", InputUse::kTrain, "*", "stands before the prompt"},
        {"count", InputKind::kInteger, false, "*", InputUse::kTrain, "*", "a number"},
        {"reference", InputKind::kImage, false, "*", InputUse::kTrain, "*", "an image to follow"}};
    return kInputs;
  }
  std::span<const EncodeStage> encode_stages() const override {
    static constexpr std::string_view kEncoders[] = {"text_encoder", "tokenizer"};
    static constexpr std::string_view kVae[] = {"vae"}, kImage[] = {"image"};
    static constexpr std::string_view kRead[] = {"prompt", "style", "count", "reference"};
    static constexpr EncodeStage kStages[] = {{"text", kEncoders, kRead},
                                              {"latents", kVae, kImage}};
    return kStages;
  }
};

inline const ImageToy& image_toy() {
  static const ImageToy toy;
  return toy;
}

// Random weights of one component, about as large as `scale`; all of them `value` where one is
// given.
inline void write_toy_component(const std::string& path, const std::string& component,
                                uint64_t seed, std::optional<float> value = {},
                                double scale = 1.0) {
  fs::create_directories(fs::path(path).parent_path());
  for (const Detection& part : image_toy().tiny_parts()) {
    if (part.component != component) continue;
    const auto model = image_toy().make_model({&part, 1}, {});
    at::manual_seed(seed);
    model->component(component).visit_weights([&](const std::string&, Weight& weight) {
      weight.set(value ? at::full(weight.sizes(), *value) : at::randn(weight.sizes()) * scale);
    });
    weights::save_component(model->component(component), image_toy().weight_map(part), "", path,
                            {});
  }
}

inline void write_toy_model(const std::string& folder) {
  write_toy_component(folder + "/transformer/model.safetensors", "dit", 1);
  write_toy_component(folder + "/text_encoder/model.safetensors", "text_encoder", 2);
  write_toy_component(folder + "/vae/model.safetensors", "vae", 3);
  write_bytes(folder + "/tokenizer/tokenizer.json", "{}");
}

inline std::unique_ptr<model::LoadedModel> open_toy_model(const std::string& paths,
                                                          std::vector<std::string> components = {},
                                                          const std::string& dtype = "auto") {
  return model::LoadedModel::open(
      image_toy(),
      {.model_paths = paths, .dtype = dtype, .device = "cpu", .components = std::move(components)});
}

// An image whose bytes depend on `seed`.
inline void write_toy_image(const std::string& path, int width, int height, int seed) {
  media::Image image(width, height);
  for (size_t i = 0; i < image.rgb.size(); ++i)
    image.rgb[i] = static_cast<uint8_t>((i * 31 + static_cast<size_t>(seed) * 97) % 251);
  fs::create_directories(fs::path(path).parent_path());
  test::write_bytes(path, media::encode_png(image));
}

inline std::shared_ptr<const data::Dataset> open_toy_dataset(const data::DatasetOptions& options) {
  report::Problems problems;
  auto dataset = std::make_shared<const data::Dataset>(data::Dataset::open(
      options, image_toy().inputs(),
      model::LoadedModel::open_empty(image_toy())->model().latent_spec(), problems));
  problems.throw_if_any();
  return dataset;
}

}  // namespace atelier::test
