// What commands do as one of several processes.
#pragma once

#include <string>

#include "host/distributed/ranks.h"

namespace atelier::cli {

// Each process of a machine has a GPU of its own as long as there are enough: `device` is "auto" or
// "cuda", and names that GPU then. Others stay what they are.
void choose_gpu(std::string& device, const distributed::Ranks& ranks);

}  // namespace atelier::cli
