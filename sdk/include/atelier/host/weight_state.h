// What host and operators see of a weight: where its values come from, and what trains it. Not for
// plugins: see sdk/README.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/weight.h"

namespace atelier {

namespace lora {
class AddedWeight;  // host/lora/added_weight.h
}

// A matrix whose row r is codes[r] * scales[r].
struct RowCodes {
  at::Tensor codes;   // [rows, columns], float8_e4m3fn or int8, on the compute device
  at::Tensor scales;  // [rows], float32
};

// Where the bytes of a weight rest, and how a tensor is made of them: resident, streamed,
// quantised, sharded. What else the host wants to know of one, it asks.
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

  // Whether draw() gives the one tensor that rests on the compute device, so that it can be trained
  // there. By default not.
  virtual bool is_resident() const;

  // The tensors that it makes the weight of, where they can rest elsewhere: over() makes the same
  // store of copies of them. By default there are none.
  virtual std::vector<at::Tensor> parts() const;
  // `copies`: of parts(), in their order. Throws Error{kInternal} where there are none.
  virtual std::shared_ptr<const WeightStore> over(std::vector<at::Tensor> copies) const;

  // What LoRAs add to another store's values; null: nothing.
  virtual const lora::AddedWeight* added() const;

  // Hands out a matrix piece by piece, in order along `axis`, rows (0) or columns (1), each with
  // the number of its first row or column: pieces are made anew and stay in the processor's cache
  // until they are multiplied. A piece is valid until `use` returns. By default, and where pieces
  // win nothing, false without a call.
  using UsePiece = std::function<void(int64_t begin, const at::Tensor& piece)>;
  virtual bool draw_pieces(int64_t axis, const UsePiece& use) const;
};

// Takes the gradients of a weight that is trained and does not rest on the compute device.
class ATELIER_API GradientSink {
 public:
  virtual ~GradientSink();

  // Adds a gradient of the weight's shape, on the compute device. Called in the backward pass, from
  // autograd's device thread.
  virtual void add(const at::Tensor& gradient) = 0;
};

// Behind Weight::state(). Not thread-safe while it is being changed.
class ATELIER_API WeightState {
 public:
  WeightState(std::string name, std::vector<int64_t> shape, WeightOptions options);
  ~WeightState();
  WeightState(const WeightState&) = delete;
  WeightState& operator=(const WeightState&) = delete;

  void set_store(std::shared_ptr<const WeightStore> store);
  // Where the values come from; null while the weight is not loaded. A store that changes what
  // another one gives holds that one.
  const std::shared_ptr<const WeightStore>& store() const { return store_; }

  // See WeightStore::draw_codes(); nullopt for a weight that is trained.
  std::optional<RowCodes> draw_codes() const;
  // See WeightStore::draw_pieces(); false for a weight that is trained.
  bool draw_pieces(int64_t axis, const WeightStore::UsePiece& use) const;

  // A resident weight that is trained is a leaf of the autograd graph; Weight::draw() then gives
  // that leaf. Throws Error{kInvalidArgument} when the weight is not resident.
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

  // Grows with every set_store() and set_trainable(): what was derived from the values is stale
  // when it changed.
  int64_t version() const { return version_; }

  // What an operator made of the values and wants to meet again: a slice, another layout. Undefined
  // when nothing was made of this version().
  at::Tensor derived() const { return derived_version_ == version_ ? derived_ : at::Tensor(); }
  void keep_derived(at::Tensor value) const {
    derived_ = std::move(value), derived_version_ = version_;
  }

 private:
  friend class Weight;
  const WeightStore& loaded() const;

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

}  // namespace atelier
