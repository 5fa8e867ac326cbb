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
