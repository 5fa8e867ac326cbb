// What runs between the denoiser's blocks: ControlNets beside it.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/block.h"
#include "atelier/model.h"
#include "atelier/shared_rows.h"

namespace qwen_image {

struct SampleRows;

// How much something counts for each sample: float [B], undefined where it counts for none; and the
// rows [N, 1] of those for which it does not, undefined where it counts for all.
struct Scales {
  at::Tensor of_samples_B, silent_N1;
};

// One pass of the denoiser over packed samples, between two of its blocks. A sample's image rows
// are those of the image that is made, then those of its references.
struct Pass {
  // What each sample is made from, and the step of its run.
  struct Sample {
    const atelier::Conditioning* cond;
    int64_t step, steps;  // see atelier::DenoiseInputs
  };
  std::vector<Sample> samples;
  const std::vector<SampleRows>& lengths;  // rows of each sample, on all ranks together
  atelier::BlockRunner& runner;
  const atelier::SharedRows& own;         // rows of the images that are made, of this rank
  const atelier::SharedRows* references;  // null: there are none
  at::Tensor latents;                     // rows of `own`, [N, C * 4]
  at::Tensor sigma_B;                     // float32, of each sample
  at::Tensor image;                       // [N, D], rows of images and references

  // Rows of `image` that are of `own`.
  at::Tensor own_image() const;
  // Adds values of rows of `own`, times each sample's scale, to `image`. Those of silent rows may
  // be anything, infinite too.
  void add(const at::Tensor& values, const Scales& scales);
};

class Addition {
 public:
  virtual ~Addition() = default;
  // In front of the first block.
  virtual void begin(Pass& pass) = 0;
  // Behind block `index`.
  virtual void after(int64_t index, Pass& pass) = 0;
};

}  // namespace qwen_image
