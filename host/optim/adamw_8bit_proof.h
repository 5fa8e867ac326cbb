// The kernel of AdamW with moments of 8 bits, as `atelier tune` proves it.
#pragma once

#include "host/tune/kernel_proofs.h"

namespace atelier::optim {

// Some steps of one parameter, of as many numbers as a layer has.
tune::KernelProof adamw_8bit_proof();

}  // namespace atelier::optim
