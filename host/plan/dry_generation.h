// The engine on a model without values: which phases an image has, and what each one takes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "host/generate/session.h"
#include "host/plan/dry_model.h"
#include "host/progress/progress.h"

namespace atelier::plan {

struct DryPhase {
  std::string name;                       // "encode", "encode image", "denoise", "decode"
  std::set<std::string> components = {};  // that were loaded, at any time of it
  std::string denoiser = {};              // of steps: which one made them
  DryPass pass = {};                      // all of it
  double passes = 0.0;                    // prompts and images that are encoded, steps, images
  bool is_denoising() const { return !denoiser.empty(); }
};

// Runs generate::Engine as it is, on meta tensors; of steps that are alike it makes the first
// one, and of tiles and images that are alike it decodes one. Not thread-safe.
class DryGeneration {
 public:
  // Components of `stays` are there from the start and do not leave. Everything outlives
  // this.
  DryGeneration(DryModel& dry, model::LoadedModel& model, std::set<std::string> stays = {},
                const generate::Layout& layout = {});
  DryGeneration(const DryGeneration&) = delete;  // its engine points into it
  DryGeneration& operator=(const DryGeneration&) = delete;

  // Encodes the prompts of `request` for runs that come.
  void encode_ahead(const generate::Request& request);
  // Makes the images of `request`, whose noise need not be there. What was encoded in an earlier
  // run is not encoded again. `is_next`: components are where the run before left them.
  std::vector<DryPhase> run(generate::Request request, bool is_next = false);

 private:
  generate::EngineModel engine_model();
  void choose_steps(const generate::Request& request);
  void begin(std::string_view phase, int64_t step);
  void load(std::string_view component);
  void switch_to(const std::string& name, const std::string& denoiser, double times);
  void end_lap();

  DryModel& dry_;
  model::LoadedModel& model_;
  const std::set<std::string> stays_;
  const generate::Layout layout_;
  progress::Progress progress_;
  generate::Engine engine_;

  std::set<std::string> there_;      // components that are loaded
  std::string denoiser_;             // the one that came last
  std::map<int64_t, double> steps_;  // that are made, and how many are like each
  std::vector<DryPhase> phases_;
  size_t now_ = SIZE_MAX;                   // which of them goes on
  double times_ = 0.0;                      // how many passes the one that goes on stands for
  double pieces_ = 0.0, like_piece_ = 1.0;  // of a clip, and how many are like the one that is made
  bool has_encoded_ = false, has_more_to_encode_with_ = false;
};

}  // namespace atelier::plan
