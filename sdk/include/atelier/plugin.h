// The binary interface of plugins. This header's structs are plain C and never change shape: a
// host can read them whatever the plugin was built with, and say what does not match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>  // for _GLIBCXX_RELEASE and _GLIBCXX_USE_CXX11_ABI

#include <torch/headeronly/version.h>

#include "atelier/export.h"
#include "atelier/model_family.h"
#include "atelier/sdk_hash.h"  // made by CMake: ATELIER_SDK_HASH, of the public headers without comments
#include "atelier/version.h"

#if !defined(_GLIBCXX_RELEASE)
#error \
    "Host and plugin share the objects of libstdc++: build with it, as GCC does, and clang by -stdlib=libstdc++."
#endif

#if defined(_GLIBCXX_DEBUG)
#define ATELIER_ABI_DEBUG " glibcxx_debug"
#else
#define ATELIER_ABI_DEBUG ""
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ATELIER_ABI_SANITIZER " asan"
#elif defined(__SANITIZE_THREAD__)
#define ATELIER_ABI_SANITIZER " tsan"
#else
#define ATELIER_ABI_SANITIZER ""
#endif

// Host and plugin share C++ objects. Versions fit as version.h says, and the hash is equal where
// both are of one version; the rest is equal, character for character.
#define ATELIER_ABI                                                       \
  "sdk=" ATELIER_SDK_VERSION "+" ATELIER_SDK_HASH " torch=" TORCH_VERSION \
  " cxx11abi=" ATELIER_STRING(                                            \
      _GLIBCXX_USE_CXX11_ABI) " stdlib=libstdc++" ATELIER_ABI_DEBUG ATELIER_ABI_SANITIZER

extern "C" {

#define ATELIER_PLUGIN_MAGIC 0x4154454cu

struct AtelierPlugin {
  uint32_t magic;        // ATELIER_PLUGIN_MAGIC
  uint32_t struct_size;  // sizeof(AtelierPlugin) in the plugin's build
  const char* abi;       // ATELIER_ABI
  const char* family;    // "my_family"
  const char* version;   // of the plugin: "0.3.1"

  // Returns an atelier::ModelFamily*, owned by the plugin and never freed, or null with a reason,
  // null-terminated and cut to fit, in `message`. The host calls it only when `abi` fits its own.
  // Never throws.
  void* (*open)(char* message, size_t message_size) noexcept;
};

using AtelierPluginEntry = const AtelierPlugin* (*)() noexcept;

}  // extern "C"

// Defines the one exported function, `const AtelierPlugin* atelier_plugin()`, and the ELF note
// (name "atelier", type 1, description "abi\0family\0version\0") that the host reads before it
// opens anything:
//
//   ATELIER_PLUGIN(MyFamily, "my_family", "0.3.1")
//
// The version says which encodings the family makes: caches of training hold it, and those of
// another version are not used. Raise it when encode() gives something else for equal inputs.
#define ATELIER_PLUGIN(FamilyType, family_name, plugin_version)                                  \
  namespace {                                                                                    \
  struct AtelierNote {                                                                           \
    uint32_t name_size, description_size, type;                                                  \
    char name[8];                                                                                \
    char description[(sizeof(ATELIER_ABI "\0" family_name "\0" plugin_version) + 3) / 4 * 4];    \
  };                                                                                             \
  __attribute__((section(".note.atelier,\"a\",@note#"), used, aligned(4)))                       \
  const AtelierNote atelier_note = {8, sizeof(ATELIER_ABI "\0" family_name "\0" plugin_version), \
                                    1, "atelier",                                                \
                                    ATELIER_ABI "\0" family_name "\0" plugin_version};           \
  void* atelier_plugin_open(char* message, size_t size) noexcept {                               \
    try {                                                                                        \
      static FamilyType family;                                                                  \
      return static_cast<atelier::ModelFamily*>(&family);                                        \
    } catch (const std::exception& e) {                                                          \
      if (size > 0) snprintf(message, size, "%s", e.what());                                     \
    } catch (...) {                                                                              \
      if (size > 0) snprintf(message, size, "an exception that is not a std::exception");        \
    }                                                                                            \
    return nullptr;                                                                              \
  }                                                                                              \
  }                                                                                              \
  extern "C" ATELIER_API const AtelierPlugin* atelier_plugin() noexcept {                        \
    static const AtelierPlugin plugin = {ATELIER_PLUGIN_MAGIC, sizeof(AtelierPlugin),            \
                                         ATELIER_ABI,          family_name,                      \
                                         plugin_version,       atelier_plugin_open};             \
    return &plugin;                                                                              \
  }
