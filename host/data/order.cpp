#include "host/data/order.h"
