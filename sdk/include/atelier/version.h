// The version of the SDK and of the program, written by hand.
//
// A change that plugins have to be built again for raises MAJOR. Within a MAJOR public headers only
// get more, and each addition raises MINOR: new headers, classes, free functions and operators, and
// virtual functions at the end of `ModelFamily` and `Model`, which a host calls only where the
// plugin's MINOR has them. A program opens plugins of its own MAJOR and of every MINOR up to its
// own. What will go with the next MAJOR is marked [[deprecated]] for at least one MINOR before.
//
// sdk/version_hashes.txt has the hash of each version's headers; a test compares them.
#pragma once

#define ATELIER_SDK_MAJOR 0
#define ATELIER_SDK_MINOR 3

#define ATELIER_STRING_(x) #x
#define ATELIER_STRING(x) ATELIER_STRING_(x)
#define ATELIER_SDK_VERSION ATELIER_STRING(ATELIER_SDK_MAJOR) "." ATELIER_STRING(ATELIER_SDK_MINOR)
