// What the optimizers have in common: parameters, master weights and named state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "host/optim/optimizer.h"
#include "host/optim/rounding.h"

namespace atelier::optim {

// A parameter and what every optimizer keeps of it.
struct Slot {
  std::string name;
  at::Tensor leaf;
  at::ScalarType dtype = at::kFloat;  // of the values
  at::Tensor master;  // float32; undefined where the leaf itself is moved, or a copy
  at::Tensor step;    // float32 scalar on the leaf's device: how often it was moved
  double lr_scale = 1.0, weight_decay = 0.0;
  uint32_t index = 0;  // among all parameters
  int64_t whole_numel = 0;
  std::optional<Shard> shard;
};

// What one step is told, on each device that has parameters.
class StepScalars {
 public:
  struct OnDevice {
    at::Tensor grad_scale, is_skipped;
    at::Tensor keeps;  // bool: is_skipped
    at::Tensor count;  // 1 - is_skipped
  };

  StepScalars(const at::Tensor& grad_scale, const at::Tensor& is_skipped);
  const OnDevice& on(at::Device device);

 private:
  std::vector<std::pair<at::Device, OnDevice>> devices_;
};

class OptimizerBase : public Optimizer {
 public:
  NamedTensors state() const override { return state_; }
  Shards shards() const override { return shards_; }
  void load_state(const NamedTensors& state) override;
  int64_t state_bytes() const override;
  int64_t step_bytes() const override;  // of one parameter after the other

 protected:
  // Throws Error{kUnsupported} for leaves that cannot be moved.
  OptimizerBase(const std::vector<Group>& groups, const Options& options);

  // Float32 tensors as large as the parameter that exist at one time while it is moved.
  virtual int64_t step_copies(size_t i) const = 0;
  int64_t bytes_of_copies(size_t i) const {
    return step_copies(i) * static_cast<int64_t>(sizeof(float)) * slots_[i].leaf.numel();
  }

  // Registers `value` as state. Returns it.
  at::Tensor add_state(const std::string& name, at::Tensor value);
  // Registers a value of which one number belongs to each `per` of the leaf's.
  at::Tensor add_part(const Slot& slot, std::string_view what, at::Tensor value, int64_t per = 1);
  // Zeros beside the leaf.
  at::Tensor add_zeros(const Slot& slot, std::string_view what, at::IntArrayRef shape);
  // Adds zeros, one for each of the leaf's numbers.
  at::Tensor add_zeros_like(const Slot& slot, std::string_view what,
                            at::ScalarType dtype = at::kFloat);

  // The float32 tensor that a step moves in place: the leaf, its master, or a copy.
  at::Tensor moved_value(const Slot& slot) const;
  // The key of what is rounded at random in this step. There is such a leaf.
  RoundingKey rounding_key(const Slot& slot) const;
  // Writes the moved value back to the leaf.
  void store(const Slot& slot, const at::Tensor& value);
  // The gradient in float32, contiguous; shares storage where it can.
  static at::Tensor gradient(const Slot& slot);
  // Ends a step of which `is_skipped` was told.
  void end_step(const at::Tensor& is_skipped);

  Options options_;
  std::vector<Slot> slots_;

 private:
  void add_slot(const Parameter& parameter, const Group& group);

  NamedTensors state_;
  Shards shards_;
  // int64 scalar on the CPU, in the key of stochastic rounding: how many steps were made.
  at::Tensor rounding_step_;
  std::vector<std::pair<at::Device, at::Generator>> generators_;
};

// "NAME.what".
std::string state_name(const Slot& slot, std::string_view what);

// Puts `value` to `target` unless `keeps`; to the bit as it was otherwise.
void assign_unless(const at::Tensor& keeps, at::Tensor target, const at::Tensor& value);

// Copies values by name. Throws Error{kInvalidArgument} that begins with `what` and says all that
// is missing, unexpected or of another shape or dtype; nothing is copied then.
void copy_state(const std::string& what, const NamedTensors& from, const NamedTensors& to);

std::unique_ptr<Optimizer> make_adamw(const std::vector<Group>& groups, const Options& options);
std::unique_ptr<Optimizer> make_adafactor(const std::vector<Group>& groups, const Options& options);
std::unique_ptr<Optimizer> make_prodigy(const std::vector<Group>& groups, const Options& options,
                                        Sum sum);

}  // namespace atelier::optim
