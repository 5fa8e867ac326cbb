#include "host/generate/request_run.h"

#include <algorithm>
#include <utility>

namespace atelier::generate {

namespace {

// Calls `function`, which may be empty, unless `is_cancelled` is set.
template <typename... Arguments>
std::function<void(Arguments...)> unless(const bool& is_cancelled,
                                         std::function<void(Arguments...)> function) {
  if (!function) return {};
  return [&is_cancelled, function = std::move(function)](Arguments... arguments) {
    if (!is_cancelled) function(arguments...);
  };
}

// The last two are called when the request is gone.
Sink unless(const bool& is_cancelled, Sink sink) {
  sink.on_frames = unless(is_cancelled, std::move(sink.on_frames));
  sink.on_sound = unless(is_cancelled, std::move(sink.on_sound));
  sink.on_step = unless(is_cancelled, std::move(sink.on_step));
  sink.on_preview = unless(is_cancelled, std::move(sink.on_preview));
  return sink;
}

}  // namespace

RequestRun::RequestRun(uint64_t ticket, Request request, Sink sink, EngineContext& context)
    : ticket(ticket),
      request(std::move(request)),
      sink(unless(is_cancelled, std::move(sink))),
      context_(context) {}

bool RequestRun::can_begin() const {
  return material_ && begun_ < material_->request.seeds.size();
}

void RequestRun::encode(Encoder& encoder) {
  if (request.pieces.empty()) {
    material_ = std::make_shared<const Material>(encoder.encode(request));
    return;
  }
  if (!of_clip_) {
    of_clip_ = encoder.encode_conditions(request);
    pieces_.emplace(request, context_);
  }
  material_ = std::make_shared<const Material>(pieces_->encode(encoder, *of_clip_));
}

int64_t RequestRun::encoded_bytes() const {
  return material_ ? bytes_of(material_->cond.with) + bytes_of(material_->cond.without) : 0;
}

int64_t RequestRun::images_ahead() const {
  return can_begin() ? std::ssize(material_->request.seeds) - static_cast<int64_t>(begun_) : 0;
}

int64_t RequestRun::next_count() const {
  const auto left = static_cast<int64_t>(material_->request.seeds.size() - begun_);
  return std::min(std::max<int64_t>(request.batch_size, 1), left);
}

Trajectory RequestRun::begin() {
  const int64_t count = next_count();
  Trajectory trajectory(material_, begun_, count, context_.of);
  begun_ += static_cast<size_t>(count);
  has_begun_ = true;
  return trajectory;
}

bool RequestRun::wants_preview(int64_t others) const {
  const int64_t step = steps_made_ + others + 1;
  return sink.on_preview && sink.preview_every > 0 && step % sink.preview_every == 0;
}

void RequestRun::tell_preview(const at::Tensor& pixels_CHW, int64_t others) const {
  if (pixels_CHW.defined()) sink.on_preview(steps_made_ + others + 1, pixels_CHW);
}

void RequestRun::tell_step() {
  ++steps_made_;
  if (sink.on_step) sink.on_step(steps_made_, steps_of_all(request));
}

void RequestRun::decode(Decoder& decoder, const Trajectory& through) {
  if (!pieces_) {
    decoder.decode(through, sink.on_frames, sink.on_sound);
  } else {
    decoder.decode(through, pieces_->into(sink.on_frames), sink.on_sound);
    pieces_->next();
  }
  made_ += static_cast<size_t>(through.count());
  if (made_ < material_->request.seeds.size()) return;
  is_done_ = !pieces_ || pieces_->is_at_end();
  material_ = nullptr;
  begun_ = made_ = 0;
}

}  // namespace atelier::generate
