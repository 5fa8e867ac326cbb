# Writes include/atelier/sdk_hash.h with ATELIER_SDK_HASH: 12 hex digits of the SHA-256 of ATELIER_SDK_HEADERS without
# comments and white space. A change of any header changes it at the next build.
set(_text "")
foreach(_header IN LISTS ATELIER_SDK_HEADERS)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${_header})
  file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${_header} _content)
  string(REGEX REPLACE "//[^\n]*" "" _content "${_content}")
  string(REGEX REPLACE "[ \t\r\n]+" " " _content "${_content}")
  string(APPEND _text "${_header}:${_content}\n")
endforeach()
string(SHA256 _hash "${_text}")
string(SUBSTRING ${_hash} 0 12 ATELIER_SDK_HASH)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/include/atelier/sdk_hash.h
  CONTENT "// Made by CMake: the hash of the public SDK headers.\n#pragma once\n\n#define ATELIER_SDK_HASH \"@ATELIER_SDK_HASH@\"\n"
  @ONLY)
