// Composed forms of operators on packed rows: each row of x meets the row of its sample.
#pragma once

#include <ATen/ATen.h>

#include "atelier/host/upload.h"
#include "atelier/segments.h"

namespace atelier::ops {

// f(x, rows of each of `ts`), where ts are [S, D].
template <typename F, typename... Ts>
at::Tensor per_sample(const Segments& rows, F f, const at::Tensor& x, const Ts&... ts) {
  if (rows.count() == 1) return f(x, ts...);
  if (rows.is_uniform() && rows.count() > 0) {
    const at::Tensor samples = x.view({rows.count(), rows.length(0), x.size(1)});
    return f(samples, ts.unsqueeze(1)...).view(x.sizes());
  }
  // LibTorch repeats no meta tensors.
  if (x.is_meta()) return f(x, ts.narrow(0, 0, 1).expand({rows.total(), ts.size(1)}).clone()...);
  const at::Tensor lengths = offsets_on(rows, x.device()).diff();
  return f(x, at::repeat_interleave(ts, lengths, 0, rows.total())...);
}

}  // namespace atelier::ops
