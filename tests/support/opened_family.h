// The family of the plugin at PLUGIN_PATH, for tests that are built once for each family.
#pragma once

#include <dlfcn.h>
#include <stdexcept>

#include "atelier/model_family.h"
#include "atelier/plugin.h"

namespace atelier::test {

inline const ModelFamily& opened_family() {
  static const ModelFamily* const opened = [] {
    void* library = dlopen(PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
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
