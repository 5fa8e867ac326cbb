#include "host/model/components.h"

#include <algorithm>

#include "formats/glob.h"

namespace atelier::model {

const ComponentSpec* find_component(const ModelFamily& family, std::string_view name) {
  const auto components = family.components();
  const auto found = std::ranges::find(components, name, &ComponentSpec::name);
  return found == components.end() ? nullptr : &*found;
}

bool has_role(const ModelFamily& family, std::string_view name, Role role) {
  const ComponentSpec* found = find_component(family, name);
  return found != nullptr && found->role == role;
}

std::vector<std::string> component_names(const ModelFamily& family) {
  std::vector<std::string> names;
  for (const ComponentSpec& spec : family.components()) names.emplace_back(spec.name);
  return names;
}

bool has_twin(const ModelFamily& family, std::string_view name) {
  return std::ranges::count(family.components(), find_component(family, name)->role,
                            &ComponentSpec::role) > 1;
}

bool holds_for(const ComponentSpec& component, std::string_view variant) {
  return formats::glob_match(component.variants, variant);
}

}  // namespace atelier::model
