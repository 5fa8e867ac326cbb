// What headers of the CUDA runtime need of nvcc's, for a machine that has no nvcc.
#pragma once

#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __host__
#define __device__
#define __global__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define CUDARTAPI
#define CUDARTAPI_CDECL
