#include "side_stream.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "dit.h"

namespace wan {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;

namespace {

constexpr float kCleanLevel = 0.001F;  // timestep 1

}  // namespace

Tensors inputs_of(const SideStream& stream, const Pass& pass) {
  const Embeddings& embeddings = stream.embeddings;
  const at::ScalarType dtype = stream.clip_BCTHW.scalar_type();
  const int64_t B = stream.clip_BCTHW.size(0);
  const int64_t count = stream.clip_BCTHW.size(2) * pass.height * pass.width;
  const Segments each = Segments::uniform(B, count);
  const SharedRows rows{each};
  const at::Tensor angles =
      token_angles(stream.frames, pass.height, pass.width, stream.head_dim, stream.first_column)
          .repeat({B, 1});
  const at::Tensor level = at::full({B}, kCleanLevel, pass.in.sigma_B.options());
  const at::Tensor text = embeddings.text(atelier::pack_entry(pass.in.cond, stream.text), dtype);
  const atelier::PackedRows images = atelier::pack_entry(pass.in.cond, stream.image);
  return {rows.take(embeddings.patches(stream.clip_BCTHW)),
          rows.take(at::cos(angles).to(at::kFloat)),
          rows.take(at::sin(angles).to(at::kFloat)),
          rows.rows().tensor(),
          rows.cut(each).tensor(),
          embeddings.project(embeddings.time(level)),
          text,
          Segments::uniform(B, kTextRows).tensor(),
          stream.images.forward(images, dtype),
          images.rows.tensor()};
}

at::Tensor side_clips(const Pass& pass, const char* name, const std::vector<int64_t>& sizes,
                      const char* hint) {
  Tensors clips;
  for (const atelier::Conditioning* cond : pass.in.cond) {
    const at::Tensor& clip = atelier::named_tensor(*cond, name, 4);
    if (clip.sizes() != sizes)
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           std::string(name) + " of shape " + atelier::shape_text(clip) +
                               ", it does not fit latents of shape " +
                               atelier::shape_text(pass.in.x_BCTHW),
                           hint);
    clips.push_back(clip.to(pass.in.x_BCTHW.scalar_type()));
  }
  return at::stack(clips);
}

}  // namespace wan
