#include "host/generate/engine_context.h"

#include <utility>

#include "atelier/error.h"

#include "host/distributed/staged.h"

namespace atelier::generate {

EngineContext::EngineContext(EngineModel model, progress::Progress& progress,
                             std::function<bool()> is_cancelled)
    : of(std::move(model)),
      residents(of.stages.components, of.load, of.unload, of.stays),
      progress(progress),
      is_cancelled_(std::move(is_cancelled)) {}

void EngineContext::check_cancelled() const {
  if (is_cancelled_ && is_cancelled_()) throw Error(ErrorCode::kCancelled, "stopped by the user");
}

void EngineContext::begin_phase(std::string_view phase, int64_t number) const {
  if (of.on_phase) of.on_phase(phase, number);
}

TileFunction EngineContext::through_vae(TileFunction run) const {
  if (!of.through_vae) return run;
  return [this, run = std::move(run)](const at::Tensor& in) { return of.through_vae(run, in); };
}

TileRanks EngineContext::tile_ranks() const {
  if (of.ranks.is_alone()) return {};
  distributed::Group& all = *of.ranks.all;
  return {.rank = all.rank(), .size = all.size(), .gather = [&all](const at::Tensor& tile) {
            return distributed::gathered(all, tile);
          }};
}

Tensors CountingRunner::run(Block& block, const Tensors& inputs) {
  Tensors outputs = inner_.run(block, inputs);
  step_.advance();
  return outputs;
}

}  // namespace atelier::generate
