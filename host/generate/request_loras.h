// LoRAs of requests, as the engine uses them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atelier/host/sample_scope.h"

#include "host/lora/selection.h"

namespace atelier::generate {

using Loras = std::vector<lora::LoraRef>;

// See lora::Registry. Not thread-safe.
class RequestLoras {
 public:
  virtual ~RequestLoras() = default;
  // Makes `set` the LoRAs of the model, and no others.
  virtual void use(const Loras& set) = 0;
  // Reads what of the files of `set` is not in memory as it is on the disk; uses nothing of it.
  virtual void read(const Loras& set) = 0;
  // Whether `set` changes anything but denoisers.
  virtual bool changes_others(const Loras& set) = 0;
  // Whether samples with these sets can be in one call of the denoiser.
  virtual bool can_share(std::span<const Loras> sets) = 0;
  // Makes ready for calls whose samples have one of these sets each, not all the same. Returns how
  // much each LoRA counts in each set: what an ops::SampleScope is made of.
  virtual std::optional<ops::SampleStrengths> use_each(std::span<const Loras> sets) = 0;
  // Changes when levels that were prepared are stale.
  virtual uint64_t version() const = 0;
};

}  // namespace atelier::generate
