// Jobs of a prompts file, one after another, and what becomes of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/error.h"

#include "host/order/jobs.h"

namespace atelier::generate {

// What became of one job; one JSON line on stdout.
struct JobResult {
  std::vector<std::string> output;  // files that are finished
  std::optional<uint64_t> seed;     // of the first image; none when the job never began
  double seconds = 0.0;
  std::string error;  // empty: done
  uint64_t line = 0;
  std::optional<ErrorCode> code = std::nullopt;  // of the error; not in the line

  // {"error":…,"line":3,"output":["out_3.png"],"seed":0,"seconds":1.5}
  std::string to_json() const;
};

// Who is told of one job. Each may be empty. Called from within Session::advance().
struct JobHooks {
  std::function<void(int64_t step, int64_t steps)> on_step = {};  // of all images of the job
  int64_t preview_every = 0;  // steps between two previews; 0: none
  // float32 [3 or 4, H, W] in [-1, 1] on the CPU.
  std::function<void(int64_t step, const at::Tensor& pixels_CHW)> on_preview = {};
  std::function<void(const std::string& path)> on_file = {};  // behind each that is finished
  std::function<void(const JobResult&)> on_done = {};         // once: done or failed
};

// Runs jobs of which one may fail without ending the others, unless other ranks wait for it. Not
// thread-safe.
class JobRunner {
 public:
  using Make = std::function<void(const order::Settings&, JobResult&)>;
  using OnResult = std::function<void(const JobResult&)>;
  // `make` makes the images of one job, as Session::run() does; `on_result` gets what became of
  // each. `is_shared`: other ranks make the same jobs.
  JobRunner(Make make, OnResult on_result, bool is_shared = false)
      : make_(std::move(make)), on_result_(std::move(on_result)), is_shared_(is_shared) {}

  // Rethrows errors after which the next job would fare no better.
  void run(const order::Job& job);

  // Reports `error` as the result of a job that was not started.
  void refuse(uint64_t line, const Error& error);

  // The exit code of the first job that failed; 0 when none did.
  int exit_code() const { return exit_code_; }

 private:
  void fail(JobResult& result, const Error& error);

  Make make_;
  OnResult on_result_;
  bool is_shared_;
  int exit_code_ = 0;
};

}  // namespace atelier::generate
