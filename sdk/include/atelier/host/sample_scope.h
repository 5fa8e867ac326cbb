// The samples of a denoiser's call, where they have adapters of their own.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"
#include "atelier/segments.h"

namespace atelier::ops {

// How much each numbered adapter (see Adapter::number) counts for each sample: [samples][numbers].
using SampleStrengths = std::vector<std::vector<double>>;

// While one lives, numbered adapters take part in products on the thread that made it, each in the
// rows of its samples. The samples are those of one Model::denoise(), or of all calls of one
// Model::denoise_all(), one call after the other.
//
// Which sample a row is of is read from the first axis of what is multiplied: it is as long as
// there are samples, or as the rows of Segments of that many samples, which were made within the
// scope. Where neither is so, where two such Segments have other borders, and where rows are shared
// out among ranks, the product throws Error{kInternal} and is_unresolved() says so: samples with
// other adapters are then calls of their own.
class ATELIER_API SampleScope {
 public:
  // `strengths` outlives the scope.
  explicit SampleScope(const SampleStrengths& strengths);
  ~SampleScope();
  SampleScope(const SampleScope&) = delete;
  SampleScope& operator=(const SampleScope&) = delete;

  static SampleScope* current();  // null: no sample has adapters of its own
  bool is_unresolved() const { return is_unresolved_; }

  // Some of the samples, which a call within the scope has: sample `first` is its first one. Does
  // nothing without a scope.
  class ATELIER_API Part {
   public:
    Part(int64_t first, int64_t count);
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    SampleScope* scope_;
    int64_t first_ = 0, count_ = 0;  // of the scope before
    std::vector<std::vector<int64_t>> noted_;
  };

  // Row i of what is multiplied is of sample `first` + i, and none's from row `count` on, where
  // there are `total` samples; where there are others, it is not known. Does nothing without a
  // scope.
  class ATELIER_API Rows {
   public:
    Rows(int64_t first, int64_t count, int64_t total);
    ~Rows();
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;

   private:
    friend class SampleScope;
    SampleScope* scope_;
    const Rows* outer_ = nullptr;
    int64_t first_, count_, total_;
  };

  int64_t count() const { return count_; }  // of samples

  // A stretch of rows, from `begin` on. Sample -1: none's, the result is not read.
  struct Stretch {
    int64_t sample, begin, length;
  };
  // All rows of x, [..., K], in order. Throws as said above.
  std::vector<Stretch> stretches_of(const at::Tensor& x);
  double strength(int64_t sample, int64_t number) const;
  // Whether any sample has the adapter of that number.
  bool is_used(int64_t number) const;
  // Segments that are made call this.
  void note(const Segments& rows);

 private:
  std::vector<Stretch> named_stretches(int64_t rows) const;
  [[noreturn]] void fail(const at::Tensor& x);

  const SampleStrengths& strengths_;
  SampleScope* outer_;
  int64_t first_ = 0, count_;                // of the samples that run
  std::vector<std::vector<int64_t>> noted_;  // offsets
  const Rows* named_ = nullptr;
  bool is_unresolved_ = false;
};

}  // namespace atelier::ops
