// Products whose rows depend on the noise level alone, so that what is computed ahead has the bits
// of what is computed in each step.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"

namespace atelier::nn {

// A matrix product's bits depend on how many rows it has. With one number of rows always, a level's
// row is the same whatever stands beside it: rows [B, K], padded and cut into groups, are
// [groups, n, K]. Outside training.
ATELIER_API at::Tensor level_groups(const at::Tensor& rows);

// Applies `layer` to rows [B, K], or to the first B rows of level_groups(): returns [B, N].
ATELIER_API at::Tensor of_levels(const Linear& layer, const at::Tensor& rows, int64_t B);

// of_levels() of rows in groups for all `levels`, with the layer's weight drawn once: [levels, N],
// contiguous.
ATELIER_API at::Tensor of_all_levels(const Linear& layer, const at::Tensor& groups, int64_t levels);

// What a layer reads of time: silu(time), or time as it is.
enum class TimeActivation { kSilu, kNone };

// What the blocks of a denoiser take as the noise level: time behind an activation, made in each
// step, or what each block's own layers make of it, computed ahead for a whole schedule. See
// Model::prepare_levels(). The layers outlive this object.
class ATELIER_API NoiseLevels {
 public:
  // Time in channels, [B, K] float32, of noise levels [B]: see time_channels() in waves.h.
  using Channels = std::function<at::Tensor(const at::Tensor& sigma_B)>;

  // time is out(silu(in(channels))). `ends` are what reads it outside of the blocks: behind the
  // last one, or for all of them.
  NoiseLevels(Channels channels, const Linear& in, const Linear& out,
              std::vector<const Linear*> ends,
              TimeActivation end_activation = TimeActivation::kSilu);

  // Adds row 0 of a table, [*, K], to time, before anything reads it. The table outlives this
  // object.
  void add_row(const Embedding& table) { added_ = &table; }

  // `layers` of `block` read nothing but time behind `activation`. Blocks are added in running
  // order.
  void add(Block& block, std::vector<const Linear*> layers,
           TimeActivation activation = TimeActivation::kSilu);

  // The weights of all blocks' layers.
  std::vector<WeightPtr> weights() const;
  void prepare(std::span<const float> sigmas, BlockRunner& runner);
  void forget() { prepared_ = {}; }

  // The noise level of one step, for B samples.
  class ATELIER_API Step {
   public:
    // What block number `i` of those that were added takes: time behind its activation, [B, K] or
    // in groups (see level_groups()), or where levels are prepared what its layers make of it, side
    // by side, [B, sum of N].
    at::Tensor of_block(size_t i) const;
    at::Tensor of_end(size_t i = 0) const;  // what end number `i` makes of time, [B, N]

   private:
    friend class NoiseLevels;
    const at::Tensor& time(TimeActivation activation) const;
    // The rows of a table that the samples have.
    at::Tensor rows_of(const at::Tensor& prepared) const;

    const NoiseLevels* levels_ = nullptr;
    std::vector<int64_t> prepared_;  // of each sample; empty: computed
    at::Tensor time_, silu_;         // silu_ is undefined where nothing reads it
    int64_t samples_ = 0;
  };

  // `level`: which prepared one sigma_B holds; none: it is computed, in `dtype`. So it is, too,
  // where samples have adapters of their own on a layer that reads time. Throws
  // Error{kInvalidArgument} for a level that is not prepared.
  Step step(const at::Tensor& sigma_B, at::ScalarType dtype, std::optional<int64_t> level) const;
  // `levels`: which one each sample has; where any has none, all are computed.
  Step step(const at::Tensor& sigma_B, at::ScalarType dtype,
            std::span<const std::optional<int64_t>> levels) const;

 private:
  // A row for each level.
  struct Prepared {
    int64_t count = 0;
    std::vector<at::Tensor> blocks;  // [count, sum of N]
    std::vector<at::Tensor> ends;    // [count, N]
  };
  struct Reader {
    Block* block;
    std::vector<const Linear*> layers;
    TimeActivation activation;
  };
  // Time of these levels, and silu(time): rows, or outside training groups of them.
  Step time_rows(const at::Tensor& sigma_B, at::ScalarType dtype) const;
  // Whether samples have adapters of their own on a layer that reads time, or makes it.
  bool differs_by_sample() const;

  Channels channels_;
  const Linear &in_, &out_;
  const Embedding* added_ = nullptr;  // null: nothing is added
  std::vector<const Linear*> ends_;
  TimeActivation end_activation_;
  std::vector<Reader> blocks_;
  Prepared prepared_;
};

}  // namespace atelier::nn
