# Operators by name: atelier_row_operator(<name> <ending>...), with the ending of each of its files.
#
# Sets ATELIER_ROW_OPERATORS, what the SDK has of them; ATELIER_ROW_LOOPS, their files with loops for the CPU;
# ATELIER_ROW_KERNELS, the kernels of GPUs, and ATELIER_CUDA_HOST_HALVES, what calls them, which tests compile as well.
set(ATELIER_ROW_OPERATORS)
set(ATELIER_ROW_LOOPS)
set(ATELIER_ROW_KERNELS)
set(ATELIER_CUDA_HOST_HALVES
  ${CMAKE_CURRENT_LIST_DIR}/cuda/rms_scale.cpp
  ${CMAKE_CURRENT_LIST_DIR}/cuda/row_call.cpp
  ${CMAKE_CURRENT_LIST_DIR}/cuda/row_plan.cpp)
macro(atelier_row_operator name)
  foreach(ending ${ARGN})
    set(file ${CMAKE_CURRENT_LIST_DIR}/${name}${ending})
    if(ending STREQUAL ".cu")
      list(APPEND ATELIER_ROW_KERNELS ${file})
    elseif(ending STREQUAL "_cuda.cpp")
      list(APPEND ATELIER_CUDA_HOST_HALVES ${file})
    else()
      list(APPEND ATELIER_ROW_OPERATORS ${file})
    endif()
    if(ending STREQUAL "_cpu.cpp")
      list(APPEND ATELIER_ROW_LOOPS ${file})
    endif()
  endforeach()
endmacro()

atelier_row_operator(adamw_8bit .cpp _cuda.cpp .cu)
atelier_row_operator(channel_norm .cpp _cpu.cpp _cuda.cpp)
atelier_row_operator(gate_residual .cpp _cpu.cpp _cuda.cpp .cu)
atelier_row_operator(gelu_tanh .cpp _cpu.cpp _cuda.cpp .cu)
atelier_row_operator(group_norm .cpp _cuda.cpp .cu)
atelier_row_operator(layer_norm .cpp _cpu.cpp _cuda.cpp .cu)
atelier_row_operator(norm_rope .cpp _cpu.cpp _cuda.cpp .cu)
atelier_row_operator(rms_norm .cpp _cpu.cpp _cuda.cpp .cu)
atelier_row_operator(row_codes _cuda.cpp .cu)
atelier_row_operator(swiglu .cpp _cpu.cpp _cuda.cpp .cu)
