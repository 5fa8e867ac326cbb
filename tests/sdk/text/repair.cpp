// Reads texts from standard input, each as u64 length (little-endian) and bytes, and writes for
// each what fix_text() makes of it and what unescape_html() does, twice, with one space for white
// space. The other side of repair_oracle_test.py.
#include "atelier/text/repair.h"

#include <cstdint>
#include <iostream>
#include <string>

namespace {

void write(const std::string& text) {
  for (int i = 0; i < 8; ++i) std::cout.put(static_cast<char>(uint64_t{text.size()} >> (8 * i)));
  std::cout.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

int main() {
  using namespace atelier::text;
  std::ios::sync_with_stdio(false);
  unsigned char prefix[8];
  std::string text;
  while (std::cin.read(reinterpret_cast<char*>(prefix), 8)) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = (length << 8) | prefix[i];
    text.resize(length);
    if (!std::cin.read(text.data(), static_cast<std::streamsize>(length))) return 1;
    write(fix_text(text));
    write(collapse_spaces(unescape_html(unescape_html(text))));
  }
}
