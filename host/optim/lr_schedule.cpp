#include "host/optim/lr_schedule.h"
