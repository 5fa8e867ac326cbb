// Pictures to be edited, brought to the sizes and numbers that the models read.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace qwen_image {

// A patch of the vision tower; a still is shown as two frames.
constexpr int64_t kPatchPixels = 14, kFrames = 2;
// Patches along each side of a token.
constexpr int64_t kTokenPatches = 2;

// The most and the fewest pixels of a picture that the vision tower sees.
constexpr int64_t kMaxPixels = 12'845'056, kMinPixels = 3'136;

// Pixels are levels by this, less the mean, by the deviation of their channel.
constexpr double kPixelScale = 1.0 / 255.0;
constexpr double kPixelMean[] = {0.48145466, 0.4578275, 0.40821073};
constexpr double kPixelStd[] = {0.26862954, 0.26130258, 0.27577711};

struct PictureSize {
  int64_t height = 0, width = 0;
};

// The size of this area with about the shape of `size`: both sides are multiples of 32. A side of a
// very long picture may be 0.
PictureSize size_of_area(int64_t area, const PictureSize& size);

// The size that the vision tower sees a picture of `size` in: multiples of a token's pixels, and
// from kMinPixels to kMaxPixels of them.
PictureSize vision_size(const PictureSize& size);

// How pictures are shown, by the variant.
struct PictureRules {
  // Pixels of what the vision tower is shown; 0: it sees what the VAE encodes.
  int64_t vision_area = 384 * 384;
  int64_t vae_area = 1024 * 1024;
  // Off: the VAE encodes pictures in their own size, sides rounded down to multiples of 16.
  bool resizes = true;

  PictureSize for_vae(const PictureSize& size) const;
  PictureSize for_vision(const PictureSize& size) const;
  // Throws Error{kInvalidArgument} for a picture that is too long for either.
  void check(const PictureSize& size) const;
};

// images: [3, H, W] in [-1, 1].
PictureSize size_of(const at::Tensor& image);

// What the VAE encodes: float32 [3, H, W] in [-1, 1], on the image's device.
at::Tensor pixels_for_vae(const at::Tensor& image, const PictureRules& rules);

// Patches along each side.
struct PatchGrid {
  int64_t rows = 0, columns = 0;
  // Tokens along each side: four patches are one.
  int64_t token_rows() const { return rows / 2; }
  int64_t token_columns() const { return columns / 2; }
  int64_t tokens() const { return token_rows() * token_columns(); }
  bool operator==(const PatchGrid&) const = default;
};

// Pictures as the vision tower reads them: [N, 3 * 2 * 14 * 14] float32, the four patches of a
// token one behind the other, equal to the published processor's to the bit.
struct Patches {
  at::Tensor values;
  std::vector<PatchGrid> grids;
};
Patches patches_of(std::span<const at::Tensor> images, const PictureRules& rules);

}  // namespace qwen_image
