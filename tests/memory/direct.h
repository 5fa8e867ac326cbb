// The runner that just runs blocks, to compare others with.
#pragma once

#include "atelier/block.h"

namespace atelier::test {

inline DirectRunner direct;

}  // namespace atelier::test
