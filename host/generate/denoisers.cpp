#include "host/generate/denoisers.h"

#include <algorithm>
#include <set>
#include <utility>

namespace atelier::generate {

void Denoisers::use(std::span<const Step> steps) {
  const Step& first = steps.front();
  bring(denoiser_of(*first.request, context_.of.stages.denoisers, first.number), steps);
  prepare(steps);
}

void Denoisers::bring(const model::RangedDenoiser& wanted, std::span<const Step> steps) {
  std::vector<std::string> controls = controls_beside(wanted.name(), steps);
  // One that began to hand over to the next is whole no more, where a job was cancelled behind
  // that.
  if (current_ == &wanted && next_ == nullptr && controls_ == controls) return;
  if (next_ == &wanted) next_ = nullptr;
  const bool stays = current_ != nullptr && current_ != &wanted && next_ == nullptr &&
                     context_.of.stays.contains(current_->name());
  if (!stays) forget();
  current_ = nullptr;
  context_.residents.denoise(wanted.name(), controls, context_.check());
  context_.check_cancelled();
  current_ = &wanted;
  controls_ = std::move(controls);
}

std::vector<std::string> Denoisers::controls_beside(std::string_view denoiser,
                                                    std::span<const Step> steps) const {
  std::set<std::string> controls;
  for (const Step& step : steps) {
    for (std::string& name : context_.of.stages.controls_beside(denoiser, step.request->inputs))
      if (!step.request->idle_controls.contains(name)) controls.insert(std::move(name));
  }
  return {controls.begin(), controls.end()};
}

DenoiserLevels Denoisers::levels_of(const Step& step) const {
  return levels_around(*step.request, context_.of.stages.denoisers, step.number);
}

void Denoisers::prepare(std::span<const Step> steps) {
  const Prepared wanted = {
      .levels = levels_of(steps.front()).levels,
      .lora_version = context_.of.loras != nullptr ? context_.of.loras->version() : 0};
  const bool is_shared = std::ranges::all_of(
      steps, [&](const Step& step) { return levels_of(step).levels == wanted.levels; });
  const auto found = prepared_.find(current_->name());
  if (is_shared && found != prepared_.end() && found->second == wanted) return;
  if (!is_shared || found != prepared_.end()) forget_levels();
  if (!is_shared) return;
  try {
    context_.of.model.prepare_levels(current_->name(), wanted.levels, context_.runner());
  } catch (...) {
    forget();
    throw;
  }
  prepared_.emplace(current_->name(), wanted);
}

std::optional<int64_t> Denoisers::level_of(const Request& request, int64_t step) const {
  if (!prepared_.contains(current_->name())) return std::nullopt;
  return step - levels_of({&request, step}).first_step;
}

void Denoisers::hand_over(const model::RangedDenoiser& next) {
  const EngineModel& of = context_.of;
  if (!of.hand_over || of.stays.contains(current_->name())) return;
  next_ = &next;
  of.hand_over(current_->name(), next.name());
}

void Denoisers::take_back() {
  if (next_ == nullptr) return;
  context_.of.unload(std::exchange(next_, nullptr)->name());
  context_.of.unload(current_->name());
  context_.of.load(current_->name());
}

void Denoisers::forget_levels() {
  prepared_.clear();
  context_.of.model.forget_levels();
}

void Denoisers::forget() {
  if (next_ != nullptr) {  // neither of the two is whole
    context_.of.unload(std::exchange(next_, nullptr)->name());
    context_.of.unload(current_->name());
  }
  current_ = nullptr;
  forget_levels();
}

}  // namespace atelier::generate
