# Operators by name: those that kernels of our own run, each with all of its files.
set(_files
  adamw_8bit.cpp adamw_8bit_cuda.cpp adamw_8bit.cu
  channel_norm.cpp channel_norm_cpu.cpp channel_norm_cuda.cpp
  gate_residual.cpp gate_residual_cpu.cpp gate_residual_cuda.cpp gate_residual.cu
  gelu_tanh.cpp gelu_tanh_cpu.cpp gelu_tanh_cuda.cpp gelu_tanh.cu
  group_norm.cpp group_norm_cuda.cpp group_norm.cu
  layer_norm.cpp layer_norm_cpu.cpp layer_norm_cuda.cpp layer_norm.cu
  norm_rope.cpp norm_rope_cpu.cpp norm_rope_cuda.cpp norm_rope.cu
  packed_codes.cpp packed_codes_cuda.cpp packed_codes.cu
  rms_norm.cpp rms_norm_cpu.cpp rms_norm_cuda.cpp rms_norm.cu
  row_codes_cuda.cpp row_codes.cu
  swiglu.cpp swiglu_cpu.cpp swiglu_cuda.cpp swiglu.cu
  cuda/rms_scale.cpp cuda/row_call.cpp cuda/row_plan.cpp)
list(TRANSFORM _files PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
# The kernels of GPUs, and their host halves with what these need. Tests compile both as well.
set(ATELIER_ROW_KERNELS ${_files})
list(FILTER ATELIER_ROW_KERNELS INCLUDE REGEX "\\.cu$")
set(ATELIER_CUDA_HOST_HALVES ${_files})
list(FILTER ATELIER_CUDA_HOST_HALVES INCLUDE REGEX "(_cuda|/cuda/[a-z_]*)\\.cpp$")
# What the SDK has of them, and what of it has loops, which are compiled for each instruction set.
set(ATELIER_ROW_OPERATORS ${_files})
list(REMOVE_ITEM ATELIER_ROW_OPERATORS ${ATELIER_ROW_KERNELS} ${ATELIER_CUDA_HOST_HALVES})
set(ATELIER_ROW_LOOPS ${ATELIER_ROW_OPERATORS})
list(FILTER ATELIER_ROW_LOOPS INCLUDE REGEX "_cpu\\.cpp$")
