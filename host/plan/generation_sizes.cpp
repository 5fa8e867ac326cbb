// The phases of a generation: encode, denoise, decode.
#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/generate/solvers.h"
#include "host/generate/tiling.h"
#include "host/plan/phases.h"
#include "host/plan/run_sizes.h"
#include "host/plugins/guard.h"

namespace atelier::plan {
namespace {

using at::Tensor;
using generate::Request;
using memory::Manner;
using memory::PlannedPhase;
using model::LoadedModel;

struct Prompts {
  Conditioning with, without;
};

bool is_guided(const Request& request) {
  return request.cfg_scale != 1.0;
}

class GenerationSizes {
 public:
  GenerationSizes(LoadedModel& model, const GenerationBasis& generation, const PlanBasis& basis)
      : model_(model), generation_(generation), basis_(basis), dry_(model, basis.like) {}

  SizedRun sized() {
    const at::NoGradGuard no_grad;
    SizedRun sized;
    sized.main_phase = "denoise";
    sized.batch_size = std::max<int64_t>(1, request().batch_size);
    sized.run.prefetch = basis_.prefetch;
    sized.run.components = size_components(model_, basis_, /*prepares_levels=*/true);
    sized.run.phases.push_back(encode_phase());
    if (request().input_pixels.defined()) sized.run.phases.push_back(input_phase());
    const int64_t count = std::min(sized.batch_size, generation_.pictures);
    sized.run.phases.push_back(denoise_phase(count, sized));
    sized.run.phases.push_back(decode_phase());
    hold_loras(sized.run);
    return sized;
  }

 private:
  const Request& request() const { return generation_.request; }
  bool keeps_vae() const {
    return generation_.comes_back || request().input_pixels.defined() ||
           generation_.pictures > std::max<int64_t>(1, request().batch_size);
  }

  Conditioning encode(const std::string* negative, BlockRunner& runner) {
    return encode_conditions(dry_, model_, request().inputs, target(), negative, runner);
  }
  MediaTarget target() const { return {1, request().height, request().width}; }

  PlannedPhase encode_phase() {
    PlannedPhase phase{.name = "encode", .components = condition_encoders(model_)};
    if (generation_.comes_back) {
      phase.components = components_where(model_, [](const ComponentSpec&) { return true; });
    }
    const DryPass pass =
        dry_.measure([&](BlockRunner& runner) { prompts_.with = encode(nullptr, runner); });
    phase.manners = {manner_of(dry_, pass, condition_encoders(model_), basis_.profile)};
    if (is_guided(request())) {
      const DryPass second = dry_.measure([&](BlockRunner& runner) {
        prompts_.without = encode(&request().negative_prompt, runner);
      });
      phase.manners[0].device_bytes = std::max(phase.manners[0].device_bytes, second.peak_bytes);
      phase.passes = 2;
    }
    return phase;
  }

  // Tiles are alike: the first one is run, and counts for all of them. AsTiles makes such a
  // function of one that runs a tile.
  using AsTiles = std::function<generate::TileFunction(const generate::TileFunction&)>;
  DryPass measure_tiles(const std::function<void(BlockRunner&, const AsTiles&)>& call) {
    int64_t count = 0;
    std::vector<int64_t> shape;
    at::TensorOptions options;
    const AsTiles as_tiles = [&](const generate::TileFunction& run) {
      return [&, run](const Tensor& tile) {
        if (count++ > 0) return at::empty(shape, options);
        const Tensor first = run(tile);
        shape = first.sizes().vec();
        options = first.options();
        return first;
      };
    };
    DryPass pass = dry_.measure([&](BlockRunner& runner) { call(runner, as_tiles); });
    pass.repeat(static_cast<double>(std::max<int64_t>(1, count)));
    return pass;
  }

  PlannedPhase input_phase() {
    PlannedPhase phase{.name = "encode picture", .components = target_encoders(model_)};
    const std::vector<std::string> resident = condition_encoders(model_);
    phase.components.insert(phase.components.end(), resident.begin(), resident.end());
    const DryPass pass = measure_tiles([&](BlockRunner& runner, const AsTiles& as_tiles) {
      const Tensor pixels = dry_.tensor(request().input_pixels.sizes(), at::kFloat);
      const auto encode = [&](const Tensor& part) {
        return encode_target(dry_, model_, part, runner);
      };
      const int64_t stride = dry_.model().latent_spec().spatial_stride;
      input_ = request().tiling
                   ? generate::encode_tiled(pixels, *request().tiling, stride, as_tiles(encode))
                   : encode(pixels);
      input_ = input_.to(at::kFloat);
    });
    phase.manners = {manner_of(dry_, pass, target_encoders(model_), basis_.profile)};
    return phase;
  }

