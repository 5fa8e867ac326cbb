// Steps of optimizers.
#include "ops/cuda/adamw_functors.h"
#include "ops/cuda/row_kernel.cuh"

namespace cuda = atelier::ops::cuda;

#define ATELIER_DEFINE(name, functor)                                                     \
  extern "C" int atelier_cuda_##name(cuda::Element element, const cuda::RowGrid* grid,    \
                                     const cuda::RowArguments* arguments, void* stream) { \
    return cuda::launch<cuda::functor>(element, *grid, *arguments, stream);               \
  }
ATELIER_OPTIMIZER_OPERATORS(ATELIER_DEFINE)
