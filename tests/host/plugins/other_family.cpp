// Its note says "fake", its door another family.
#define FAKE_ABI ATELIER_ABI
#define FAKE_DOOR_FAMILY "other"
#include "fake_plugin.h"
