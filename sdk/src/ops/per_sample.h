// Composed forms of operators on packed rows: each row of x meets the row of its sample.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "atelier/segments.h"

namespace atelier::ops {

// f(x, rows of each of `ts`), where ts are [S, D]. Gradients of ts are added up in one order: those
// of LibTorch's repeat_interleave are not, on a GPU.
template <typename F, typename... Ts>
at::Tensor per_sample(const Segments& rows, F f, const at::Tensor& x, const Ts&... ts) {
  if (rows.count() == 1) return f(x, ts...);
  if (rows.is_uniform() && rows.count() > 0) {
    const at::Tensor samples = x.view({rows.count(), rows.length(0), x.size(1)});
    return f(samples, ts.unsqueeze(1)...).view(x.sizes());
  }
  const auto repeated = [&](const at::Tensor& t) {
    std::vector<at::Tensor> samples;
    for (int64_t s = 0; s < rows.count(); ++s)
      samples.push_back(t.narrow(0, s, 1).expand({rows.length(s), t.size(1)}));
    return samples.empty() ? t.narrow(0, 0, 0) : at::cat(samples);
  };
  return f(x, repeated(ts)...);
}

}  // namespace atelier::ops
