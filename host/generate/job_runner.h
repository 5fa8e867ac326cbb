// Jobs of a prompts file, one after another, and what becomes of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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
