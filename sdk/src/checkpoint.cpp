#include "atelier/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"

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

// Reals up to 2^53 that are whole numbers.
std::optional<int64_t> whole(double value) {
  if (!(std::abs(value) <= 9007199254740992.0) || value != std::trunc(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// The number that a value is.
std::optional<double> number(const ConfigValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return std::nullopt;
}

bool is_empty_list(const ConfigValue& value) {
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  return (numbers && numbers->empty()) || (texts && texts->empty());
}

// What `read` makes of the field `key`; it gives nullopt for a value that is no `expected`.
template <class T, class Read>
std::optional<T> read_field(const TensorIndex::Config& config, std::string_view key,
                            const char* expected, Read read) {
  const auto it = config.find(key);
  if (it == config.end()) return std::nullopt;
  std::optional<T> result = read(it->second);
  if (!result)
    throw Error(ErrorCode::kInvalidArgument,
                "config field " + std::string(key) + " is " + to_text(it->second) + ", " +
                    expected + " expected",
                "pass the config.json that belongs to the checkpoint", "CONFIG_FIELD");
  return result;
}

template <class T>
std::optional<T> held(const ConfigValue& value) {
  const auto* found = std::get_if<T>(&value);
  return found ? std::optional<T>(*found) : std::nullopt;
}

std::optional<int64_t> integer(const ConfigValue& value) {
  if (const auto found = held<int64_t>(value)) return found;
  const auto real = held<double>(value);
  return real ? whole(*real) : std::nullopt;
}

std::optional<std::vector<int64_t>> integers(const ConfigValue& value) {
  if (is_empty_list(value)) return std::vector<int64_t>();
  const auto reals = held<std::vector<double>>(value);
  if (!reals) return std::nullopt;
  std::vector<int64_t> result;
  for (const double real : *reals) {
    const auto number = whole(real);
    if (!number) return std::nullopt;
    result.push_back(*number);
  }
  return result;
}

template <class T>
std::optional<std::vector<T>> list(const ConfigValue& value) {
  if (is_empty_list(value)) return std::vector<T>();
  return held<std::vector<T>>(value);
}

}  // namespace

std::string to_text(const ConfigValue& value) {
  static constexpr size_t kShown = 4;
  const auto one = [](const auto& item) {
    using Item = std::decay_t<decltype(item)>;
    if constexpr (std::is_same_v<Item, std::string>) {
      return formats::quote_and_escape(item, 60);
    } else {
      return nlohmann::json(item).dump();
    }
  };
  const auto list = [&](const auto& items) {
    std::string text = "[";
    for (size_t i = 0; i < std::min(items.size(), kShown); ++i)
      text += (i > 0 ? ", " : "") + one(items[i]);
    return text + (items.size() > kShown ? ", …]" : "]");
  };
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return list(*numbers);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return list(*texts);
  return std::visit(
      [&](const auto& item) -> std::string {
        if constexpr (std::is_constructible_v<nlohmann::json, decltype(item)>) return one(item);
        return {};
      },
      value);
}

bool is_same(const ConfigValue& a, const ConfigValue& b) {
  if (a == b || (is_empty_list(a) && is_empty_list(b))) return true;
  const auto x = number(a), y = number(b);
  return x && y && *x == *y;
}

std::optional<bool> TensorIndex::config_flag(std::string_view key) const {
  return read_field<bool>(config_, key, "true or false", held<bool>);
}

std::optional<int64_t> TensorIndex::config_integer(std::string_view key) const {
  return read_field<int64_t>(config_, key, "an integer", integer);
}

std::optional<double> TensorIndex::config_real(std::string_view key) const {
  return read_field<double>(config_, key, "a number", number);
}

std::optional<std::vector<int64_t>> TensorIndex::config_integers(std::string_view key) const {
  return read_field<std::vector<int64_t>>(config_, key, "a list of integers", integers);
}

std::optional<std::vector<double>> TensorIndex::config_reals(std::string_view key) const {
  return read_field<std::vector<double>>(config_, key, "a list of numbers", list<double>);
}

std::optional<std::vector<std::string>> TensorIndex::config_texts(std::string_view key) const {
  return read_field<std::vector<std::string>>(config_, key, "a list of texts", list<std::string>);
}

bool TensorIndex::has_null(std::string_view key) const {
  const auto it = config_.find(key);
  return it != config_.end() && std::holds_alternative<std::nullptr_t>(it->second);
}

}  // namespace atelier
