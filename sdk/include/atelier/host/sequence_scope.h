// The ranks among which the rows of a denoiser are shared out; see SharedRows.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// What they exchange. All ranks make the same calls in the same order, with tensors of one shape
// and dtype. Calls come from the thread that runs the model and, in the backward pass, from
// autograd's device thread; but for pass_on() they return when the result is there.
class ATELIER_API SequenceGroup {
 public:
  virtual ~SequenceGroup();
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // parts: [size(), ...], part r for rank r. Returns [size(), ...]: what every rank has for this
  // one.
  virtual at::Tensor exchange(const at::Tensor& parts) = 0;
  // `part` of every rank: [size(), ...].
  virtual at::Tensor gather(const at::Tensor& part) = 0;
  // Begins to send `part` to the next rank, the last one to the first. Returns what waits for the
  // part of the rank before, and gives it. Nothing may write to `part` until then; several may be
  // under way.
  virtual std::function<at::Tensor()> pass_on(const at::Tensor& part) = 0;
};

// While one lives, denoisers of this process share out their rows among `group`, in forward and
// backward passes on whatever thread. One at a time.
class ATELIER_API SequenceScope {
 public:
  explicit SequenceScope(SequenceGroup& group);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

  // Null: rows are not shared out.
  static SequenceGroup* current();
};

}  // namespace atelier
