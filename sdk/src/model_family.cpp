#include "atelier/model_family.h"

#include <algorithm>
#include <cctype>

#include "atelier/error.h"

#include "formats/glob.h"

namespace atelier {

ModelFamily::~ModelFamily() = default;
Solver::~Solver() = default;

std::span<const SolverSpec> ModelFamily::solvers() const {
  return {};
}

ScheduleDefaults ModelFamily::training_schedule(const Detection& denoiser) const {
  for (const ScheduleDefaults& schedule : schedules()) {
    if (formats::any_glob_matches(schedule.variants, denoiser.variant)) return schedule;
  }
  throw Error(ErrorCode::kInternal,
              "the family declares no schedule for variant '" + denoiser.variant + "'");
}

MediaDefaults ModelFamily::media_defaults(const Detection&) const {
  return {};
}

SigmaRange ModelFamily::sigma_range(const Detection&) const {
  return {};
}

void ModelFamily::assign(std::span<FoundPart>) const {}

std::string_view spec_name(std::string_view component) {
  const size_t dot = component.rfind('.');
  if (dot == component.npos || dot + 1 == component.size()) return component;
  const bool is_number = component.find_first_not_of("0123456789", dot + 1) == component.npos;
  return is_number ? component.substr(0, dot) : component;
}

bool is_called(const ComponentSpec& component, std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::any_of(component.paths, [&](const char* glob) {
    return glob != nullptr && formats::glob_match(glob, lower);
  });
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kTokenizer:
      return "tokenizer";
    case Role::kTextEncoder:
      return "text_encoder";
    case Role::kImageEncoder:
      return "image_encoder";
    case Role::kVae:
      return "vae";
    case Role::kDenoiser:
      return "dit";
    case Role::kControl:
      return "control";
  }
  return "";
}

std::vector<std::string> ModelFamily::spellings(const Detection& part) const {
  return {part.spelling};
}

int64_t Detection::integer(std::string_view key) const {
  auto it = config.find(key);
  if (it != config.end())
    if (const auto* value = std::get_if<int64_t>(&it->second)) return *value;
  throw Error(ErrorCode::kInternal,
              "detection of '" + component + "' has no integer '" + std::string(key) + "'");
}

double Detection::real(std::string_view key) const {
  auto it = config.find(key);
  if (it != config.end()) {
    if (const auto* value = std::get_if<double>(&it->second)) return *value;
    if (const auto* value = std::get_if<int64_t>(&it->second)) return static_cast<double>(*value);
  }
  throw Error(ErrorCode::kInternal,
              "detection of '" + component + "' has no number '" + std::string(key) + "'");
}

}  // namespace atelier
