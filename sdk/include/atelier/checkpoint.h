// The header of a checkpoint: which tensors it holds, without their data.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
};

// One value of the config.json beside a checkpoint. Arrays of numbers only; other arrays are left
// out.
using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<double>>;

// The tensors of one checkpoint (all its shards together) and the config.json beside it, nested
// objects flattened with dots: "text_config.rope_theta". Reading one costs no tensor data.
// Immutable after construction, so it may be read from several threads.
class ATELIER_API TensorIndex {
 public:
  using Tensors = std::map<std::string, TensorMeta, std::less<>>;
  using Config = std::map<std::string, ConfigValue, std::less<>>;

  explicit TensorIndex(Tensors tensors, Config config = {});

  const Tensors& tensors() const { return tensors_; }
  const Config& config() const { return config_; }

  bool contains(std::string_view name) const { return find(name) != nullptr; }

  // Returns nullptr when the checkpoint has no tensor of that name.
  const TensorMeta* find(std::string_view name) const;

  // Returns the length of one axis. Throws Error{kNotFound} when the tensor is absent, and
  // Error{kInvalidArgument} when it has no such axis.
  int64_t dim(std::string_view name, int axis) const;

  // Returns how many consecutive block numbers, from 0, appear in place of `{}`:
  // block_count("transformer_blocks.{}.attn.to_q.weight") is 60 where blocks 0 to 59 are there.
  int64_t block_count(std::string_view pattern) const;

  // Values of config.json; nullopt when it is absent or of another type (an integer reads as a
  // real).
  std::optional<int64_t> config_integer(std::string_view key) const;
  std::optional<double> config_real(std::string_view key) const;
  std::optional<std::string> config_text(std::string_view key) const;
  std::optional<std::vector<int64_t>> config_integers(std::string_view key) const;

 private:
  Tensors tensors_;
  Config config_;
};

}  // namespace atelier
