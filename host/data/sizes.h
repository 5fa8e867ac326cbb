// To which size each image of a dataset is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "host/data/dataset.h"
#include "host/report/problems.h"

namespace atelier::data {

// Sizes that contradict each other, whatever the model is, become problems.
void check_sizes(const DatasetOptions& options, report::Problems& problems);

// Immutable, and safe to use from several threads.
class SizeRule {
 public:
  // Options that contradict themselves or do not fit `multiple`, in pixels, become problems; the
  // rule then answers 0 x 0.
  SizeRule(const DatasetOptions& options, int64_t multiple, report::Problems& problems);

  // False when the options were no good.
  bool is_valid() const { return is_valid_; }

  // The size for an image of height x width; a side of 0 means that the image is too small.
  Size of(int64_t height, int64_t width) const;

 private:
  bool check(report::Problems& problems) const;

  DatasetOptions options_;
  int64_t multiple_;
  bool is_valid_;
  std::vector<Size> buckets_;
};

}  // namespace atelier::data
