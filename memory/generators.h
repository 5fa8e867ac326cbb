// The random state that a block finds when it runs.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace atelier::memory {

// Default generators that a block may draw from, with their states.
class Generators {
 public:
  // Of the CPU and of every other device among `inputs`.
  static Generators capture(const std::vector<at::Tensor>& inputs);

  // Forgets the generators that were not drawn from since.
  void keep_used();
  // Sets the states, and keeps those that they replace.
  void swap_states();
  void clear() { entries_.clear(); }
  int64_t bytes() const;

 private:
  struct Entry {
    at::Device device;
    at::Generator generator;
    at::Tensor state;
  };

  void add(at::Device device);

  std::vector<Entry> entries_;
};

// Sets the generators' states for a scope.
class RestoreGenerators {
 public:
  explicit RestoreGenerators(const Generators& to) : generators_(to) { generators_.swap_states(); }
  ~RestoreGenerators() { generators_.swap_states(); }
  RestoreGenerators(const RestoreGenerators&) = delete;
  RestoreGenerators& operator=(const RestoreGenerators&) = delete;

 private:
  Generators generators_;
};

}  // namespace atelier::memory
