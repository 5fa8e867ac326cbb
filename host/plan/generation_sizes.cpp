// The phases of a generation: encode, denoise, decode.
#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "host/model/components.h"
#include "host/plan/dry_generation.h"
#include "host/plan/phases.h"
#include "host/plan/run_sizes.h"

namespace atelier::plan {
namespace {

using generate::Request;
using memory::PlannedPhase;
using memory::Strategy;
using model::LoadedModel;

// As next() runs: nothing that was encoded is known.
constexpr const char* kAnotherState = "another;";

class GenerationSizes {
 public:
  GenerationSizes(LoadedModel& model, const GenerationBasis& generation, const PlanBasis& basis)
      : model_(model),
        generation_(generation),
        basis_(basis),
        dry_(model, basis.like, basis.counts_scratch),
        generator_(dry_, model, /*stays=*/{}, generation.layout),
        count_(generation.request.pieces.empty()
                   ? std::clamp<int64_t>(generation.request.batch_size, 1, generation.images)
                   : 1) {}

  SizedRun sized() {
    const at::NoGradGuard no_grad;
    sized_.batch_size = std::max<int64_t>(1, generation_.request.batch_size);
    sized_.run = size_components(model_, basis_, /*prepares_levels=*/true);
    const bool picks = !generation_.order->cfg_batch && is_guided();
    add_way(generation_.layout.batches_cfg, /*is_named=*/picks);
    if (picks) add_way(/*batches_cfg=*/false, /*is_named=*/true);
    hold_loras();
    return std::move(sized_);
  }

 private:
  bool is_guided() const {
    const auto num_steps = std::ssize(generation_.request.sigmas) - 1;
    for (int64_t i = 0; i < num_steps; ++i) {
      if (generate::is_guided(generation_.request, model_.stages(), i)) return true;
    }
    return false;
  }

  Request request(int64_t count, bool batches_cfg) const {
    Request request = generation_.request;
    request.batches_cfg = batches_cfg;
    request.batch_size = count;
    request.seeds.assign(static_cast<size_t>(count), 0);
    return request;
  }

  // A batch of images, and where more of them follow the next one.
  std::vector<DryPhase> run(bool batches_cfg) {
    Request asked = request(count_, batches_cfg);
    std::vector<DryPhase> phases = generator_.run(asked);
    // Everything that jobs of stdin have loaded may still be there when the next one comes.
    const bool comes_back = generation_.order->has_later_jobs();
    if (!comes_back && generation_.images <= count_) return phases;
    if (comes_back) asked.encoder_state += kAnotherState;
    for (const DryPhase& next : generator_.run(asked, /*is_next=*/true)) {
      const auto same = std::ranges::find_if(phases, [&](const DryPhase& phase) {
        return phase.name == next.name && phase.denoiser == next.denoiser;
      });
      if (same == phases.end()) continue;
      same->components.insert(next.components.begin(), next.components.end());
      same->pass.peak_bytes = std::max(same->pass.peak_bytes, next.pass.peak_bytes);
    }
    return phases;
  }

  // One way to make the two halves of guidance.
  void add_way(bool batches_cfg, bool is_named) {
    const std::vector<DryPhase> phases = run(batches_cfg);
    int64_t peak = 0, larger_peak = 0;
    for (const DryPhase& phase : phases) {
      if (phase.is_denoising()) peak = std::max(peak, phase.pass.peak_bytes);
      add(phase, batches_cfg, is_named);
    }
    for (const DryPhase& phase : generator_.run(request(count_ + 1, batches_cfg))) {
      if (phase.is_denoising()) larger_peak = std::max(larger_peak, phase.pass.peak_bytes);
    }
    sized_.layouts.push_back(generation_.layout);
    sized_.layouts.back().batches_cfg =
        generation_.order->cfg_batch.value_or(batches_cfg && is_guided());
    sized_.more_bytes.push_back(larger_peak - peak);
  }

  void add(const DryPhase& phase, bool batches_cfg, bool is_named) {
    std::string name = phase.name;
    if (phase.is_denoising() && model_.stages().denoisers.size() > 1)
      name += " with " + phase.denoiser;
    if (phase.is_denoising() && sized_.main_phase.empty()) sized_.main_phase = name;
    auto planned = std::ranges::find(sized_.run.phases, name, &PlannedPhase::name);
    const bool is_new = planned == sized_.run.phases.end();
    if (!is_new && !phase.is_denoising()) return;
    DryPass one = phase.pass;
    one.repeat(1.0 / phase.passes);
    Strategy strategy = strategy_of(dry_, model_, one, dtype_of(phase), basis_.profile);
    if (is_named && phase.is_denoising()) {
      strategy.name = batches_cfg ? "--cfg_batch on" : "--cfg_batch off";
      strategy.why = batches_cfg ? "both halves of guidance at once" : "needs less memory";
    }
    if (is_new) {
      sized_.run.phases.push_back({.name = name,
                                   .components = {phase.components.begin(), phase.components.end()},
                                   .passes = passes_of(phase)});
      planned = sized_.run.phases.end() - 1;
    }
    planned->strategies.push_back(std::move(strategy));
  }

  double passes_of(const DryPhase& phase) const {
    const auto in_a_clip =
        static_cast<double>(std::max<size_t>(generation_.request.pieces.size(), 1));
    if (phase.name == "decode") return static_cast<double>(generation_.images) * in_a_clip;
    const int64_t batches = (generation_.images + count_ - 1) / count_;
    return phase.passes * (phase.is_denoising() ? static_cast<double>(batches) : 1.0);
  }

  at::ScalarType dtype_of(const DryPhase& phase) const {
    if (phase.is_denoising()) return dry_.dtype(phase.denoiser);
    const bool is_of_vae = phase.name == "decode" || phase.components.empty();
    return is_of_vae ? model_.decoder_dtype() : dry_.dtype(*phase.components.begin());
  }

  // LoRA factors rest on the device with their layers, whichever those are.
  void hold_loras() {
    for (memory::PlannedComponent& component : sized_.run.components) {
      if (!model::has_role(model_.family(), component.name, Role::kDenoiser)) continue;
      for (memory::StoredComponent& stored : component.storages)
        stored.outside += generation_.lora_bytes;
    }
  }

  LoadedModel& model_;
  const GenerationBasis& generation_;
  const PlanBasis& basis_;
  DryModel dry_;
  DryGeneration generator_;
  int64_t count_;  // images that are denoised together
  SizedRun sized_;
};

}  // namespace

SizedRun size_generation(LoadedModel& model, const GenerationBasis& generation,
                         const PlanBasis& basis) {
  return GenerationSizes(model, generation, basis).sized();
}

}  // namespace atelier::plan
