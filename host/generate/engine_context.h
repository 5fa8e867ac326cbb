// What all parts of an engine work with.
#pragma once

#include <functional>
#include <string_view>

#include "host/generate/engine_model.h"
#include "host/model/residents.h"
#include "host/progress/progress.h"

namespace atelier::generate {

// Parts of an engine point to it: it stays where it is. Not thread-safe.
class EngineContext {
 public:
  // `progress` outlives it. `is_cancelled` is asked at the edges of all work; see ops::StopScope.
  EngineContext(EngineModel of, progress::Progress& progress, std::function<bool()> is_cancelled);
  EngineContext(const EngineContext&) = delete;
  EngineContext& operator=(const EngineContext&) = delete;

  const EngineModel of;
  model::Residents residents;
  progress::Progress& progress;

  BlockRunner& runner() { return of.runner != nullptr ? *of.runner : in_place_; }
  // Throws Error{kCancelled} where the user has said so.
  void check_cancelled() const;
  // As Residents ask it.
  std::function<void()> check() const {
    return [this] { check_cancelled(); };
  }
  void begin_phase(std::string_view phase, int64_t number = 0) const;

  // `run`, as EngineModel::through_vae calls it.
  TileFunction through_vae(TileFunction run) const;
  TileRanks tile_ranks() const;

 private:
  std::function<bool()> is_cancelled_;
  DirectRunner in_place_;
};

// Counts the blocks that `inner` runs.
class CountingRunner final : public BlockRunner {
 public:
  CountingRunner(BlockRunner& inner, progress::Step& step) : inner_(inner), step_(step) {}
  Tensors run(Block& block, const Tensors& inputs) override;
  std::shared_ptr<void> hold(Block& block) override { return inner_.hold(block); }

 private:
  BlockRunner& inner_;
  progress::Step& step_;
};

}  // namespace atelier::generate
