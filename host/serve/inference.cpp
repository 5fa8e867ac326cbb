#include "host/serve/inference.h"

#include <chrono>
#include <utility>

#include <ATen/ATen.h>

#include "host/media/jpeg.h"
#include "host/media/pixels.h"
#include "host/plugins/guard.h"
#include "memory/clock.h"

namespace atelier::serve {
namespace {

// How long a signal that ends the server may go unseen while there is nothing to do.
constexpr std::chrono::milliseconds kNap{200};

bool may_be_the_device(ErrorCode code) {
  return code == ErrorCode::kInternal || code == ErrorCode::kEnvironment;
}

// Over white where it is transparent.
at::Tensor opaque(const at::Tensor& pixels_CHW) {
  if (pixels_CHW.size(0) != 4) return pixels_CHW;
  const at::Tensor alpha = (pixels_CHW.slice(0, 3, 4) + 1) / 2;
  return pixels_CHW.slice(0, 0, 3) * alpha + (1 - alpha);
}

}  // namespace

Inference::Inference(JobTable& jobs, Bell& bell, Maker& maker, Metrics& metrics,
                     InferenceOptions options)
    : jobs_(jobs),
      bell_(bell),
      maker_(maker),
      metrics_(metrics),
      options_([&] {
        if (!options.steady) options.steady = memory::seconds_now;
        return std::move(options);
      }()),
      idle_since_s_(options_.steady()) {}

void Inference::run() {
  try {
    while (!options_.is_stopped()) {
      if (turn()) continue;
      rest_when_idle();
      bell_.wait(kNap);
    }
  } catch (...) {
    end_all();
    throw;
  }
  end_all();
}

bool Inference::turn() {
  for (const std::string& warning : jobs_.take_warnings()) options_.warn(warning);
  jobs_.expire();
  for (const std::string& id : jobs_.take_cancelled()) {
    maker_.cancel(running_.at(id).number);
    leave(id);
  }
  take_jobs();
  const bool has_worked = maker_.advance();
  if (std::exchange(may_be_broken_, false)) maker_.check_device();
  if (has_worked || !running_.empty()) {
    idle_since_s_ = options_.steady();
    is_resting_ = false;
  }
  return has_worked;
}

void Inference::take_jobs() {
  for (;;) {
    int64_t images = 0, loras = 0;
    for (const auto& [id, running] : running_) {
      images += running.images;
      loras += running.loras;
    }
    metrics_.run(images, loras);
    if (images >= options_.max_batch) return;
    std::optional<PreparedJob> work = jobs_.take();
    if (!work) return;
    begin(std::move(*work));
  }
}

void Inference::begin(PreparedJob work) {
  const std::string id = work.id;
  running_[id] = {.images = work.settings.num_images, .loras = std::ssize(work.settings.loras)};
  try {
    running_[id].number =
        plugins::guard("job", [&] { return maker_.add(work.settings, hooks_of(work)); });
  } catch (const Error& error) {
    generate::JobResult result;
    result.error = error.what();
    result.code = error.code();
    over(id, result);
  }
}

generate::JobHooks Inference::hooks_of(const PreparedJob& work) {
  generate::JobHooks hooks;
  hooks.on_step = [this, id = work.id](int64_t step, int64_t steps) {
    jobs_.stepped(id, step, steps);
  };
  hooks.preview_every = work.preview_every;
  hooks.on_preview = [this, id = work.id](int64_t, const at::Tensor& pixels_CHW) {
    jobs_.previewed(id, media::encode_jpeg(media::to_image(opaque(pixels_CHW))));
  };
  hooks.on_file = [this, id = work.id](const std::string& path) { jobs_.wrote(id, path); };
  hooks.on_done = [this, id = work.id](const generate::JobResult& result) { over(id, result); };
  return hooks;
}

void Inference::over(const std::string& id, const generate::JobResult& result) {
  leave(id);
  // The session ends all jobs when the server is being ended, and the table knows which survive.
  if (result.code == ErrorCode::kCancelled && options_.is_stopped()) return;
  if (!result.code) return jobs_.finished(id, result.seed.value_or(0));
  jobs_.failed(id, Error(*result.code, result.error));
  if (may_be_the_device(*result.code) || *result.code == ErrorCode::kOutOfMemory)
    options_.warn(id + ": " + result.error);
  may_be_broken_ = may_be_broken_ || may_be_the_device(*result.code);
}

void Inference::leave(const std::string& id) {
  running_.erase(id);
}

void Inference::rest_when_idle() {
  if (options_.idle_after_s <= 0 || is_resting_) return;
  if (options_.steady() - idle_since_s_ < options_.idle_after_s) return;
  maker_.rest();
  is_resting_ = true;
}

void Inference::end_all() {
  jobs_.close();
  for (const auto& [id, running] : running_) maker_.cancel(running.number);
  running_.clear();
  maker_.advance();  // they leave
}

}  // namespace atelier::serve
