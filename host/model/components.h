// The components that a family declares, by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::model {

// Null when the family has none of that name.
const ComponentSpec* find_component(const ModelFamily& family, std::string_view name);
// Whether that one has the role.
bool has_role(const ModelFamily& family, std::string_view name, Role role);
std::vector<std::string> component_names(const ModelFamily& family);
// Whether the family has another component of the same role.
bool has_twin(const ModelFamily& family, std::string_view name);

// Whether a model of this variant has the component. Of a variant that is not known, "", only those
// are held to be there that every variant has.
bool holds_for(const ComponentSpec& component, std::string_view variant);

}  // namespace atelier::model
