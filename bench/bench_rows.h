// What a row of atelier-bench-ops is.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/ops/pointwise.h"

namespace atelier::bench {

using Tensors = std::vector<at::Tensor>;

// Where and how large.
struct Bench {
  at::Device device = at::kCPU;
  bool is_small = true;

  at::Tensor noise(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) const {
    return at::randn(sizes, at::TensorOptions(device).dtype(dtype));
  }
  // A matrix whose products are as large as what they multiply.
  at::Tensor matrix(int64_t rows, int64_t columns) const {
    return noise({rows, columns}) / std::sqrt(static_cast<double>(columns));
  }
};

// One run, with the set of tensors of that number.
using Run = std::function<void(int set)>;

struct Row {
  std::string name;
  double bytes = 0, flops = 0;  // of a run; with neither only its time is told
  std::function<Run(const Bench&, int sets)> make;
  // Waits itself for what it does: timed by the clock, one run at a time.
  bool waits = false;
  bool only_first = false;  // every run is the first one of its kind
};

inline Run with_sets(int sets, const std::function<Tensors()>& make,
                     const std::function<void(const Tensors&)>& run) {
  std::vector<Tensors> all;
  for (int i = 0; i < sets; ++i) all.push_back(make());
  return [all, run](int set) { run(all[static_cast<size_t>(set)]); };
}

// `run` with kernels of our own, proven or not, or composed.
inline Run with_kernels(bool is_fused, const Run& run) {
  return [is_fused, run](int set) {
    ops::set_kernels(is_fused ? ops::Kernels::kFused : ops::Kernels::kComposed);
    run(set);
    ops::set_kernels(ops::Kernels::kAuto);
  };
}

// Norms of images as decoders have them, with SiLU.
void add_image_norms(std::vector<Row>& rows, bool is_small);
// Steps of an optimizer, over one parameter.
void add_optimizer_steps(std::vector<Row>& rows, bool is_small);

}  // namespace atelier::bench
