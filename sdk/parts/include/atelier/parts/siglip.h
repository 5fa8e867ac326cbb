// SigLIP's and SigLIP 2's vision model of images of one size.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/config_fields.h"

namespace atelier::parts {

// The defaults are those of so400m-patch14-384, for what shapes do not tell.
struct SiglipConfig {
  int64_t layers = 27, width = 1152, heads = 16, mlp_width = 4304;
  int64_t patch = 14;  // pixels along each side
  int64_t rows = 729;  // patches of a square
  double eps = 1e-6;
  bool is_bilinear = false;  // how images are scaled; otherwise bicubic
  bool pools = false;        // the pooling head is there

  // Pixels along each side of an image.
  int64_t image_side() const;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("patch", patch), fields("rows", rows);
    fields("eps", eps), fields("is_bilinear", is_bilinear), fields("pools", pools);
  }
};

// What of SigLIP a family looks at images with.
struct SiglipUse {
  bool pools = false;
  bool is_bilinear = false;  // images are scaled so, as SigLIP 2's are; see SiglipConfig
  std::string_view component = "image_encoder";
};

// Says whether a checkpoint holds such a model. Its variant is left empty. Without a config it has
// the numbers of the published model of its widths: base, large, so400m or giant. Spellings:
// "transformers" (vision_model.encoder.layers.0.…) and "transformers_bare" (encoder.layers.0.…),
// behind no prefix or the component's name. Throws Error{kInvalidArgument} when shapes and
// config.json contradict each other, Error{kNotFound} when a pooling head is used and missing, and
// Error{kUnsupported} for quantised files.
std::optional<Detection> detect_siglip(const TensorIndex& checkpoint, const SiglipUse& use);

// See ModelFamily.
ConfigFields siglip_fields(const Detection& part);
WeightMap siglip_map(const Detection& part);

// A small one for tests, of images of 32 pixels.
Detection tiny_siglip(const SiglipUse& use);

class EncoderLayer;
class SiglipHead;

// Weights are called as transformers calls them, without "vision_model."; the head's product of
// queries, keys and values is three.
class Siglip final : public nn::Module {
 public:
  explicit Siglip(const SiglipConfig& config);
  ~Siglip() override;

  // image: RGB [3, H, W] in [-1, 1], of any size: it is stretched to a square. Returns
  // [rows(), width()] behind the last norm, in compute dtype.
  at::Tensor forward(const at::Tensor& image, BlockRunner& runner) const;

  // What the head makes of such rows: [1, width()]. Throws Error{kUnsupported} where it is not
  // loaded.
  at::Tensor pooled(const at::Tensor& rows_ND, BlockRunner& runner) const;

  int64_t rows() const { return config_.rows; }
  int64_t width() const { return config_.width; }

 private:
  SiglipConfig config_;
  nn::Conv2d patch_embedding_;
  WeightPtr position_embedding_;
  std::vector<std::unique_ptr<EncoderLayer>> layers_;
  nn::LayerNorm post_norm_;
  std::unique_ptr<SiglipHead> head_;  // null: nothing is pooled
};

// The row of a family that looks at images with it. `use` is static. A component that only some
// variants have is not required, and has no tiny part.
template <const SiglipUse& use>
constexpr ComponentRow siglip_row(std::string_view help, bool required = true,
                                  std::string_view variants = "*") {
  return {.spec = {.name = use.component,
                   .role = Role::kImageEncoder,
                   .required = required,
                   .help = help,
                   .variants = variants},
          .detect = [](const TensorIndex& in) { return detect_siglip(in, use); },
          .config_fields = siglip_fields,
          .weight_map = siglip_map,
          .make = make_part<Siglip, SiglipConfig>,
          .tiny = required ? +[] { return tiny_siglip(use); } : nullptr,
          .spellings = {"transformers", "transformers_bare"}};
}

}  // namespace atelier::parts