  PlannedPhase denoise_phase(int64_t count, SizedRun& sized) {
    PlannedPhase phase{.name = "denoise"};
    phase.components = components_where(model_, [&](const ComponentSpec& spec) {
      return spec.role == Role::kDenoiser || (keeps_vae() && spec.role == Role::kVae);
    });
    const auto batches = static_cast<double>((generation_.pictures + count - 1) / count);
    phase.passes = batches * static_cast<double>(std::ssize(request().sigmas) - 1);
    std::vector<bool> ways = {is_guided(request()) && request().batches_cfg};
    if (ways.front() && generation_.picks_cfg_batch) ways.push_back(false);
    for (const bool batched : ways) {
      Manner manner = denoise_manner(count, batched);
      if (ways.size() > 1) {
        manner.name = batched ? "--cfg_batch on" : "--cfg_batch off";
        manner.why = batched ? "both halves of guidance at once" : "needs less memory";
      }
      sized.cfg_batch.push_back(batched);
      sized.more_bytes.push_back(denoise_manner(count + 1, batched).device_bytes -
                                 manner.device_bytes);
      phase.manners.push_back(std::move(manner));
    }
    return phase;
  }

  Manner denoise_manner(int64_t count, bool batched) {
    const int64_t rows = batched ? 2 * count : count;
    std::vector<const Conditioning*> cond(static_cast<size_t>(count), &prompts_.with);
    if (batched) cond.insert(cond.end(), static_cast<size_t>(count), &prompts_.without);
    const DryPass pass =
        dry_.measure([&](BlockRunner& runner) { denoise(count, rows, cond, runner); });
    Manner manner = manner_of(dry_, pass, denoisers(model_), basis_.profile);
    if (is_guided(request()) && !batched) {
      manner.repeats = 2;
      manner.seconds *= 2;
    }
    return manner;
  }

  // One step, as the generator makes it.
  void denoise(int64_t count, int64_t rows, std::span<const Conditioning* const> cond,
               BlockRunner& runner) {
    std::vector<int64_t> shape = dry_.model().latent_shape(target());
    shape.insert(shape.begin(), count);
    const Tensor x = dry_.tensor(shape, at::kFloat);
    const auto solver = generate::find_solver(request().solver).make(request().sigmas, x);
    shape.front() = rows;
    const Tensor input = dry_.tensor(shape, dry_.dtype());
    const Tensor sigma = dry_.tensor({rows}, at::kFloat);
    const std::string& denoiser = model_.denoiser()->detection.component;
    const auto levels = std::span(request().sigmas).first(request().sigmas.size() - 1);
    plugins::guard("denoise of a dry run", [&] {
      dry_.model().prepare_levels(denoiser, levels, runner);
      const Tensor v = dry_.model()
                           .denoise({.x_BCTHW = input,
                                     .sigma_B = sigma,
                                     .cond = cond,
                                     .level = 0,
                                     .denoiser = denoiser},
                                    runner)
                           .to(at::kFloat);
      dry_.model().forget_levels();
    });
  }

  PlannedPhase decode_phase() {
    PlannedPhase phase{.name = "decode"};
    phase.components = components_where(model_, [](const ComponentSpec& spec) {
      return spec.role == Role::kDenoiser || spec.role == Role::kVae;
    });
    phase.passes = static_cast<double>(generation_.pictures);
    std::vector<int64_t> shape = dry_.model().latent_shape(target());
    shape.insert(shape.begin(), 1);
    const DryPass pass = measure_tiles([&](BlockRunner& runner, const AsTiles& as_tiles) {
      const Tensor latents = dry_.tensor(shape, model_.decoder_dtype());
      const auto decode = [&](const Tensor& part) { return plan::decode(dry_, part, runner); };
      const int64_t stride = dry_.model().latent_spec().spatial_stride;
      const Tensor pixels = request().tiling ? generate::decode_tiled(latents, *request().tiling,
                                                                      stride, as_tiles(decode))
                                             : decode(latents);
    });
    phase.manners = {manner_of(dry_, pass, decoders(model_), basis_.profile)};
    return phase;
  }

  // LoRA factors rest on the device with their layers, whichever those are.
  void hold_loras(memory::PlannedRun& run) const {
    for (memory::PlannedComponent& component : run.components) {
      const std::vector<std::string> adapted = denoisers(model_);
      if (std::find(adapted.begin(), adapted.end(), component.name) == adapted.end()) continue;
      for (memory::StoredComponent& stored : component.storages)
        stored.outside += generation_.lora_bytes;
    }
  }

  LoadedModel& model_;
  const GenerationBasis& generation_;
  const PlanBasis& basis_;
  DryModel dry_;
  Prompts prompts_;
  Tensor input_;
};

}  // namespace

SizedRun size_generation(LoadedModel& model, const GenerationBasis& generation,
                         const PlanBasis& basis) {
  return GenerationSizes(model, generation, basis).sized();
}

}  // namespace atelier::plan
