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
  // Captures the generators of the CPU and of every other device among `inputs`.
  static Generators capture(const std::vector<at::Tensor>& inputs);

  // Drops the generators from which nothing was drawn since capture().
  void keep_used();
  // Exchanges the captured states with the current ones of the generators.
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
