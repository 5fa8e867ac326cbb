#include "host/generate/piece_walk.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace atelier::generate {

PieceWalk::PieceWalk(const Request& request, EngineContext& context)
    : request_(request), context_(context) {
  begin_piece();
}

// Goes to the next piece that is made.
void PieceWalk::begin_piece() {
  const auto& makes_piece = context_.of.makes_piece;
  while (!is_at_end()) {
    if (piece_ == request_.pieces.size()) {
      ++image_;
      piece_ = 0;
      before_ = at::Tensor();
    } else if (makes_piece && !makes_piece(piece_)) {
      ++piece_;
    } else {
      break;
    }
  }
  if (is_at_end()) return;
  const at::Device host = context_.of.device.is_meta() ? at::kMeta : at::kCPU;
  const int64_t channels = context_.of.model.latent_spec().pixel_channels;
  const bool has_next = piece_ + 1 < request_.pieces.size();
  const int64_t shared = has_next ? request_.pieces[piece_ + 1].shared : 0;
  last_ = at::zeros({channels, shared, request_.target.height, request_.target.width},
                    at::TensorOptions(host).dtype(at::kFloat));
}

Material PieceWalk::encode(Encoder& encoder, const Conditionings& of_clip) const {
  const PieceInputs inputs = {
      piece(), request_.read_beside ? request_.read_beside(piece()) : Inputs(), before_};
  Material made = {
      .request = request_, .cond = encoder.encode_conditions(request_, &inputs), .clean = {}};
  for (const auto& [mine, clip] :
       {std::pair(&made.cond.with, &of_clip.with), std::pair(&made.cond.without, &of_clip.without)})
    mine->insert(clip->begin(), clip->end());
  made.request.inputs.insert(inputs.beside.begin(), inputs.beside.end());
  made.request.target.frames = piece().frames;
  made.request.seeds = {request_.seeds[image_] + piece_};
  return made;
}

OnFrames PieceWalk::into(const OnFrames& on_frames) {
  return [this, &on_frames](size_t, int64_t first, const at::Tensor& pixels) {
    keep(first, pixels);
    const int64_t begin = std::max(first, piece().shared);
    const int64_t end = std::min(first + pixels.size(1), request_.target.frames - piece().first);
    if (begin < end && on_frames)
      on_frames(image_, piece().first + begin, pixels.narrow(1, begin - first, end - begin));
  };
}

// pixels: [C, frames, H, W], the first of which is the piece's frame of that number.
void PieceWalk::keep(int64_t first, const at::Tensor& pixels) {
  const int64_t begin = piece().frames - last_.size(1);
  const int64_t from = std::max(first, begin);
  const int64_t to = std::min(first + pixels.size(1), piece().frames);
  if (from < to)
    last_.narrow(1, from - begin, to - from).copy_(pixels.narrow(1, from - first, to - from));
}

// The first rank has decoded the frames that are shared.
void PieceWalk::next() {
  if (!context_.of.ranks.is_alone() && last_.numel() > 0)
    context_.of.ranks.all->broadcast(last_, 0).wait();
  before_ = last_.size(1) > 0 ? last_.to(context_.of.device) : at::Tensor();
  ++piece_;
  begin_piece();
}

}  // namespace atelier::generate
