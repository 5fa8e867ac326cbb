// Built for another LibTorch. Whoever opens it all the same is ended by its constructor.
#include <cstdlib>

#define FAKE_ABI \
  "sdk=0.1+000000000000 torch=2.10.0 cxx11abi=1 compiler=gcc12 libstdcxx=12 std=202002L"
#include "fake_plugin.h"

namespace {
[[maybe_unused]] const int opened = (std::_Exit(99), 0);
}
