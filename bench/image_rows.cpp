#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "bench/bench_rows.h"

namespace atelier::bench {

using at::Tensor;

void add_image_norms(std::vector<Row>& rows, bool is_small) {
  const int64_t side = is_small ? 16 : 1024, channels = is_small ? 32 : 128;
  const auto add = [&](bool is_group, bool is_fused, bool with_backward) {
    // Tensors that are given or made once: x and the result; with backward their gradients and x.
    const double bytes =
        (with_backward ? 5 : 2) * 2.0 * static_cast<double>(channels * side * side);
    const auto make = [=](const Bench& bench) {
      const Tensor x =
          bench.noise({1, channels, side, side}).contiguous(at::MemoryFormat::ChannelsLast);
      return Tensors{x.set_requires_grad(with_backward), bench.noise({channels}),
                     bench.noise({channels})};
    };
    const auto run = [=](const Tensors& in) {
      const at::AutoGradMode grad(with_backward);
      const Tensor y = is_group ? ops::group_norm(in[0], in[1], in[2], 32, 1e-6, true)
                                : ops::channel_norm(in[0], in[1], true);
      if (with_backward) torch::autograd::grad({y}, {in[0]}, {y.detach()});
    };
    rows.push_back({std::string("image, ") + (is_group ? "group_norm" : "channel_norm") +
                        (with_backward ? ", with backward" : "") + (is_fused ? ", fused" : ""),
                    bytes, 0, [=](const Bench& bench, int sets) {
                      return with_kernels(is_fused, with_sets(
                                                        sets, [&] { return make(bench); }, run));
                    }});
  };
  for (const bool is_fused : {false, true}) {
    for (const bool with_backward : {false, true}) {
      for (const bool is_group : {true, false}) add(is_group, is_fused, with_backward);
    }
  }
}

}  // namespace atelier::bench
