// Builds a tree from JSON events; for handlers that keep only part of a text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/json.h"
#include "formats/json_reader.h"

namespace atelier::formats {

class JsonTreeBuilder : public JsonHandler {
 public:
  explicit JsonTreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  void on_null() override;
  void on_boolean(bool value) override;
  void on_unsigned(uint64_t value) override;
  void on_negative(int64_t value) override;
  void on_real(double value, const std::string& text) override;
  void on_string(std::string& value) override;
  void on_start_object() override;
  void on_key(std::string& key) override;
  void on_end_object() override;
  void on_start_array() override;
  void on_end_array() override;

  // The tree, once the text has ended. Leaves the builder empty.
  nlohmann::json take() { return std::move(root_); }

 private:
  struct Open {
    nlohmann::json* value;
    std::string key;
  };

  void count();
  nlohmann::json* add(nlohmann::json value);

  const JsonLimits limits_;
  uint64_t values_ = 0;
  nlohmann::json root_;
  std::vector<Open> open_;
};

}  // namespace atelier::formats
