#include "host/generate/job_runner.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "host/report/error_line.h"
#include "memory/clock.h"

namespace atelier::generate {
namespace {

using memory::seconds_now;

bool ends_the_run(ErrorCode code) {
  return code == ErrorCode::kCancelled || code == ErrorCode::kInternal ||
         code == ErrorCode::kEnvironment;
}

}  // namespace

std::string JobResult::to_json() const {
  nlohmann::json line_json = {
      {"output", output}, {"seconds", std::round(seconds * 1000.0) / 1000.0}, {"line", line}};
  if (seed) line_json["seed"] = *seed;
  if (!error.empty()) line_json["error"] = error;
  // Messages may quote bytes of files: what is no UTF-8 is replaced.
  return report::printable_json(
      line_json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void JobRunner::run(const order::Job& job) {
  JobResult result;
  result.line = job.place.line;
  const double begin = seconds_now();
  try {
    make_(job.settings, result);
    result.seconds = seconds_now() - begin;
    on_result_(result);
  } catch (const Error& error) {
    result.seconds = seconds_now() - begin;
    fail(result, error);
    if (is_shared_ || ends_the_run(error.code())) throw;
  }
}

void JobRunner::refuse(uint64_t line, const Error& error) {
  JobResult result;
  result.line = line;
  fail(result, error);
}

void JobRunner::fail(JobResult& result, const Error& error) {
  result.error = error.what();
  on_result_(result);
  if (exit_code_ == 0) exit_code_ = atelier::exit_code(error.code());
}

}  // namespace atelier::generate
