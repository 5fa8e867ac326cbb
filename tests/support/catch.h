// Catch2, with its CHECK in place of LibTorch's macro of that name.
#pragma once

#include <c10/util/Logging.h>

#undef CHECK
#include <catch2/catch.hpp>
