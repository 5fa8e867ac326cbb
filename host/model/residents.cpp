#include "host/model/residents.h"

#include <algorithm>
#include <utility>

namespace atelier::model {

Residents::Residents(std::vector<PresentComponent> components, Call load, Call unload,
                     std::set<std::string, std::less<>> stays)
    : components_(std::move(components)),
      load_(std::move(load)),
      unload_(std::move(unload)),
      stays_(std::move(stays)) {
  std::erase_if(components_,
                [](const PresentComponent& one) { return one.spec.role == Role::kTokenizer; });
}

template <class F>
void Residents::load_where(const F& is_needed, const std::function<void()>& before_each) {
  for (const PresentComponent& component : components_) {
    if (!is_needed(component)) continue;
    if (before_each) before_each();
    load_(component.name);
  }
}

template <class F>
void Residents::unload_where(const F& may_leave) {
  for (const PresentComponent& component : components_) {
    if (may_leave(component) && !stays_.contains(component.name)) unload_(component.name);
  }
}

void Residents::encode(const EncodeStage& stage, const std::function<void()>& before_each) {
  load_where([&](const PresentComponent& one) { return uses(stage, one.spec); }, before_each);
}

void Residents::denoise(std::string_view denoiser, const std::vector<std::string>& controls,
                        const std::function<void()>& before_each) {
  const auto runs = [&](const PresentComponent& one) {
    return one.name == denoiser || std::ranges::find(controls, one.name) != controls.end();
  };
  unload_where([&](const PresentComponent& one) {
    const bool is_of_denoising =
        one.spec.role == Role::kDenoiser || one.spec.role == Role::kControl;
    return is_of_denoising && !runs(one);
  });
  load_where(runs, before_each);
}

void Residents::decode(const std::function<void()>& before_each) {
  load_where([](const PresentComponent& one) { return one.spec.role == Role::kVae; }, before_each);
}

void Residents::end_encoding() {
  unload_where([](const PresentComponent& one) { return only_encodes(one.spec); });
}

void Residents::end() {
  unload_where([](const PresentComponent&) { return true; });
}

}  // namespace atelier::model
