// Which denoiser is there, and what it has computed ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/generate/engine_context.h"
#include "host/generate/image_request.h"

namespace atelier::generate {

// One denoiser of several is used at a time. Not thread-safe.
class Denoisers {
 public:
  // `context` outlives it.
  explicit Denoisers(EngineContext& context) : context_(context) {}

  // The one that was brought last; null: none is used.
  const model::RangedDenoiser* current() const { return current_; }

  // Brings the denoiser that makes all of `steps`, and the controls that run beside it for any of
  // them; others leave. Has it compute ahead what the levels of its steps say, where all have the
  // same ones.
  struct Step {
    const Request* request;
    int64_t number;
  };
  void use(std::span<const Step> steps);
  // Which of the levels that were computed ahead a step has; nullopt: none were.
  std::optional<int64_t> level_of(const Request& request, int64_t step) const;

  // Before the last call of the one that is there: `next` begins to come, where it comes and goes.
  void hand_over(const model::RangedDenoiser& next);
  // The one that is there is called again after all.
  void take_back();

  // What was computed ahead is stale, or its room is needed.
  void forget_levels();
  // None is used any more. Weights stay where they are, but for those that are half handed over.
  void forget();

 private:
  void bring(const model::RangedDenoiser& wanted, std::span<const Step> steps);
  void prepare(std::span<const Step> steps);
  // Controls that run beside it for any of the steps' requests.
  std::vector<std::string> controls_beside(std::string_view denoiser,
                                           std::span<const Step> steps) const;
  DenoiserLevels levels_of(const Step& step) const;

  EngineContext& context_;
  const model::RangedDenoiser* current_ = nullptr;
  const model::RangedDenoiser* next_ = nullptr;  // its blocks are coming already
  std::vector<std::string> controls_;
  struct Prepared {
    std::vector<float> levels;
    uint64_t lora_version;
    bool operator==(const Prepared&) const = default;
  };
  // By denoiser: several have theirs where none leaves for another.
  std::map<std::string, Prepared, std::less<>> prepared_;
};

}  // namespace atelier::generate
