// Reads files from standard input, each as u64 length (little-endian) and bytes, and prints for
// each one line: `accept`, or the tag of the refusal. The other side of safetensors_oracle_test.py.
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "formats/safetensors.h"

int main() {
  using namespace atelier::formats;
  std::ios::sync_with_stdio(false);
  unsigned char prefix[8];
  std::string file;
  while (std::cin.read(reinterpret_cast<char*>(prefix), 8)) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = (length << 8) | prefix[i];
    file.resize(length);
    if (!std::cin.read(file.data(), static_cast<std::streamsize>(length))) return 1;
    try {
      const std::string_view bytes = file;
      const uint64_t header = read_header_length(bytes.substr(0, 8), length);
      parse_safetensors_header(bytes.substr(8, header), length);
      std::cout << "accept\n";
    } catch (const ParseError& error) {
      std::cout << error.tag << "\n";
    }
  }
}
