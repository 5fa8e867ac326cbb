// A weight is a handle: layers own one, draw a tensor from it for one product, and let go.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// A matrix whose row r is codes[r] * scales[r].
struct RowCodes {
  at::Tensor codes;   // [rows, columns], float8_e4m3fn or int8, on the compute device
  at::Tensor scales;  // [rows], float32
};

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

  // Where products are to be made in 8 bits: what they are made of. By default nullopt: draw().
  virtual std::optional<RowCodes> draw_codes() const;
};

// Takes the gradients of a weight that is trained and does not rest on the compute device.
class ATELIER_API GradientSink {
 public:
  virtual ~GradientSink();

  // Adds a gradient of the weight's shape, on the compute device. Called in the backward pass, from
  // autograd's device thread.
  virtual void add(const at::Tensor& gradient) = 0;
};

struct WeightOptions {
  // The weight is loaded, drawn and trained in float32, whatever its component computes in, and
  // never stored in 8 bits. For the few whose rounding shows: modulation tables, norms, embeddings
  // of the noise level.
  bool keeps_float32 = false;
};

// One named weight of a module. Its shape is declared at construction; its values come later, from
// the host. Not thread-safe while it is being changed.
class ATELIER_API Weight {
 public:
  Weight(std::string name, std::vector<int64_t> shape, WeightOptions options = {});
  ~Weight();
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  const std::string& name() const { return name_; }  // within its module: "weight"
  at::IntArrayRef sizes() const { return shape_; }
  int64_t numel() const;
  bool keeps_float32() const { return options_.keeps_float32; }
  // In what it is drawn where its component computes in `dtype`.
  at::ScalarType drawn_dtype(at::ScalarType dtype) const {
    return options_.keeps_float32 ? at::kFloat : dtype;
  }
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
  // See WeightStore::draw_codes(); nullopt for a weight that is trained.
  std::optional<RowCodes> draw_codes() const;

  // A resident weight that is trained is a leaf of the autograd graph; draw() then gives that leaf.
  // Throws Error{kInvalidArgument} when the weight is not resident.
  void set_trainable(bool trainable);
  bool is_trainable() const { return leaf_.defined(); }
  // Undefined unless the weight is trained and resident.
  const at::Tensor& leaf() const { return leaf_; }

  // A weight that is trained elsewhere has a sink. Its values are drawn as ever; while a block is
  // run again in the backward pass, a leaf that is lent stands for it in the graph, and what comes
  // back to that goes to the sink.
  void set_sink(std::shared_ptr<GradientSink> sink) { sink_ = std::move(sink); }
  const std::shared_ptr<GradientSink>& sink() const { return sink_; }
  // Undefined: takes it back.
  void lend_leaf(at::Tensor leaf) { leaf_ = std::move(leaf); }

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
  WeightOptions options_;
  std::shared_ptr<const WeightStore> store_;
  at::Tensor leaf_;
  std::shared_ptr<GradientSink> sink_;
  int64_t version_ = 0;
  mutable at::Tensor derived_;
  mutable int64_t derived_version_ = -1;
};

using WeightPtr = std::shared_ptr<Weight>;

}  // namespace atelier
