// Reads texts from standard input, each as u64 length (little-endian) and bytes, and prints for
// each one line with its token ids. The other side of sentencepiece_oracle_test.py.
//
// usage: tokenize TOKENIZER
#include <cstdint>
#include <iostream>
#include <string>

#include "atelier/error.h"
#include "atelier/text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ios::sync_with_stdio(false);
  try {
    const auto tokenizer = atelier::text::Tokenizer::load(argv[1]);
    unsigned char prefix[8];
    std::string text;
    while (std::cin.read(reinterpret_cast<char*>(prefix), 8)) {
      uint64_t length = 0;
      for (int i = 7; i >= 0; --i) length = (length << 8) | prefix[i];
      text.resize(length);
      if (!std::cin.read(text.data(), static_cast<std::streamsize>(length))) return 1;
      for (const int64_t id : tokenizer->encode(text)) std::cout << id << ' ';
      std::cout << '\n';
    }
  } catch (const atelier::Error& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
}
