// A weight is a handle: layers own one, draw a tensor from it for one product, and let go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// Where the bytes of a weight rest, and how a tensor is made of them. The host implements others
// than the resident one: streamed, quantised, sharded.
class ATELIER_API WeightStore {
 public:
  virtual ~WeightStore();

  // Returns the weight in compute dtype on the compute device. Valid while the tensor is held; the
  // caller holds it for one operator only, never in the autograd graph. Called from the thread that
  // runs the model and, in the backward pass, from autograd's device thread.
  virtual at::Tensor draw() const = 0;

  // Returns rows `index` (int64, on any device) of a 2-D weight on the compute device. By default
  // it draws and gathers; a store whose table lies elsewhere gathers there, so that only rows
  // cross.
  virtual at::Tensor draw_rows(const at::Tensor& index) const;
};

// One named weight of a module. Its shape is declared at construction; its values come later, from
// the host. Not thread-safe while it is being changed.
class ATELIER_API Weight {
 public:
  Weight(std::string name, std::vector<int64_t> shape);
  ~Weight();
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  const std::string& name() const { return name_; }  // within its module: "weight"
  at::IntArrayRef sizes() const { return shape_; }
  int64_t numel() const;
  bool is_loaded() const { return store_ != nullptr; }

  // Puts `value` behind the handle; it stays on its device, in its dtype.
  // Throws Error{kInvalidArgument} when its shape is another than sizes().
  void set(at::Tensor value);
  void set_store(std::shared_ptr<const WeightStore> store);
  // Where the values come from; null while the weight is not loaded. A store that changes what
  // another one gives holds that one.
  const std::shared_ptr<const WeightStore>& store() const { return store_; }

  // Throws Error{kInternal} when the weight is not loaded.
  at::Tensor draw() const;
  at::Tensor draw_rows(const at::Tensor& index) const;

  // A resident weight that is trained is a leaf of the autograd graph; draw() then gives that leaf.
  // Throws Error{kInvalidArgument} when the weight is not resident.
  void set_trainable(bool trainable);
  bool is_trainable() const { return leaf_.defined(); }
  // Undefined unless the weight is trained and resident.
  const at::Tensor& leaf() const { return leaf_; }

  // Grows with every set(), set_store() and set_trainable(): what was derived from the values is
  // stale when it changed.
  int64_t version() const { return version_; }

  // What an operator made of the values and wants to meet again: a slice, another layout. Undefined
  // when nothing was made of this version().
  at::Tensor derived() const { return derived_version_ == version_ ? derived_ : at::Tensor(); }
  void keep_derived(at::Tensor value) const {
    derived_ = std::move(value), derived_version_ = version_;
  }

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  std::shared_ptr<const WeightStore> store_;
  at::Tensor leaf_;
  int64_t version_ = 0;
  mutable at::Tensor derived_;
  mutable int64_t derived_version_ = -1;
};

using WeightPtr = std::shared_ptr<Weight>;

}  // namespace atelier
