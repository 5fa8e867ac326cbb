#include "host/model/components.h"

#include <algorithm>

#include "formats/glob.h"

namespace atelier::model {

const ComponentSpec* find_component(const ModelFamily& family, std::string_view name) {
  for (const ComponentSpec& spec : family.components()) {
    if (spec.name == name) return &spec;
    if (spec.name != spec_name(name)) continue;
    for (int64_t number = 1; number < spec.max_count; ++number)
      if (instance_name(spec.name, number) == name) return &spec;
  }
  return nullptr;
}

bool has_role(const ModelFamily& family, std::string_view name, Role role) {
  const ComponentSpec* found = find_component(family, name);
  return found != nullptr && found->role == role;
}

std::vector<std::string> component_names(const ModelFamily& family) {
  std::vector<std::string> names;
  for (const ComponentSpec& spec : family.components()) {
    for (int64_t number = 0; number < std::max<int64_t>(1, spec.max_count); ++number)
      names.push_back(instance_name(spec.name, number));
  }
  return names;
}

bool has_twin(const ModelFamily& family, std::string_view name) {
  const ComponentSpec& spec = *find_component(family, name);
  return spec.max_count > 1 ||
         std::ranges::count(family.components(), spec.role, &ComponentSpec::role) > 1;
}

std::string instance_name(std::string_view spec, int64_t number) {
  return number == 0 ? std::string(spec) : std::string(spec) + "." + std::to_string(number);
}

std::string component_of(std::string_view path) {
  const size_t end = path.find('.');
  if (end == std::string_view::npos) return std::string(path);
  const std::string_view next = path.substr(end + 1, path.find('.', end + 1) - end - 1);
  const bool is_number = !next.empty() && next.find_first_not_of("0123456789") == next.npos;
  return std::string(path.substr(0, is_number ? end + 1 + next.size() : end));
}

bool holds_for(const ComponentSpec& component, std::string_view variant) {
  return formats::any_glob_matches(component.variants, variant);
}

}  // namespace atelier::model
