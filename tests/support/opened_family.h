// The family of the plugin at TESTED_PLUGIN of the environment, for tests that run once for each
// family.
#pragma once

#include <cstdlib>
#include <dlfcn.h>
#include <stdexcept>

#include "atelier/model_family.h"
#include "atelier/plugin.h"

namespace atelier::test {

inline const ModelFamily& opened_family() {
  static const ModelFamily* const opened = [] {
    const char* const path = std::getenv("TESTED_PLUGIN");
    if (!path) throw std::runtime_error("TESTED_PLUGIN of the environment names no plugin");
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<AtelierPluginEntry>(dlsym(library, "atelier_plugin"));
    char message[256] = "no entry";
    void* result = entry ? entry()->open(message, sizeof(message)) : nullptr;
    if (!result) throw std::runtime_error(message);
    return static_cast<ModelFamily*>(result);
  }();
  return *opened;
}

}  // namespace atelier::test
