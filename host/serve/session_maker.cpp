#include "host/serve/session_maker.h"

#include <utility>

#include <ATen/ATen.h>

#include "host/plugins/guard.h"

namespace atelier::serve {

uint64_t SessionMaker::add(const order::Settings& settings, generate::JobHooks hooks) {
  job_.emplace(Job{settings, std::move(hooks)});
  is_cancelled_ = false;
  return 1;
}

bool SessionMaker::advance() {
  if (!job_) return false;
  generate::JobResult result;
  try {
    session_.run(job_->settings, result);
  } catch (const Error& error) {
    result.error = error.what();
    result.code = error.code();
  }
  const Job job = *std::exchange(job_, std::nullopt);
  if (!is_cancelled_) job.hooks.on_done(result);
  return true;
}

void SessionMaker::cancel(uint64_t) {
  is_cancelled_ = true;
}

void SessionMaker::on_file(const std::string& path) const {
  if (!is_cancelled_) job_->hooks.on_file(path);
}

void SessionMaker::rest() {}

void SessionMaker::check_device() {
  plugins::guard("the device " + model_.device().str(), [&] {
    return at::ones({1}, at::TensorOptions().device(model_.device())).item<float>();
  });
}

}  // namespace atelier::serve
