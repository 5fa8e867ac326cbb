#include "host/model/residents.h"

#include <utility>

#include "host/model/stages.h"

namespace atelier::model {

Residents::Residents(std::vector<ComponentSpec> components, Call load, Call unload,
                     std::set<std::string, std::less<>> stays)
    : components_(std::move(components)),
      load_(std::move(load)),
      unload_(std::move(unload)),
      stays_(std::move(stays)) {
  std::erase_if(components_, [](const ComponentSpec& one) { return one.role == Role::kTokenizer; });
}

template <class F>
void Residents::load_where(const F& is_needed, const std::function<void()>& before_each) {
  for (const ComponentSpec& component : components_) {
    if (!is_needed(component)) continue;
    if (before_each) before_each();
    load_(component.name);
  }
}

template <class F>
void Residents::unload_where(const F& may_leave) {
  for (const ComponentSpec& component : components_) {
    if (may_leave(component) && !stays_.contains(component.name)) unload_(component.name);
  }
}

void Residents::encode(const EncodeStage& stage, const std::function<void()>& before_each) {
  load_where([&](const ComponentSpec& one) { return uses(stage, one.name); }, before_each);
}

void Residents::denoise(std::string_view denoiser, const std::function<void()>& before_each) {
  unload_where([&](const ComponentSpec& one) {
    return one.role == Role::kDenoiser && one.name != denoiser;
  });
  load_where([&](const ComponentSpec& one) { return one.name == denoiser; }, before_each);
}

void Residents::decode(const std::function<void()>& before_each) {
  load_where([](const ComponentSpec& one) { return one.role == Role::kVae; }, before_each);
}

void Residents::end_encoding() {
  unload_where(only_encodes);
}

void Residents::end() {
  unload_where([](const ComponentSpec&) { return true; });
}

}  // namespace atelier::model
