// Cosines and sines: of time, and of positions that rotate heads.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/export.h"
#include "atelier/segments.h"

namespace atelier::nn {

// Cosines, then sines, of `position` times frequencies that fall from `scale` to scale / 10000.
// position_B: float32. Returns [B, channels] float32.
ATELIER_API at::Tensor time_channels(const at::Tensor& position_B, int64_t channels,
                                     double scale = 1.0);

// Cosines and sines of rows, [N, head_dim / 2] float32 each.
struct Waves {
  at::Tensor cos, sin;
};

// Angles by which the positions on an axis turn the `channels` of a head that it carries, at
// frequencies that fall from 1 by the base `theta`. positions_N: float32 or float64. Returns
// [N, channels / 2] in its dtype.
ATELIER_API at::Tensor rope_angles(const at::Tensor& positions_N, int64_t channels, double theta);

// Positions count each sample's rows from 0, and turn heads by the base `theta`.
ATELIER_API Waves row_waves(const Segments& rows, int64_t head_dim, double theta,
                            at::Device device);

// Positions on several axes turn a head by the base `theta`: the first axis its first channels, and
// so on. positions_NA: float32 or float64, one column an axis; `channels` are those of each axis,
// all even. Computed in its dtype on its device. Returns [N, sum of channels / 2] float32 each, on
// `device`. Throws Error{kInvalidArgument} where columns and `channels` are not as many.
ATELIER_API Waves axis_waves(const at::Tensor& positions_NA, std::span<const int64_t> channels,
                             double theta, at::Device device);

// Keeps the tables that were made last, by what they were made for; the device is part of that, as
// models also run without values on a device of their own. Not thread-safe.
template <class Key, class Table>
class RecentTables {
 public:
  // `make` is called where autograd may save what it gives, whatever mode the caller is in. The
  // result is good until the next call.
  template <class Make>
  const Table& get(const Key& key, const Make& make) {
    const auto found = std::find_if(tables_.begin(), tables_.end(),
                                    [&](const auto& entry) { return entry.first == key; });
    if (found != tables_.end()) {
      std::rotate(found, found + 1, tables_.end());
      return tables_.back().second;
    }
    const c10::InferenceMode normal(false);
    const c10::NoGradGuard no_grad;
    Table table = make();
    if (tables_.size() == kKept) tables_.erase(tables_.begin());
    return tables_.emplace_back(key, std::move(table)).second;
  }

 private:
  static constexpr size_t kKept = 4;           // prompts with and without text, for two sizes
  std::vector<std::pair<Key, Table>> tables_;  // most recently used last
};

}  // namespace atelier::nn
