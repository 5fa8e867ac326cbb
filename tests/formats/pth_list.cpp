// Prints what read_pth() finds in each file: one line of JSON. The other side of
// pth_oracle_test.py.
//
// usage: pth_list FILE...
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "formats/pth.h"

using namespace atelier::formats;

namespace {

nlohmann::json list(const std::string& bytes) {
  try {
    const PthIndex index = read_pth(
        bytes.size(), [&](uint64_t begin, uint64_t count) { return bytes.substr(begin, count); });
    nlohmann::json tensors = nlohmann::json::array();
    for (const PthTensor& tensor : index.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", dtype_name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"strides", tensor.strides},
                         {"begin", tensor.begin},
                         {"end", tensor.end}});
    }
    return {{"tensors", tensors}, {"big_endian", index.is_big_endian}};
  } catch (const ParseError& error) {
    return {{"tag", error.tag}, {"message", error.what()}, {"hint", error.hint}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ostringstream bytes;
    bytes << std::ifstream(argv[i], std::ios::binary).rdbuf();
    std::cout << list(bytes.str()) << '\n';
  }
}
