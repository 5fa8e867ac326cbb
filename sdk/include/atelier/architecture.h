// The numbers of an architecture: a struct of the family, and the entries of Detection::config that
// make it again.
#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "atelier/model_family.h"

namespace atelier {

// A struct of numbers names its fields once, for both ways. A field is a bool, an int64_t, a
// double, a vector of one of these, or an array of integers:
//
//   struct DitConfig {
//     int64_t layers, width;
//     std::array<int64_t, 3> axes;
//     template <class Fields>
//     void visit(Fields&& fields) {
//       fields("layers", layers), fields("width", width), fields("axes", axes);
//     }
//   };

// The struct that a detection holds. Throws when the detection lacks one of its fields.
template <class Config>
Config config_of(const Detection& part) {
  Config config{};
  config.visit([&]<class Field>(const char* key, Field& field) {
    if constexpr (std::is_same_v<Field, int64_t>) {
      field = part.integer(key);
    } else if constexpr (std::is_same_v<Field, double>) {
      field = part.real(key);
    } else if constexpr (std::is_same_v<Field, bool>) {
      field = std::get<bool>(part.config.at(key));
    } else {
      const auto& list = std::get<std::vector<double>>(part.config.at(key));
      if constexpr (requires { field.resize(list.size()); }) field.resize(list.size());
      for (size_t i = 0; i < field.size(); ++i)
        field[i] = static_cast<typename Field::value_type>(list.at(i));
    }
  });
  return config;
}

// The detection that holds a struct. Its variant is left empty: ComponentFamily has a default.
template <class Config>
Detection detection_of(std::string component, std::string spelling, Config config,
                       std::string prefix = {}) {
  TensorIndex::Config numbers;
  config.visit([&]<class Field>(const char* key, const Field& field) {
    if constexpr (std::is_arithmetic_v<Field>) {
      numbers[key] = field;
    } else {
      numbers[key] = std::vector<double>(field.begin(), field.end());
    }
  });
  return {std::move(component), {}, std::move(prefix), std::move(spelling), std::move(numbers)};
}

}  // namespace atelier
