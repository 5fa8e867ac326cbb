// The components that a family declares, by their names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::model {

// Null when the family has none of that name. "controlnet.1" is declared as "controlnet", and there
// where a model may have two of them.
const ComponentSpec* find_component(const ModelFamily& family, std::string_view name);
// Whether that one has the role.
bool has_role(const ModelFamily& family, std::string_view name, Role role);
// All that a model may have: "dit", "controlnet", "controlnet.1".
std::vector<std::string> component_names(const ModelFamily& family);
// Whether a model may have another component of the same role.
bool has_twin(const ModelFamily& family, std::string_view name);

// The name of the component that a control's file with this number is, from 0.
std::string instance_name(std::string_view spec, int64_t number);
// The component of a dotted name: "dit" of "dit.blocks.0", "controlnet.1" of
// "controlnet.1.blocks.0".
std::string component_of(std::string_view path);

// Whether a model of this variant has the component. Of a variant that is not known, "", only those
// are held to be there that every variant has.
bool holds_for(const ComponentSpec& component, std::string_view variant);

}  // namespace atelier::model
