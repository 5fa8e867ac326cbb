// The rows of a denoiser, shared out among the ranks that compute it together.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"
#include "atelier/segments.h"

namespace atelier {

// A denoiser that makes its rows with SharedRows derives from this, too.
class ATELIER_API SharesRows {
 public:
  virtual ~SharesRows();
  // Heads of queries and of keys in attention among shared rows. Where the number of ranks divides
  // those of keys, every rank computes some heads for all rows; otherwise all heads for its own
  // rows, and keys go around the ranks. attention() sees to it; these are for plans.
  virtual int64_t heads() const = 0;
  virtual int64_t key_heads() const = 0;
};

// Which of the rows of packed samples this rank computes. denoise() takes its own of all rows
// before the first trained weight reads them, and of tables that have one row for each; blocks get
// rows(), with which attention() sees the rows of all ranks; what is made of each row by the last
// weight is gathered. All that stands between has rows of its own and those of no other rank, so
// the sum over the ranks of a weight's gradients is its gradient. Where nothing is shared out all
// rows are this rank's, and nothing is copied.
class ATELIER_API SharedRows {
 public:
  explicit SharedRows(const Segments& all);

  // This rank's, some samples of which may have none.
  const Segments& rows() const { return own_; }
  // This rank's rows of `all`, [N, ...]: [rows().total(), ...], maybe a view. Differentiable.
  at::Tensor take(const at::Tensor& all) const;
  // Stretches of the same rows with other borders: how much of each this rank has.
  Segments cut(const Segments& stretches) const;
  // The rows of all ranks, [N, ...], of this rank's `own`. Every rank waits for the others. Its
  // gradient is taken to be the same on all ranks. Throws Error{kInternal} for joined rows.
  at::Tensor gather(const at::Tensor& own) const;

  // Rows of two streams that are joined sample by sample, as join() joins Segments.
  friend ATELIER_API SharedRows join(const SharedRows& a, const SharedRows& b);

 private:
  struct Range {
    int64_t begin, length;
  };
  SharedRows(Segments all, Segments own) : all_(std::move(all)), own_(std::move(own)) {}
  // Ranges of this rank among all rows, without empty ones; neighbours are one.
  std::vector<Range> merged() const;

  Segments all_, own_;
  std::vector<std::vector<Range>> ranges_;  // of this rank, by sample; empty: nothing is shared out
};

ATELIER_API SharedRows join(const SharedRows& a, const SharedRows& b);

}  // namespace atelier
