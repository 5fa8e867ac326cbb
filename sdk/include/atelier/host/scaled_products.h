// Products of e4m3 codes on devices that have them.
#pragma once

#include "atelier/host/weight_state.h"

namespace atelier::ops {

// While one lives, sums of such products on this thread need not be float32 all the way, which is
// faster: Hopper adds up in fewer bits, and otherwise moves what it has to float32 now and then.
// For what images are made with; training and what it caches have exact sums.
class ATELIER_API FastSums {
 public:
  FastSums();
  ~FastSums();
  FastSums(const FastSums&) = delete;
  FastSums& operator=(const FastSums&) = delete;

  static bool are_allowed();

 private:
  bool before_;
};

// Puts a bᵀ of e4m3 codes [n, k] and [m, k], whose sizes the device takes, times the scales of the
// rows of both into `out`, dense [n, m], rounded once. `bias`, [m] of its dtype, is added before;
// undefined: none. Throws c10::Error where the device has no such products of its dtype.
ATELIER_API void scaled_product(const RowCodes& a, const RowCodes& b, const at::Tensor& bias,
                                at::Tensor& out);

}  // namespace atelier::ops
