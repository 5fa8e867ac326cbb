// Names and shapes of published files, from tests/data/keys.
#pragma once

#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "atelier/checkpoint.h"

namespace atelier::test {

using Keys = std::map<std::string, std::vector<int64_t>>;

// The tensors of KEYS_DIR/<file>, block ranges written out, counted against the file's first line.
inline Keys read_keys(const std::string& file) {
  std::ifstream in(std::string(KEYS_DIR) + "/" + file);
  if (!in) throw std::runtime_error(file + " is not there");
  char hash = 0;
  int64_t tensors = 0, parameters = 0, counted = 0;
  std::string word, line;
  in >> hash >> tensors >> word >> parameters;
  std::getline(in, line);
  Keys keys;
  while (std::getline(in, line)) {
    const size_t tab = line.find('\t'), open = line.find('{');
    std::vector<int64_t> shape;
    std::stringstream sizes(line.substr(tab + 1));
    for (std::string size; std::getline(sizes, size, 'x');) shape.push_back(std::stoll(size));
    const std::string name = line.substr(0, tab);
    if (open == std::string::npos) {
      keys[name] = shape;
      continue;
    }
    const size_t dots = name.find("..", open), close = name.find('}', open);
    const int64_t last = std::stoll(name.substr(dots + 2));
    for (int64_t i = std::stoll(name.substr(open + 1)); i <= last; ++i)
      keys[name.substr(0, open) + std::to_string(i) + name.substr(close + 1)] = shape;
  }
  for (const auto& [name, shape] : keys)
    counted += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  if (std::ssize(keys) != tensors || counted != parameters)
    throw std::runtime_error(file + " does not hold what its first line says");
  return keys;
}

inline TensorIndex index_of(const Keys& keys, const std::string& prefix = "",
                            TensorIndex::Config config = {}, at::ScalarType dtype = at::kBFloat16) {
  TensorIndex::Tensors tensors;
  for (const auto& [name, shape] : keys) tensors[prefix + name] = {dtype, shape};
  return TensorIndex(std::move(tensors), std::move(config));
}

}  // namespace atelier::test
