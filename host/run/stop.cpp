#include "host/run/stop.h"
