// The struct behind its door has another size than the one that there is.
#define FAKE_ABI ATELIER_ABI
#define FAKE_DOOR_SIZE 0xffffffff
#include "fake_plugin.h"
