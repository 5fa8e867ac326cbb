// The header of a checkpoint: which tensors it holds, without their data.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
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

// One value of the config.json beside a checkpoint. An array of true and false has 1 and 0, and an
// array of anything else is its JSON text.
using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<double>,
                                 std::vector<std::string>, std::nullptr_t>;

// The value as messages show it: texts are quoted and escaped, long lists are cut.
ATELIER_API std::string to_text(const ConfigValue& value);

// Whether two values say the same: the integer 1 and the real 1.0 do, and empty lists do.
ATELIER_API bool is_same(const ConfigValue& a, const ConfigValue& b);

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

  // Values of config.json; nullopt when there is no such field. An integer reads as a real, and a
  // whole real as an integer. Throws Error{kInvalidArgument}, naming the field, for a value of
  // another type; null is one, unless has_null() is asked first.
  std::optional<bool> config_flag(std::string_view key) const;
  std::optional<int64_t> config_integer(std::string_view key) const;
  std::optional<double> config_real(std::string_view key) const;
  std::optional<std::vector<int64_t>> config_integers(std::string_view key) const;
  std::optional<std::vector<double>> config_reals(std::string_view key) const;
  std::optional<std::vector<std::string>> config_texts(std::string_view key) const;
  bool has_null(std::string_view key) const;

 private:
  Tensors tensors_;
  Config config_;
};

}  // namespace atelier
