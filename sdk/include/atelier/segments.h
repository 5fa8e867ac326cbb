// Samples of different lengths, packed one after another along the row axis.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// Row offsets of S packed samples: sample s has rows [offset(s), offset(s + 1)). Cheap to copy. It
// wraps an int64 CPU tensor, so that it can be one of a block's tensor inputs. Where rows are
// shared out among ranks (see SharedRows), these are this rank's, and those of the others are
// known, too.
class ATELIER_API Segments {
 public:
  explicit Segments(const std::vector<int64_t>& lengths);
  static Segments uniform(int64_t count, int64_t length);
  // `offsets`: int64 [S + 1] on the CPU, ascending from 0; or what tensor() of shared rows gave.
  static Segments from_tensor(at::Tensor offsets);
  // The rows of rank `rank`, of the offsets of all ranks: int64 [P, S + 1].
  static Segments shared(const at::Tensor& offsets_of_ranks, int64_t rank);

  // [S + 1], and of shared rows [1 + P, S + 1]: these offsets, then those of every rank.
  const at::Tensor& tensor() const { return offsets_; }
  at::Tensor own_offsets() const { return is_shared() ? offsets_[0] : offsets_; }  // [S + 1]
  int64_t count() const { return offsets_.size(-1) - 1; }
  int64_t total() const { return offset(count()); }
  int64_t offset(int64_t s) const { return data_[s]; }
  int64_t length(int64_t s) const { return data_[s + 1] - data_[s]; }
  int64_t longest() const;
  bool is_uniform() const;  // every sample has the same length

  bool is_shared() const { return offsets_.dim() == 2; }
  int64_t ranks() const { return is_shared() ? offsets_.size(0) - 1 : 1; }
  // The offset of rank `rank`'s rows; of shared ones alone.
  int64_t offset_of(int64_t rank, int64_t s) const {
    return data_[(rank + 1) * offsets_.size(1) + s];
  }

 private:
  Segments() = default;
  at::Tensor offsets_;
  const int64_t* data_ = nullptr;  // of offsets_
};

// Rows of two streams joined sample by sample: sample s of the result is [a's rows of s, b's rows
// of s]. a: [Na, ...] packed by `a_rows`, b: [Nb, ...] packed by `b_rows`. Differentiable. Returns
// [Na + Nb, ...].
ATELIER_API at::Tensor join_rows(const at::Tensor& a, const Segments& a_rows, const at::Tensor& b,
                                 const Segments& b_rows);
ATELIER_API Segments join(const Segments& a, const Segments& b);

// The inverse of join_rows: {a's rows, b's rows}.
ATELIER_API std::pair<at::Tensor, at::Tensor> split_rows(const at::Tensor& joined,
                                                         const Segments& a_rows,
                                                         const Segments& b_rows);

}  // namespace atelier
