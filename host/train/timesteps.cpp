#include "host/train/timesteps.h"
