#include "host/generate/lora_set.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/lora/targets.h"
#include "host/model/stages.h"

namespace atelier::generate {
namespace {

// What is done about a LoRA that does not say which of several denoisers it is for, by a client or
// in a prompts file, in place of the hint for command lines.
Error for_place(const Error& error, const lora::LoraRef& use, const model::Stages& stages,
                const order::Origin& place) {
  if (place.is_command_line() || error.tag() != "LORA_COMPONENT" || !use.component.empty())
    return error;
  std::vector<std::string> names;
  for (const model::RangedDenoiser& denoiser : stages.denoisers) names.push_back(denoiser.name());
  names.emplace_back(lora::kEveryDenoiser);
  const std::string way = place.is_request ? R"(give it a name by POST /v1/loras with "component")"
                                           : R"(say it in the line, {"name": )" +
                                                 formats::quote_and_escape(use.name) +
                                                 R"(, "component": COMPONENT})";
  return {error.code(), error.message(), way + ", which is one of " + report::list_names(names),
          error.tag()};
}

}  // namespace

void LoraSet::check(const order::Settings& settings, const order::Origin& place,
                    report::Problems& problems) {
  for (const lora::LoraRef& use : settings.loras) {
    try {
      registry().check(use);
    } catch (const Error& error) {
      const Error told = for_place(error, use, model_.stages(), place);
      problems.add(told.at(place.of(place.is_command_line() ? "lora" : "loras")));
    }
  }
}

void LoraSet::use(const Loras& set) {
  if (!registry_ && set.empty()) return;
  registry().use(set);
  tell_unmatched(set);
}

void LoraSet::read(const Loras& set) {
  if (!set.empty()) registry().read_ahead(set);
}

bool LoraSet::changes_others(const Loras& set) {
  if (set.empty()) return false;
  return std::ranges::any_of(model_.family().components(), [&](const ComponentSpec& component) {
    return component.role != Role::kDenoiser &&
           !registry().fingerprint(set, component.name).empty();
  });
}

std::optional<ops::SampleStrengths> LoraSet::use_each(std::span<const Loras> sets) {
  std::optional<ops::SampleStrengths> strengths = registry().use_each(sets);
  for (const Loras& set : sets) tell_unmatched(set);
  return strengths;
}

void LoraSet::tell_unmatched(const Loras& set) {
  for (const lora::LoraRef& use : set) {
    const std::vector<std::string> unmatched = registry().check(use);
    if (unmatched.empty() || !warned_.insert(use.path).second) continue;
    progress_.warn("LoRA " + use.name + ": " + std::to_string(unmatched.size()) +
                   " of its names are nothing in this model and change nothing: " +
                   report::list_names(unmatched, 10));
  }
}

std::string LoraSet::encoder_state(const order::Settings& settings) {
  std::string state;
  if (settings.loras.empty()) return state;
  for (const ComponentSpec& component : model_.family().components()) {
    if (model::encodes(model_.family(), component))
      state += registry().fingerprint(settings.loras, component.name);
  }
  return state;
}

lora::Registry& LoraSet::registry() {
  if (!registry_) registry_.emplace(model_, lora::Registry::Options{.mode = mode_});
  return *registry_;
}

}  // namespace atelier::generate
