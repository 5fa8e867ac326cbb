// Clips that are made in pieces, see Model::pieces().
#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "host/generate/generator.h"

namespace atelier::generate {
namespace {

// The last frames of a piece, as they are decoded.
struct SharedFrames {
  // `frames`: [C, T, H, W], to be filled with the last T of so many.
  SharedFrames(at::Tensor frames_CTHW, int64_t of)
      : frames(std::move(frames_CTHW)), begin(of - frames.size(1)) {}

  // pixels: [C, frames, H, W], the first of which is the piece's frame of that number.
  void add(int64_t first, const at::Tensor& pixels) {
    const int64_t from = std::max(first, begin), to = first + pixels.size(1);
    if (from < to && from < begin + frames.size(1))
      frames.narrow(1, from - begin, to - from).copy_(pixels.narrow(1, from - first, to - from));
  }

  at::Tensor frames;
  int64_t begin;
};

}  // namespace

// Each clip piece by piece, with the noise of its seed and the number of the piece. Of what is made
// no more is kept than the frames that the next piece shares.
void Generator::make_pieces(const Request& request, const Conditionings& of_clip,
                            const OnFrames& on_frames) {
  const int64_t channels = engine_.model.latent_spec().pixel_channels;
  const at::Device host = engine_.device.is_meta() ? at::kMeta : at::kCPU;
  for (size_t image = 0; image < request.seeds.size(); ++image) {
    at::Tensor before;
    for (size_t p = 0; p < request.pieces.size(); ++p) {
      if (engine_.makes_piece && !engine_.makes_piece(p)) continue;
      const Piece& piece = request.pieces[p];
      const PieceInputs inputs = {
          piece, request.read_beside ? request.read_beside(piece) : Inputs(), before};
      Conditionings cond = encode_conditions(request, &inputs);
      for (const auto& [mine, clip] :
           {std::pair(&cond.with, &of_clip.with), std::pair(&cond.without, &of_clip.without)})
        mine->insert(clip->begin(), clip->end());
      Request part = request;
      part.inputs.insert(inputs.beside.begin(), inputs.beside.end());
      part.target.frames = piece.frames;
      part.seeds = {request.seeds[image] + p};
      const int64_t shared = p + 1 < request.pieces.size() ? request.pieces[p + 1].shared : 0;
      SharedFrames last(at::zeros({channels, shared, request.target.height, request.target.width},
                                  at::TensorOptions(host).dtype(at::kFloat)),
                        piece.frames);
      make(part, cond, {}, [&](size_t, int64_t first, const at::Tensor& pixels) {
        last.add(first, pixels);
        const int64_t begin = std::max(first, piece.shared);
        const int64_t end = std::min(first + pixels.size(1), request.target.frames - piece.first);
        if (begin < end)
          on_frames(image, piece.first + begin, pixels.narrow(1, begin - first, end - begin));
      });
      share_frames(last.frames);
      before = shared > 0 ? last.frames.to(engine_.device) : at::Tensor();
    }
  }
}

// The first rank has decoded them.
void Generator::share_frames(const at::Tensor& frames_CTHW) const {
  if (!engine_.ranks.is_alone() && frames_CTHW.numel() > 0)
    engine_.ranks.all->broadcast(frames_CTHW, 0).wait();
}

}  // namespace atelier::generate
