# Kernels of our own, compiled where a CUDA toolkit is; everything else is built without one as well.
#
# atelier_add_cuda_kernels(target file.cu...)
#   Compiles the files for ATELIER_CUDA_ARCHITECTURES into `target`, which is then compiled with ATELIER_HAS_CUDA_KERNELS;
#   without a toolkit it does nothing. The files include no header of LibTorch: they export `extern "C"` functions that
#   launch a kernel on a stream and return the CUDA error. A target that links LibTorch::cuda shares its CUDA runtime,
#   others get one of their own.
#
# Sets ATELIER_HAS_NVCC, ATELIER_COMPILED_ARCHITECTURES, a list of numbers such as 90 that is empty without kernels, and
# ATELIER_KERNELS, which says what is compiled, or why nothing is. Comes behind find_package(LibTorch), beside which the
# wheels of tools/setup have an nvcc.
set(ATELIER_CUDA_ARCHITECTURES "" CACHE STRING
    "GPUs that kernels are compiled for, such as 80;90; released: all; empty: those of this machine, or all where it has none")
set(ATELIER_NVCC "" CACHE FILEPATH
    "CUDA's compiler; empty: that of tools/setup, of CUDA_HOME, of the path or of /usr/local/cuda, the first that is new enough")
set(_released 80 86 89 90 100 120)
set(_least_nvcc 12.4)  # knows __maxnreg__

# The first nvcc that is new enough, empty: there is none; and what to say of it, or of those that are too old.
function(atelier_find_nvcc nvcc what)
  find_program(on_path nvcc NO_CACHE)
  file(GLOB of_wheels "${LIBTORCH_ROOT}/../nvidia/cu1*/bin/nvcc")  # of the same CUDA as LibTorch
  set(candidates ${of_wheels} $ENV{CUDA_HOME}/bin/nvcc ${on_path} /usr/local/cuda/bin/nvcc)
  if(ATELIER_NVCC)
    set(candidates ${ATELIER_NVCC})
  endif()
  set(too_old "no nvcc was found; tools/setup installs one")
  foreach(candidate IN LISTS candidates)
    execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failure)
    if(failure OR NOT said MATCHES "release ([0-9.]+)")
      continue()
    endif()
    get_filename_component(candidate ${candidate} REALPATH)
    if(CMAKE_MATCH_1 VERSION_LESS _least_nvcc)
      set(too_old "${candidate} is of CUDA ${CMAKE_MATCH_1}, and kernels need ${_least_nvcc}; tools/setup installs one that is new enough")
      message(STATUS "passed over: ${too_old}")
      continue()
    endif()
    set(${nvcc} ${candidate} PARENT_SCOPE)
    set(${what} "CUDA ${CMAKE_MATCH_1}" PARENT_SCOPE)
    return()
  endforeach()
  set(${nvcc} "" PARENT_SCOPE)
  set(${what} "${too_old}" PARENT_SCOPE)
endfunction()

# The wanted GPUs' architectures that this nvcc knows, in ascending order.
function(atelier_find_architectures nvcc architectures)
  set(wanted ${ATELIER_CUDA_ARCHITECTURES})
  if(NOT wanted)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failure)
    if(failure)
      set(said "")  # why it failed
    endif()
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" wanted "${said}")
    string(REPLACE "." "" wanted "${wanted}")
  endif()
  if(NOT wanted OR wanted STREQUAL released)
    set(wanted ${_released})
  endif()
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(found)
  foreach(architecture IN LISTS wanted)
    if(architecture GREATER_EQUAL 80 AND known MATCHES "compute_${architecture}[^0-9]")
      list(APPEND found ${architecture})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  list(SORT found COMPARE NATURAL)
  set(${architectures} "${found}" PARENT_SCOPE)
endfunction()

set(ATELIER_HAS_NVCC FALSE)
set(_architectures)
set(ATELIER_KERNELS "left out of this build (ATELIER_CUDA=OFF)")
if(ATELIER_CUDA AND NOT LIBTORCH_HAS_CUDA)
  set(ATELIER_KERNELS "left out, as LibTorch's CUDA half was not there; run tools/setup, then tools/build")
elseif(ATELIER_CUDA)
  atelier_find_nvcc(_nvcc ATELIER_KERNELS)
  if(_nvcc)
    atelier_find_architectures(${_nvcc} _architectures)
    if(_architectures)
      list(GET _architectures 0 CMAKE_CUDA_ARCHITECTURES)  # what the compiler is tried with
      set(ENV{CUDACXX} ${_nvcc})
      include(CheckLanguage)
      check_language(CUDA)
    endif()
    if(_architectures AND CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # which CMake 3.25 does not know of nvcc
      # The newest also as PTX, which drivers compile for GPUs that come later.
      list(TRANSFORM _architectures APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
      list(GET _architectures -1 _newest)
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${_newest}-virtual)
      set(ATELIER_HAS_NVCC TRUE)
      list(JOIN _architectures ", sm_" _named)
      string(APPEND ATELIER_KERNELS ", for sm_${_named} and later")
    else()
      set(ATELIER_KERNELS "${_nvcc} compiles for none of the GPUs that are wanted; kernels need compute capability 8.0, and nvcc a C++ compiler that it knows")
      set(_architectures)
    endif()
  endif()
endif()
message(STATUS "CUDA kernels: ${ATELIER_KERNELS}")
set(ATELIER_COMPILED_ARCHITECTURES "${_architectures}" CACHE INTERNAL "GPUs that kernels are compiled for")

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
