#include "host/plan/dry_generation.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "host/generate/engine.h"
#include "host/generate/request.h"
#include "host/plugins/guard.h"

namespace atelier::plan {

using generate::Request;

DryGeneration::DryGeneration(DryModel& dry, model::LoadedModel& model, std::set<std::string> stays,
                             const generate::Layout& layout)
    : dry_(dry),
      model_(model),
      stays_(std::move(stays)),
      layout_(layout),
      progress_(progress::Options{.quiet = true}),
      engine_(engine_model(), progress_) {}

generate::EngineModel DryGeneration::engine_model() {
  generate::EngineModel engine = generate::engine_model_of(model_);
  engine.device = at::kMeta;
  engine.runner = &dry_.runner();
  engine.load = [this](std::string_view component) { load(component); };
  engine.hand_over = {};
  engine.unload = [this](std::string_view component) { there_.erase(std::string(component)); };
  engine.stays.insert(stays_.begin(), stays_.end());
  engine.on_phase = [this](std::string_view phase, int64_t number) { begin(phase, number - 1); };
  engine.makes_step = [this](int64_t step) { return steps_.contains(step); };
  // The first piece has none before it; all others are alike.
  engine.makes_piece = [this](size_t piece) {
    like_piece_ = piece == 0 ? 1.0 : pieces_ - 1.0;
    return piece < 2;
  };
  engine.through_vae = [this](const generate::TileFunction& run, const at::Tensor& in) {
    return dry_.once(run, in);
  };
  return engine;
}

// The first step of each denoiser, with the same controls, with guidance or without.
void DryGeneration::choose_steps(const Request& request) {
  using Kind = std::tuple<const model::RangedDenoiser*, bool, std::set<std::string>>;
  std::map<Kind, int64_t> first;
  std::vector<std::set<std::string>> controls = generate::running_controls(request, model_);
  steps_.clear();
  for (int64_t i = 0; i < request.num_steps(); ++i) {
    const auto [kind, is_new] =
        first.try_emplace({&generate::denoiser_of(request, model_.stages().denoisers, i),
                           generate::is_guided(request, model_.stages(), i),
                           std::move(controls[static_cast<size_t>(i)])},
                          i);
    ++steps_[kind->second];
  }
}

std::vector<DryPhase> DryGeneration::run(Request request, bool is_next) {
  choose_steps(request);
  like_piece_ = 1.0;
  request.latents = at::Tensor();
  pieces_ = static_cast<double>(request.pieces.size());
  if (!is_next) there_ = stays_;
  has_encoded_ = has_more_to_encode_with_ = false;
  phases_.clear();
  now_ = SIZE_MAX;
  dry_.lap();
  plugins::guard("a dry run",
                 [&] { engine_.run(request, [](size_t, int64_t, const at::Tensor&) {}); });
  end_lap();
  return std::move(phases_);
}

void DryGeneration::encode_ahead(const Request& request) {
  plugins::guard("a dry run", [&] { engine_.encode_ahead({&request, 1}); });
}

void DryGeneration::begin(std::string_view phase, int64_t step) {
  dry_.make_graphs(phase == "denoise" && dry_.like() == at::kCUDA ? layout_.graph_rows : 0);
  if (phase == "denoise") return switch_to("denoise", denoiser_, steps_.at(step));
  if (phase != "encode") return switch_to(std::string(phase), "", 1.0);
  // What comes with a component of its own is not held beside what came before.
  switch_to(has_more_to_encode_with_ ? "encode image" : "encode", "", 1.0);
  has_encoded_ = true;
}

void DryGeneration::load(std::string_view component) {
  const bool is_new = there_.emplace(component).second;
  has_more_to_encode_with_ |= is_new && has_encoded_;
  const bool denoises = std::ranges::any_of(model_.stages().denoisers, [&](const auto& denoiser) {
    return denoiser.name() == component;
  });
  if (!denoises) return;
  denoiser_ = component;
  switch_to("denoise", denoiser_, 0.0);  // what it computes ahead
}

void DryGeneration::switch_to(const std::string& name, const std::string& denoiser, double times) {
  end_lap();
  const auto found = std::ranges::find_if(phases_, [&](const DryPhase& phase) {
    return phase.name == name && phase.denoiser == denoiser;
  });
  now_ = static_cast<size_t>(found - phases_.begin());
  if (found == phases_.end()) phases_.push_back({.name = name, .denoiser = denoiser});
  phases_[now_].components.insert(there_.begin(), there_.end());
  times_ = times * like_piece_;
}

void DryGeneration::end_lap() {
  DryPass pass = dry_.lap();
  if (now_ == SIZE_MAX) return;
  if (times_ > 0) pass.repeat(times_);
  phases_[now_].pass += pass;
  phases_[now_].passes += times_;
}

}  // namespace atelier::plan
