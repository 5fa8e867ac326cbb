// How weights rest as blocks of small codes. Kernels of GPUs read this, too: it includes nothing.
#pragma once

namespace atelier::ops {

enum class Packing {
  kQ4_0,  // of GGUF, as all that begin with Q
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kNf4,  // of bitsandbytes, as fp4
  kFp4,
  kInt8,  // of ComfyUI, as all that follow: a scale for each row
  kNvfp4,
  kMxfp8,
};

}  // namespace atelier::ops
