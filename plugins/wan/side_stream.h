// A clip whose rows go through blocks beside those of the latents: clean, and with a text, an image
// and places of its own.
#pragma once

#include "atelier/named_inputs.h"

#include "addition.h"
#include "dit_block.h"

namespace wan {

class Embeddings;

struct SideStream {
  const Embeddings& embeddings;
  const ImageEmbedding& images;
  int64_t head_dim;
  at::Tensor clip_BCTHW;     // as the embedding of patches takes it
  at::Tensor frames;         // positions of its frames, float64 [T]
  int64_t first_column = 0;  // position
  const char *text, *image;  // entries of the conditionings
};

// Inputs of the first block, those of DitBlock up to kImageOffsets.
atelier::Tensors inputs_of(const SideStream& stream, const Pass& pass);

// Entry `name` of each sample, [C, T, H, W], in the latents' dtype: [B, C, T, H, W]. Throws
// Error{kInvalidArgument} unless each has these sizes.
at::Tensor side_clips(const Pass& pass, const char* name, const std::vector<int64_t>& sizes,
                      const char* hint);

}  // namespace wan
