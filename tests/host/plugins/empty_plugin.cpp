// Its note and door are right; its open() says why it cannot.
#define FAKE_ABI ATELIER_ABI
#include "fake_plugin.h"
