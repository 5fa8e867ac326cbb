// Clips that are made in pieces, see Model::pieces().
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "host/generate/decoding.h"
#include "host/generate/encoding.h"
#include "host/generate/engine_context.h"
#include "host/generate/material.h"

namespace atelier::generate {

// Each clip of a request piece by piece, with the noise of its seed and the number of the piece. Of
// what is made no more is kept than the frames that the next piece shares. Not thread-safe.
class PieceWalk {
 public:
  // At the first piece. Both outlive it.
  PieceWalk(const Request& request, EngineContext& context);

  bool is_at_end() const { return image_ == request_.seeds.size(); }
  // The piece, with what all pieces have in common.
  Material encode(Encoder& encoder, const Conditionings& of_clip) const;
  // What is given the piece's frames, and gives `on_frames` those of the clip.
  OnFrames into(const OnFrames& on_frames);
  // Goes on behind a piece that is decoded.
  void next();

 private:
  const Piece& piece() const { return request_.pieces[piece_]; }
  void begin_piece();
  void keep(int64_t first, const at::Tensor& pixels);

  const Request& request_;
  EngineContext& context_;
  size_t image_ = 0, piece_ = 0;
  at::Tensor before_;  // frames that the piece shares with the one before; undefined: none
  at::Tensor last_;  // [C, T, H, W], on the host: the last frames of the piece, as they are decoded
};

}  // namespace atelier::generate
