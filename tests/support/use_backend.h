// Forces a back end of attention for a test.
#pragma once

#include "atelier/ops/attention.h"

namespace atelier::test {

// For the process, while one lives.
struct UseBackend {
  explicit UseBackend(ops::AttentionBackend backend) { ops::set_attention_backend(backend); }
  ~UseBackend() { ops::set_attention_backend(ops::AttentionBackend::kAuto); }
};

}  // namespace atelier::test
