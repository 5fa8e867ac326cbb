# Reads ATELIER_SDK_VERSION, MAJOR.MINOR, from the header in which it is written by hand.
get_filename_component(_header ${CMAKE_CURRENT_LIST_DIR}/../include/atelier/version.h ABSOLUTE)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_header})
file(STRINGS ${_header} _numbers REGEX "#define ATELIER_SDK_(MAJOR|MINOR) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" _numbers "${_numbers}")
string(REPLACE ";" "." ATELIER_SDK_VERSION "${_numbers}")
