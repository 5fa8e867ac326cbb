# Installs the SDK and its CMake package.
include(CMakePackageConfigHelpers)

if(ATELIER_SANITIZE)  # part of the ABI string
  target_compile_options(atelier_sdk INTERFACE $<INSTALL_INTERFACE:-fsanitize=${ATELIER_SANITIZE}>)
  target_link_options(atelier_sdk INTERFACE $<INSTALL_INTERFACE:-fsanitize=${ATELIER_SANITIZE}>)
endif()

set(_package lib/cmake/AtelierSdk)
set_target_properties(atelier_sdk PROPERTIES EXPORT_NAME sdk)
install(TARGETS atelier_sdk EXPORT AtelierSdkTargets LIBRARY DESTINATION lib)
install(EXPORT AtelierSdkTargets NAMESPACE Atelier:: DESTINATION ${_package})

foreach(_header IN LISTS ATELIER_SDK_HEADERS)
  get_filename_component(_folder ${_header} DIRECTORY)
  install(FILES ${_header} DESTINATION ${_folder})
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/atelier/sdk_hash.h DESTINATION include/atelier)

# What a plugin's author reads and begins with. The tree of the build has the template, too.
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION share/doc/atelier)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION share/doc/atelier)
# What these pages link to: other pages, pictures, small examples, and the sources that are named.
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/atelier)
foreach(_linked bench/README.md host/README.md memory/README.md sdk/README.md sdk/parts/include/atelier/parts/*.h
    plugins/*/README.md plugins/*/config_fields.cpp plugins/*/gemma2.h)
  file(GLOB _files RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/${_linked})
  foreach(_file IN LISTS _files)
    get_filename_component(_folder ${_file} DIRECTORY)
    install(FILES ${CMAKE_SOURCE_DIR}/${_file} DESTINATION share/doc/atelier/${_folder})
  endforeach()
endforeach()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION share/doc/atelier
  PATTERN model EXCLUDE PATTERN build EXCLUDE PATTERN "*.safetensors" EXCLUDE PATTERN __pycache__ EXCLUDE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples/plugin_template ${CMAKE_SOURCE_DIR}/examples/z_image
  DESTINATION share/atelier PATTERN build EXCLUDE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/atelier)
file(CREATE_LINK ${CMAKE_SOURCE_DIR}/examples/plugin_template ${CMAKE_BINARY_DIR}/share/atelier/plugin_template SYMBOLIC)

configure_package_config_file(cmake/AtelierSdkConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/AtelierSdkConfig.cmake
  INSTALL_DESTINATION ${_package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/AtelierSdkConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/AtelierSdkConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/AtelierSdkConfigVersion.cmake
  cmake/AtelierPlugin.cmake
  cmake/FindLibTorch.cmake
  cmake/plugin.map
  DESTINATION ${_package})
