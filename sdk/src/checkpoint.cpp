#include "atelier/checkpoint.h"

#include <cmath>

#include "atelier/error.h"

namespace atelier {

TensorIndex::TensorIndex(Tensors tensors, Config config)
    : tensors_(std::move(tensors)), config_(std::move(config)) {}

const TensorMeta* TensorIndex::find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

int64_t TensorIndex::dim(std::string_view name, int axis) const {
  const TensorMeta* meta = find(name);
  if (meta == nullptr)
    throw Error(ErrorCode::kNotFound, "tensor '" + std::string(name) + "' is missing");
  if (axis < 0 || axis >= static_cast<int>(meta->shape.size()))
    throw Error(ErrorCode::kInvalidArgument,
                "tensor '" + std::string(name) + "' has " + std::to_string(meta->shape.size()) +
                    " axes, axis " + std::to_string(axis) + " is asked for");
  return meta->shape[static_cast<size_t>(axis)];
}

int64_t TensorIndex::block_count(std::string_view pattern) const {
  const size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos)
    throw Error(ErrorCode::kInternal,
                "block_count needs a pattern with {}, not '" + std::string(pattern) + "'");
  for (int64_t count = 0;; ++count) {
    std::string name(pattern.substr(0, hole));
    name += std::to_string(count);
    name += pattern.substr(hole + 2);
    if (!contains(name)) return count;
  }
}

namespace {
const ConfigValue* lookup(const TensorIndex::Config& config, std::string_view key) {
  auto it = config.find(key);
  return it == config.end() ? nullptr : &it->second;
}

// Reals up to 2^53 that are whole numbers.
std::optional<int64_t> whole(double value) {
  if (!(std::abs(value) <= 9007199254740992.0) || value != std::trunc(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}
}  // namespace

std::optional<int64_t> TensorIndex::config_integer(std::string_view key) const {
  const ConfigValue* value = lookup(config_, key);
  const auto* integer = value != nullptr ? std::get_if<int64_t>(value) : nullptr;
  return integer != nullptr ? std::optional(*integer) : std::nullopt;
}

std::optional<double> TensorIndex::config_real(std::string_view key) const {
  const ConfigValue* value = lookup(config_, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* real = std::get_if<double>(value)) return *real;
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::optional<std::string> TensorIndex::config_text(std::string_view key) const {
  const ConfigValue* value = lookup(config_, key);
  const auto* text = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  return text != nullptr ? std::optional(*text) : std::nullopt;
}

std::optional<std::vector<int64_t>> TensorIndex::config_integers(std::string_view key) const {
  const ConfigValue* value = lookup(config_, key);
  const auto* reals = value != nullptr ? std::get_if<std::vector<double>>(value) : nullptr;
  if (reals == nullptr) return std::nullopt;
  std::vector<int64_t> result;
  for (double real : *reals) {
    auto integer = whole(real);
    if (!integer) return std::nullopt;
    result.push_back(*integer);
  }
  return result;
}

}  // namespace atelier
