# atelier_add_plugin(<family> <source>...): a plugin module <family>.so that exports one symbol.
function(atelier_add_plugin family)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map)
  add_library(${family} MODULE ${ARGN})
  set_target_properties(${family} PROPERTIES
    PREFIX ""
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(${family} PRIVATE NDEBUG)  # as LibTorch is built: its headers have other code without it
  # libstdc++ before LibTorch: the wheel exports old std::filesystem symbols that crash.
  if(TARGET atelier_pch)
    target_link_libraries(${family} PRIVATE stdc++ atelier_sdk)
    target_precompile_headers(${family} REUSE_FROM atelier_pch)
    set_target_properties(${family} PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/atelier/plugins)
    install(TARGETS ${family} LIBRARY DESTINATION lib/atelier/plugins)
    set_property(GLOBAL APPEND PROPERTY ATELIER_PLUGINS ${family})
  else()
    target_link_libraries(${family} PRIVATE stdc++ Atelier::sdk)
  endif()
  target_link_options(${family} PRIVATE
    "-Wl,-z,defs" "-Wl,-z,nodelete" "-Wl,--version-script=${script}")
  set_property(TARGET ${family} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()
