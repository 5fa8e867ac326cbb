// What the test plugins have in common: configs of a few numbers, and a text encoder that knows
// bytes alone. Written in the frame of the SDK alone, as they are.
#pragma once

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"

namespace atelier::test {

struct WidthConfig {
  int64_t width;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width);
  }
};

struct StackConfig {
  int64_t width, layers;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width), fields("layers", layers);
  }
};

struct Bytes final : TextEncoder {
  nn::Embedding bytes;
  explicit Bytes(const WidthConfig& c)
      : TextEncoder(nullptr, ""), bytes(this, "bytes", 256, c.width) {}
  at::Tensor forward(const at::Tensor& ids_N, const Segments&, BlockRunner&) override {
    return bytes.forward(ids_N);
  }
  int64_t vocabulary() const override { return 256; }
  int64_t width() const override { return bytes.weight->sizes()[1]; }
};

}  // namespace atelier::test
