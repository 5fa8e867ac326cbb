// Optimizers behind one interface: AdamW, AdamW with 8-bit moments, Adafactor and Prodigy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"

namespace atelier::optim {

// A part of a tensor of which other processes have the rest: the numbers from `begin` on, counted
// flat.
struct Shard {
  std::vector<int64_t> whole_sizes;
  int64_t begin = 0;
};
using Shards = std::map<std::string, Shard>;

// A trained tensor. `leaf` is a leaf of the autograd graph; its gradient is leaf.grad().
struct Parameter {
  std::string name;  // "dit.transformer_blocks.0.attn.to_q.weight": names its state in checkpoints
  at::Tensor leaf;
  // Where `leaf`, of one axis, is no whole tensor. It begins at a multiple of 8, or at
  // one of kQuantizedBlock where the whole has kLeastQuantized numbers. All processes have
  // all parameters in the same order, with a gradient or without one; a shard may be empty.
  std::optional<Shard> shard = {};
  // Where `leaf` is the float32 master of values that rest elsewhere: their dtype, which gradients
  // have, too. The optimizer keeps no other master then; who uses the values rounds them.
  std::optional<at::ScalarType> master_of = {};

  at::ScalarType dtype() const { return master_of.value_or(leaf.scalar_type()); }
  int64_t whole_numel() const;
};

// Adds up over the processes what each has of its shards, in place: with the same bits on all.
using Sum = std::function<void(at::Tensor& value)>;

struct Group {
  std::vector<Parameter> parameters;
  double lr_scale = 1.0;  // times the step's learning rate (LoRA+)
  double weight_decay = 0.0;
};

enum class Kind { kAdamW, kAdamW8bit, kAdafactor, kProdigy };

// How leaves of less than 32 bits are moved. Leaves of float32 need neither.
enum class MasterWeights {
  kFp32,        // a float32 copy is moved, the leaf is its rounding
  kStochastic,  // the leaf is moved in float32 and rounded up or down at random, right on average
};

struct Options {
  Kind kind = Kind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adafactor has none of them
  MasterWeights master_weights = MasterWeights::kFp32;
  uint64_t seed = 0;  // of stochastic rounding
  // Adafactor (Shazeer and Stern 2018) as in transformers: relative_step off, the learning rate is
  // the schedule's.
  double clip_threshold = 1.0, decay_rate = -0.8, adafactor_eps1 = 1e-30, adafactor_eps2 = 1e-3;
  bool scale_parameter = false;
  // Prodigy (Mishchenko and Defazio 2024): the learning rate is a factor, usually 1.
  double prodigy_d0 = 1e-6, prodigy_d_coef = 1.0;
  bool prodigy_use_bias_correction = false, prodigy_safeguard_warmup = false;
  std::optional<double> prodigy_beta3 = {};
};

// Throws Error{kInvalidArgument} naming a number that makes no sense; make_optimizer does so too.
void check_options(const Options& options);

// Not thread-safe. Weight decay is decoupled (AdamW's) in all of them.
class Optimizer {
 public:
  virtual ~Optimizer();

  // Moves every parameter that has a gradient. No value is read back to the host.
  // grad_scale: float32 scalar on the parameters' device; gradients count divided by it (clipping),
  // and may be divided in place.
  // is_skipped: float32 scalar there; when it is 1 nothing changes: neither parameters nor state.
  virtual void step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) = 0;

  // Whether one parameter's move depends on no other one's, so that a step may be made in parts.
  virtual bool has_parts() const { return false; }
  // Moves some of the parameters, given by their places over all groups, in any order; step() then
  // ends the step for those that still have gradients, to the bits of a whole step. May be called
  // on another thread than step(), not at the same time.
  virtual void step_part(std::span<const size_t> places, double lr, const at::Tensor& grad_scale,
                         const at::Tensor& is_skipped);

  // Everything that a later step depends on beside the leaves: names are the parameters' with the
  // kind of state behind: "NAME.exp_avg". Shares storage.
  virtual NamedTensors state() const = 0;
  // Throws Error{kInvalidArgument} naming what is missing, unexpected or of another shape; the
  // state is then as before.
  virtual void load_state(const NamedTensors& state) = 0;

  // Values of state() that are shards: of what a whole parameter has. By name.
  virtual Shards shards() const { return {}; }

  // Bytes of state beside the leaves.
  virtual int64_t state_bytes() const = 0;
  // Most bytes that a step holds beside leaves, gradients and state, at one time.
  virtual int64_t step_bytes() const = 0;

  // What is worth a line in the log: Prodigy's d. Reads back from the device.
  virtual std::map<std::string, double> metrics() const { return {}; }
};

// `groups` hold the leaves for as long as the optimizer lives. Leaves are float32, or, with
// master_weights, bfloat16 or float16. Throws Error{kUnsupported} for others, and for shards of a
// kind that moves none, see moves_shards(). `sum`: of parameters that are shards; all processes
// make the same steps then.
std::unique_ptr<Optimizer> make_optimizer(std::vector<Group> groups, const Options& options,
                                          Sum sum = {});
// Whether it moves a shard as it would move that part of the whole.
bool moves_shards(Kind kind);

// What the step needs to know of the gradients, on the device: nothing is read back.
struct GradientNorm {
  at::Tensor norm;        // float32 scalar: L2 over all gradients
  at::Tensor grad_scale;  // float32 scalar: max(1, norm / max_norm); 1 when max_norm is 0
  at::Tensor is_skipped;  // float32 scalar: 1 when the norm or `loss` is not finite, else 0
};
// loss: float32 scalar on the device, or undefined. max_norm: 0 turns clipping off. measured: norms
// of gradients that were there, of parameters on the CPU, by name: see gradient_norms(). sum: as of
// make_optimizer().
GradientNorm measure_gradients(const std::vector<Group>& groups, const at::Tensor& loss,
                               double max_norm, const NamedTensors& measured = {},
                               const Sum& sum = {});
// L2 of each, float32 scalars. The gradients are of one device and dtype.
std::vector<at::Tensor> gradient_norms(const std::vector<at::Tensor>& gradients);

}  // namespace atelier::optim
