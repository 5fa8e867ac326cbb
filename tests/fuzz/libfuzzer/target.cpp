// One libFuzzer program per parser; ATELIER_FUZZ_ENTRY is the entry that it runs.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atelier::formats::ATELIER_FUZZ_ENTRY({reinterpret_cast<const char*>(data), size});
  return 0;
}
