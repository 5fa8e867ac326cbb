// The note says one thing, the door another.
#define FAKE_ABI ATELIER_ABI
#define FAKE_DOOR_ABI "sdk=9.9+ffffffffffff"
#include "fake_plugin.h"
