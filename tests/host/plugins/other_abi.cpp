// Built for another LibTorch. Whoever opens it all the same is ended by its constructor.
#include <cstdlib>

#define FAKE_ABI \
  "sdk=" ATELIER_SDK_VERSION "+" ATELIER_SDK_HASH " torch=2.10.0 cxx11abi=1 stdlib=libstdc++"
#include "fake_plugin.h"

namespace {
[[maybe_unused]] const int opened = (std::_Exit(99), 0);
}
