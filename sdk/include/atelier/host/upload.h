// Small things that the host gives to a device while it computes.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"
#include "atelier/segments.h"

namespace atelier::ops {

// `t` in memory of the host that copies to `device` need not wait for: pinned for a GPU. `t` itself
// where it is not on the host, or there already. From any thread.
ATELIER_API at::Tensor pinned_for(const at::Tensor& t, at::Device device);

// `t` on `device`. What comes from the host goes through pinned memory, in order with what is
// queued on this thread's stream: nobody waits for the device. `t` itself where it is there
// already.
ATELIER_API at::Tensor upload(const at::Tensor& t, at::Device device);

// rows.tensor() on `device`, in `dtype`. It is copied there once: the offsets used last are kept,
// by what they are, so that all operators of a forward pass, and of the passes behind it, share
// one copy. Not to be written into. From any thread.
ATELIER_API at::Tensor offsets_on(const Segments& rows, at::Device device,
                                  at::ScalarType dtype = at::kLong);

// While one lives, what this thread queues is recorded (see device_graph.h): it is queued again
// when what it was copied from is long gone. Offsets that are on the device are kept here, for as
// long as the graph; a copy from the host throws Error{kUnsupported}. One at a time.
class ATELIER_API RecordedUploads {
 public:
  RecordedUploads();
  ~RecordedUploads();
  RecordedUploads(const RecordedUploads&) = delete;
  RecordedUploads& operator=(const RecordedUploads&) = delete;

  const std::vector<at::Tensor>& kept() const { return kept_; }

 private:
  friend at::Tensor offsets_on(const Segments& rows, at::Device device, at::ScalarType dtype);
  std::vector<at::Tensor> kept_;
};

}  // namespace atelier::ops
