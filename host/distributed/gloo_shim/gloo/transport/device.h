// Stands for Gloo's header of this name, which LibTorch's own headers include.
#pragma once

namespace gloo::transport {

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
class Device {
 public:
  virtual ~Device() = 0;
};

}  // namespace gloo::transport
