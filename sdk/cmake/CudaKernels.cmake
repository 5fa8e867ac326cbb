# Kernels of our own, compiled where a CUDA toolkit is; everything else is built without one as well.
#
# atelier_add_cuda_kernels(target file.cu...)
#   Compiles the files for ATELIER_CUDA_ARCHITECTURES into `target`, which is then compiled with ATELIER_HAS_CUDA_KERNELS;
#   without a toolkit it does nothing. The files include no header of LibTorch: they export `extern "C"` functions that
#   launch a kernel on a stream and return the CUDA error. A target that links LibTorch::cuda shares its CUDA runtime,
#   others get one of their own.
set(ATELIER_CUDA_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING
    "GPUs that kernels are compiled for; those that the compiler does not know are left out")

set(ATELIER_HAS_NVCC FALSE)
if(ATELIER_CUDA)
  find_program(ATELIER_NVCC nvcc PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(ATELIER_NVCC)
    execute_process(COMMAND ${ATELIER_NVCC} --list-gpu-arch OUTPUT_VARIABLE _known ERROR_QUIET)
    set(_architectures ${ATELIER_CUDA_ARCHITECTURES})
    foreach(_architecture IN LISTS ATELIER_CUDA_ARCHITECTURES)
      if(NOT _known MATCHES "compute_${_architecture}[^0-9]")
        list(REMOVE_ITEM _architectures ${_architecture})
      endif()
    endforeach()
    if(_architectures)
      list(GET _architectures 0 CMAKE_CUDA_ARCHITECTURES)  # what the compiler is tried with
      set(ENV{CUDACXX} ${ATELIER_NVCC})
      include(CheckLanguage)
      check_language(CUDA)
    endif()
    if(_architectures AND CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # which CMake 3.25 does not know of nvcc
      list(TRANSFORM _architectures APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
      set(ATELIER_HAS_NVCC TRUE)
      message(STATUS "CUDA kernels for ${_architectures}")
    else()
      message(STATUS "no CUDA kernels: ${ATELIER_NVCC} compiles nothing for ${ATELIER_CUDA_ARCHITECTURES} here")
    endif()
  endif()
endif()

function(atelier_add_cuda_kernels target)
  if(NOT ATELIER_HAS_NVCC)
    return()
  endif()
  # Apart, so that nvcc is given none of the options that the target gets from LibTorch.
  add_library(${target}_kernels OBJECT ${ARGN})
  set_target_properties(${target}_kernels PROPERTIES UNITY_BUILD OFF)  # as newer CMake would have it of .cu files, too
  set_target_properties(${target}_kernels PROPERTIES CUDA_VISIBILITY_PRESET hidden)
  # A kernel whose registers do not suffice does not build; how many each has is read by a test.
  target_compile_options(${target}_kernels PRIVATE -Xptxas=-v,-warn-spills,-warn-lmem-usage,-Werror)
  # A sixth of the size; drivers for CUDA 13 and later read it.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target}_kernels PRIVATE --compress-mode=size)
  endif()
  set_target_properties(${target}_kernels PROPERTIES
    CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/sdk/cmake/keep_ptxas_log)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_kernels>)
  target_compile_definitions(${target} PRIVATE ATELIER_HAS_CUDA_KERNELS)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  if("LibTorch::cuda" IN_LIST libraries)
    set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY None)
  endif()
endfunction()
