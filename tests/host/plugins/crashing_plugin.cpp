// Its constructor ends the process.
#include <csignal>

#define FAKE_ABI ATELIER_ABI
#include "fake_plugin.h"

namespace {
[[maybe_unused]] const int opened = raise(SIGSEGV);
}
