// The processes that each keep a part of every slab, and bring the parts together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace atelier::memory {

// Parts of a slab are made up of so many bytes. A tensor of so many numbers or more begins at a
// multiple of that, too: what is computed in blocks of 256 numbers stays so in the slices that
// parts have of it. Smaller ones are computed number by number.
inline constexpr int64_t kPartBytes = 1024;
inline constexpr int64_t kLeastInBlocks = 4096;

// All of them gather the same slabs in the same order. Called by one thread at a time.
class SlabPeers {
 public:
  virtual ~SlabPeers();

  virtual int64_t rank() const = 0;  // of this process
  virtual int64_t size() const = 0;

  // Begins to fill `whole`, uint8 on the compute device, with the parts of all processes, one after
  // the other, of the slab of that name; `part` is this one's, which may lie at its place in
  // `whole`. Returns at once. What it returns is called once, by any thread: it waits, on a GPU the
  // current stream does, and throws where another process is lost. A gather may be left without it.
  virtual std::function<void()> gather(const std::string& name, const at::Tensor& whole,
                                       const at::Tensor& part) = 0;
};

}  // namespace atelier::memory
