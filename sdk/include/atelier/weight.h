// A weight is a handle: layers own one, draw a tensor from it for one product, and let go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

class WeightState;

struct WeightOptions {
  // The weight is loaded, drawn and trained in float32, whatever its component computes in, and
  // never stored in 8 bits. For the few whose rounding shows: modulation tables, norms, embeddings
  // of the noise level.
  bool keeps_float32 = false;
};

// One named weight of a module. Its shape is declared at construction; its values come later, from
// the host. Not thread-safe while it is being changed.
class ATELIER_API Weight {
 public:
  Weight(std::string name, std::vector<int64_t> shape, WeightOptions options = {});
  ~Weight();
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  const std::string& name() const;  // within its module: "weight"
  at::IntArrayRef sizes() const;
  int64_t numel() const;
  bool keeps_float32() const;
  // The dtype in which it is drawn where its component computes in `dtype`.
  at::ScalarType drawn_dtype(at::ScalarType dtype) const;
  bool is_loaded() const;

  // Puts `value` behind the handle; it stays on its device, in its dtype.
  // Throws Error{kInvalidArgument} when its shape is another than sizes().
  void set(at::Tensor value);

  // The weight in compute dtype on the compute device; the caller holds it for one operator only.
  // Throws Error{kInternal} when the weight is not loaded.
  at::Tensor draw() const;
  // Rows `index` (int64, on any device) of a 2-D weight; the same.
  at::Tensor draw_rows(const at::Tensor& index) const;

  // The host's side of it, which plugins do not see.
  WeightState& state() { return *state_; }
  const WeightState& state() const { return *state_; }

 private:
  std::unique_ptr<WeightState> state_;
};

using WeightPtr = std::shared_ptr<Weight>;

}  // namespace atelier
