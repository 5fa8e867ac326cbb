// Stands for Gloo's header of this name, which LibTorch's own headers include.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
