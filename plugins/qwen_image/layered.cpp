#include "layered.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/causal_vae.h"

#include "config.h"
#include "pictures.h"

namespace qwen_image {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::Inputs;
using atelier::MediaTarget;
using std::to_string;

namespace {

const Detection* find_part(std::span<const Detection> parts, std::string_view component) {
  const auto found = std::ranges::find(parts, component, &Detection::component);
  return found == parts.end() ? nullptr : &*found;
}

bool has_transparency(const Detection& vae) {
  return atelier::parts::causal_vae_config(vae).pixel_channels == 4;
}

// Layers beside the picture of them all, as they are asked for or as the variant has them.
int64_t layers_of(const Inputs& inputs, const MediaTarget& asked, std::string_view variant) {
  const int64_t* said = atelier::find_input<int64_t>(inputs, kLayerNumber);
  const int64_t made = asked.frames > 0 ? asked.frames : layered_defaults(variant).target.frames;
  const int64_t layers = said ? *said : made - 1;
  if (layers < 0 || layers > kMostLayers) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kLayerNumber) + ": " + to_string(layers) + " is not from 0 to " +
                    to_string(kMostLayers),
                "0 makes one picture");
  }
  if (asked.frames > 0 && asked.frames != layers + 1) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kLayerNumber) + ": " + to_string(layers) +
                    " layers and the picture of them all are " + to_string(layers + 1) +
                    " pictures, and " + to_string(asked.frames) + " are given",
                "the picture of them all comes first, then each layer");
  }
  return layers;
}

// The size of a picture with about this shape at an area of the variant.
PictureSize made_size(const at::Tensor& picture, std::string_view variant) {
  const MediaTarget usual = layered_defaults(variant).target;
  const PictureSize size = size_of(picture), made = size_of_area(usual.height * usual.width, size);
  if (made.height >= 1 && made.width >= 1) return made;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(kLayerInput) + ": a picture of " + to_string(size.width) + "x" +
                  to_string(size.height) + " pixels is too long to be taken apart",
              "cut a piece out of it");
}

}  // namespace

bool has_layers(std::span<const Detection> parts) {
  if (const Detection* dit = find_part(parts, "dit")) return makes_layers(*dit);
  const Detection* vae = find_part(parts, "vae");
  return vae != nullptr && has_transparency(*vae);
}

void check_layers(std::span<const Detection> parts) {
  const Detection *dit = find_part(parts, "dit"), *vae = find_part(parts, "vae");
  if (dit == nullptr || vae == nullptr || makes_layers(*dit) == has_transparency(*vae)) return;
  const bool needs = makes_layers(*dit);
  throw Error(ErrorCode::kInvalidArgument,
              std::string("the VAE is of pictures with") + (needs ? "out" : "") +
                  " transparency, and the DiT of pictures with" + (needs ? "" : "out") + " it",
              needs ? "pass vae/ of Qwen-Image-Layered" : "pass vae/ of Qwen-Image");
}

atelier::MediaDefaults layered_defaults(std::string_view variant) {
  const bool is_control = variant == kLayeredControlVariant;
  return {.target = is_control ? MediaTarget{1, 1024, 1024} : MediaTarget{5, 640, 640},
          .frames_are_pictures = true};
}

double layered_shift(int64_t tokens, int64_t) {
  constexpr double kBaseTokens = 256;
  return std::sqrt(static_cast<double>(tokens) / kBaseTokens);
}

MediaTarget layered_target(const Inputs& inputs, const MediaTarget& asked,
                           std::string_view variant) {
  const int64_t layers = layers_of(inputs, asked, variant);
  const at::Tensor* picture = atelier::find_input<at::Tensor>(inputs, kLayerInput);
  if (picture == nullptr) return {layers + 1, asked.height, asked.width};
  const std::string* prompt = atelier::find_input<std::string>(inputs, "prompt");
  const bool is_generated = asked.frames == 0;  // rows of training have pictures
  if (is_generated && prompt && prompt->find_first_not_of(" \t\r\n") == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "prompt: is empty",
                "describe what the whole picture shows, its hidden parts and its texts too");
  }
  const PictureSize size = made_size(*picture, variant);
  return {layers + 1, asked.height > 0 ? asked.height : size.height,
          asked.width > 0 ? asked.width : size.width};
}

at::Tensor over_white(const at::Tensor& picture) {
  if (picture.size(0) != 4) return picture;
  const at::Tensor alpha = (picture.narrow(0, 3, 1) + 1.0) * 0.5;
  return picture.narrow(0, 0, 3) * alpha + (1.0 - alpha);
}

}  // namespace qwen_image
