# Writes OUTPUT: C++ with the page as one text, and the policy that lets it run its own script and nothing else.
#
# cmake -DSOURCES=<page.html;page.css;script.js;…> -DOUTPUT=<file> -P embed.cmake
cmake_minimum_required(VERSION 3.25)

# base64_of_hash(<variable> <text>): the SHA-256 of a text, as a Content-Security-Policy writes it. Three digits of the
# hash are two of base 64; two zeros make them whole, and the last digit is only padding.
function(base64_of_hash variable text)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hash "${text}")
  set(result "")
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${hash}00" ${at} 3 three)
    math(EXPR high "0x${three} >> 6")
    math(EXPR low "0x${three} & 63")
    string(SUBSTRING "${digits}" ${high} 1 high)
    string(SUBSTRING "${digits}" ${low} 1 low)
    string(APPEND result ${high}${low})
  endforeach()
  string(SUBSTRING "${result}" 0 43 result)
  set(${variable} "sha256-${result}=" PARENT_SCOPE)
endfunction()

set(scripts "\n\"use strict\";\n")
foreach(source IN LISTS SOURCES)
  file(READ ${source} text)
  if(source MATCHES "html$")
    set(page "${text}")
  elseif(source MATCHES "css$")
    set(style "\n${text}")
  else()
    string(APPEND scripts "\n${text}")
  endif()
endforeach()
base64_of_hash(style_hash "${style}")
base64_of_hash(script_hash "${scripts}")
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${scripts}" page "${page}")
string(LENGTH "${page}" length)
if(length GREATER 150000)
  message(FATAL_ERROR "the page has ${length} bytes; 150000 are the most")
endif()
file(WRITE ${OUTPUT} "// Made by embed.cmake.
#include \"host/serve/page/page_source.h\"

namespace atelier::serve {

const std::string_view kPage = R\"~page~(${page})~page~\";
const std::string_view kStyleHash = \"${style_hash}\";
const std::string_view kScriptHash = \"${script_hash}\";

}  // namespace atelier::serve
")
