// A trajectory among others: when its turn was, and its line of progress.
#pragma once

#include <cstdint>
#include <memory>

#include "host/generate/request_run.h"
#include "host/generate/trajectory.h"
#include "host/progress/progress.h"

namespace atelier::generate {

struct Walk {
  RequestRun& run;
  Trajectory trajectory;
  // Its line is one of the steps of each denoiser, where all images of its request pass one before
  // the next.
  bool in_parts = false;
  uint64_t turn = 0;          // the number of its last step among those of all
  bool is_alone = false;      // beside others there was a failure
  int64_t waiting_bytes = 0;  // on the host, while it is put aside
  std::unique_ptr<progress::Step> line = nullptr;

  const model::RangedDenoiser& denoiser() const { return trajectory.denoiser(); }
  // The line is there from before a step until its part is done.
  void begin_line(progress::Progress& progress);
  void advance_line(const model::RangedDenoiser& made_by);
};

}  // namespace atelier::generate
