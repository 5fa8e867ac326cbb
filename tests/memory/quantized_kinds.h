// The kinds of 8-bit weights, for tests that try each.
#pragma once

#include "memory/quantized_store.h"

namespace atelier::test {

inline constexpr memory::QuantizedKind kKinds[] = {memory::QuantizedKind::kFp8,
                                                   memory::QuantizedKind::kInt8};

}  // namespace atelier::test
