// A request on its way: what is encoded, begun and decoded of it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "host/generate/decoding.h"
#include "host/generate/encoding.h"
#include "host/generate/piece_walk.h"
#include "host/generate/trajectory.h"

namespace atelier::generate {

// Who is told of one request. Each may be empty. What one throws is the request's failure, but for
// the last two, which throw nothing.
struct Sink {
  OnFrames on_frames = {};
  OnSound on_sound = {};
  // Behind each step, of steps_of_all().
  std::function<void(int64_t step, int64_t steps)> on_step = {};
  // Behind each step whose number `preview_every` divides, see Decoder::preview(); 0: none.
  int64_t preview_every = 0;
  std::function<void(int64_t step, const at::Tensor& pixels_CHW)> on_preview = {};
  // One of the two is called, once, unless the request is cancelled.
  std::function<void()> on_done = {};
  std::function<void(std::exception_ptr failure)> on_failed = {};
};

// Made of one material after another: a request that is made at once has one, a clip in pieces one
// for each of these, which is encoded when the one before is decoded. Not thread-safe.
class RequestRun {
 public:
  // `context` outlives it.
  RequestRun(uint64_t ticket, Request request, Sink sink, EngineContext& context);
  RequestRun(const RequestRun&) = delete;  // its sink points into it
  RequestRun& operator=(const RequestRun&) = delete;

  const uint64_t ticket;
  const Request request;
  bool is_cancelled = false;
  const Sink sink;  // of a request that is cancelled it calls nothing

  // What it waits for; nothing where its trajectories are on their way.
  bool wants_encoding() const { return !material_ && !is_done(); }
  bool can_begin() const;
  bool is_done() const { return is_done_; }
  bool has_begun() const { return has_begun_; }  // any trajectory

  void encode(Encoder& encoder);
  int64_t encoded_bytes() const;  // on the device
  int64_t images_ahead() const;   // that are encoded and have not begun
  // What the next trajectory is made of, and how many images it has, where one can begin.
  const Request& next_request() const { return material_->request; }
  int64_t next_count() const;
  Trajectory begin();
  // Whether the picture of a step is asked for that comes next behind `others` of its trajectories
  // in one call.
  bool wants_preview(int64_t others) const;
  void tell_preview(const at::Tensor& pixels_CHW, int64_t others) const;
  void tell_step();
  // Decodes a trajectory that is through.
  void decode(Decoder& decoder, const Trajectory& through);

 private:
  EngineContext& context_;
  std::optional<Conditionings> of_clip_;  // what pieces have in common
  std::optional<PieceWalk> pieces_;
  std::shared_ptr<const Material> material_;  // null: it is to be encoded
  size_t begun_ = 0, made_ = 0;               // images of it
  int64_t steps_made_ = 0;
  bool has_begun_ = false, is_done_ = false;
};

}  // namespace atelier::generate
