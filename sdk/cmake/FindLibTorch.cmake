# Finds LibTorch in a pip wheel or an unpacked zip, without TorchConfig.cmake (which demands a CUDA toolkit and lets
# the fmt that torch bundles shadow the system's).
#
# Input:   ATELIER_TORCH_DIR, a folder with include/ and lib/, or one that holds such a `torch` folder;
#          empty: the wheel in .deps/venv of the source tree.
# Targets: LibTorch::cpu   torch_cpu and c10
#          LibTorch::cuda  where libtorch_cuda.so and the headers of the CUDA runtime and of NCCL are found
# Sets:    LIBTORCH_ROOT, LIBTORCH_LIB_DIR, LIBTORCH_INCLUDE_DIR, LIBTORCH_VERSION, LIBTORCH_HAS_CUDA,
#          LIBTORCH_NCCL_INCLUDE
include(FindPackageHandleStandardArgs)

if(ATELIER_TORCH_DIR)
  set(_torch_candidates ${ATELIER_TORCH_DIR} ${ATELIER_TORCH_DIR}/torch ${ATELIER_TORCH_DIR}/libtorch)
else()
  file(GLOB _torch_candidates ${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/torch)
endif()
set(LIBTORCH_ROOT "")
foreach(_dir IN LISTS _torch_candidates)
  if(EXISTS ${_dir}/lib/libtorch_cpu.so AND EXISTS ${_dir}/include/ATen/ATen.h)
    get_filename_component(LIBTORCH_ROOT ${_dir} ABSOLUTE)
    break()
  endif()
endforeach()

if(LIBTORCH_ROOT)
  set(LIBTORCH_LIB_DIR ${LIBTORCH_ROOT}/lib)
  set(LIBTORCH_INCLUDE_DIR ${LIBTORCH_ROOT}/include)
  file(STRINGS ${LIBTORCH_INCLUDE_DIR}/torch/headeronly/version.h _v
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _v "${_v}")
  string(REPLACE ";" "." LIBTORCH_VERSION "${_v}")
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LIBTORCH_ROOT VERSION_VAR LIBTORCH_VERSION
  REASON_FAILURE_MESSAGE "Run tools/setup, or pass -DATELIER_TORCH_DIR=<folder with include/ and lib/>.")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  find_package(Threads REQUIRED)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  # -idirafter: torch/include brings fmt, protobuf and pybind11 that must not shadow the system's.
  target_compile_options(LibTorch::cpu INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-idirafter${LIBTORCH_INCLUDE_DIR}>"
    "$<$<COMPILE_LANGUAGE:CXX>:-idirafter${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include>")
  target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(LibTorch::cpu INTERFACE Threads::Threads
    "-Wl,--no-as-needed,\"${LIBTORCH_LIB_DIR}/libtorch_cpu.so\",--as-needed" ${LIBTORCH_LIB_DIR}/libc10.so)
  target_link_options(LibTorch::cpu INTERFACE
    "-Wl,-rpath-link,${LIBTORCH_LIB_DIR}" "-Wl,--allow-shlib-undefined")

  set(LIBTORCH_HAS_CUDA FALSE)
  get_filename_component(_site ${LIBTORCH_ROOT} DIRECTORY)
  file(GLOB _cudart ${_site}/nvidia/cu1*/lib/libcudart.so.1* ${LIBTORCH_LIB_DIR}/libcudart*.so.1*)
  find_path(LIBTORCH_CUDART_INCLUDE cuda_runtime_api.h NO_CACHE
    PATHS ${_site}/nvidia/cu13/include $ENV{CUDA_HOME}/include /usr/local/cuda/include NO_DEFAULT_PATH)
  find_path(LIBTORCH_NCCL_INCLUDE nccl.h NO_CACHE
    PATHS ${_site}/nvidia/nccl/include $ENV{CUDA_HOME}/include /usr/local/cuda/include /usr/include NO_DEFAULT_PATH)
  if(EXISTS ${LIBTORCH_LIB_DIR}/libtorch_cuda.so AND LIBTORCH_CUDART_INCLUDE AND LIBTORCH_NCCL_INCLUDE AND _cudart)
    set(LIBTORCH_HAS_CUDA TRUE)
    list(GET _cudart 0 _cudart)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_compile_options(LibTorch::cuda INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:-isystem${LIBTORCH_CUDART_INCLUDE}>")
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      "-Wl,--no-as-needed,\"${LIBTORCH_LIB_DIR}/libtorch_cuda.so\",--as-needed"
      ${LIBTORCH_LIB_DIR}/libc10_cuda.so ${_cudart})
  endif()
endif()
