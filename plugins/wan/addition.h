// What runs between the denoiser's blocks: adapters of its own file, and controls beside it.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/block.h"
#include "atelier/model.h"
#include "atelier/shared_rows.h"

namespace wan {

class DitBlock;

// Conditioning: says by being there that the sample runs without block kSkippedBlock, as the
// negative branch of some models does.
inline constexpr const char* kSkipsBlock = "skips_block";
inline constexpr int64_t kSkippedBlock = 9;

// Rows of a sample that are not those of its latents.
struct Stretch {
  at::Tensor rows_LD;  // as the embedding of patches gives them
  // How positions turn heads, [L, head_dim / 2] float64, see token_angles(). Asked for once beside
  // latents of one size: they do not depend on values.
  std::function<at::Tensor()> angles;
  bool is_clean = false;  // told noise level 0, else that of the sample
};

// Angles of tokens in rows from 0, columns from `first_column`, and in frames at `frame_positions`,
// float64 [T], of the positions. Returns [T height width, head_dim / 2] float64.
at::Tensor token_angles(const at::Tensor& frame_positions, int64_t height, int64_t width,
                        int64_t head_dim, int64_t first_column = 0);
// Angles of tokens whose rows and columns have positions of their own, too.
at::Tensor token_angles(const at::Tensor& frame_positions, const at::Tensor& row_positions,
                        const at::Tensor& column_positions, int64_t head_dim);

// One call of the denoiser, between two of its blocks. Each sample's rows are stretches in front,
// its latents' frames x height x width tokens, and stretches behind.
struct Pass {
  const atelier::DenoiseInputs& in;
  atelier::BlockRunner& runner;
  int64_t frames, height, width;       // tokens of the latents
  const atelier::SharedRows& rows;     // of all samples, shared out among ranks
  std::vector<int64_t> front, behind;  // how many rows each sample has around its latents
  std::vector<at::Tensor> context;     // what each block reads beside its rows, see DitBlock::Input
  at::Tensor x;                        // [N, D], this rank's rows

  // Values of the latents' tokens, [B T H W, ...], among all rows: zeros elsewhere, and this rank's
  // alone.
  at::Tensor placed(const at::Tensor& of_tokens) const;
};

class Addition {
 public:
  virtual ~Addition() = default;
  // The stretches around a sample's latents. By default none.
  virtual std::vector<Stretch> front(const atelier::DenoiseInputs& in, int64_t sample);
  virtual std::vector<Stretch> behind(const atelier::DenoiseInputs& in, int64_t sample);
  // The positions of the latents' frames, float64 [T], that are `counted` from 0. They depend on
  // nothing else.
  virtual at::Tensor frame_positions(const at::Tensor& counted_T) const;
  // In front of the first block; may change rows and context.
  virtual void begin(Pass& pass);
  // In place of block `index`. Returns false, and does nothing, where that runs as it is.
  virtual bool replace(int64_t index, DitBlock& block, Pass& pass);
  // Behind block `index`.
  virtual void after(int64_t index, Pass& pass);
};

}  // namespace wan
