// Places of a sample's rows, and how they turn heads.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/nn/waves.h"

#include "config.h"

namespace qwen_image {

// Rows of one sample: of the image and those beside it.
struct SampleRows {
  int64_t height = 0, width = 0, text = 0;                   // of the image in tokens
  int64_t pictures = 1;                                      // of that size
  std::vector<int64_t> entities = {};                        // rows of each, beside the text
  std::vector<std::pair<int64_t, int64_t>> references = {};  // height and width in tokens
  bool stretches = false;
  bool operator==(const SampleRows&) const = default;
  int64_t own_rows() const { return pictures * height * width; }
  int64_t reference_rows() const;
};

// Cosines and sines of every row, [N, head_dim / 2] float32, on all ranks together.
struct Rope {
  at::Tensor image_cos, image_sin, text_cos, text_sin;
};

// Not thread-safe: tables of the last shapes are kept between calls.
class Ropes {
 public:
  explicit Ropes(const DitConfig& config) : axes_(config.axes), is_layered_(config.layered) {}

  Rope of(const std::vector<SampleRows>& samples, at::Device device);

 private:
  Rope make(const std::vector<SampleRows>& samples, at::Device device) const;

  std::array<int64_t, 3> axes_;
  bool is_layered_;
  atelier::nn::RecentTables<std::pair<std::vector<SampleRows>, at::Device>, Rope> tables_;
};

}  // namespace qwen_image
