// The host half of AdamW with moments of 8 bits.
#pragma once

#include "atelier/host/adamw_8bit.h"

namespace atelier::ops::cuda {

void adamw_8bit(const AdamW8BitStep& step);

}  // namespace atelier::ops::cuda
