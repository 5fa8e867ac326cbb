#include "host/parameters/starting_weights.h"

#include "atelier/error.h"

#include "host/files/model_paths.h"
#include "host/report/problems.h"

namespace atelier::parameters {

using files::Checkpoint;
using model::LoadedPart;

StartingWeights::StartingWeights(model::LoadedModel& model, const std::string& path,
                                 const model::DetectHints& hints)
    : model_(model), checkpoint_(Checkpoint::open({path, {path}, {}, files::config_beside(path)})) {
  const ModelFamily& family = model.family();
  if (model::is_lora(checkpoint_.index()))
    throw Error(ErrorCode::kInvalidArgument, path + ": is a LoRA",
                "pass it with --lora_checkpoint");
  const std::vector<LoadedPart> parts =
      model::detect_parts(family, checkpoint_, hints, model.parts());
  if (parts.size() != 1 || model.find_part(parts.front().detection.component) == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument,
        path + ": is no component of the " + std::string(family.name()) + " model that is trained",
        "atelier inspect says what it is");
  const Detection& detection = parts.front().detection;
  component_ = detection.component;
  binding_ = weights::bind_weights(family.weight_map(detection), detection.prefix,
                                   checkpoint_.index(), model.model().component(component_));
  binding_.throw_unless_complete(path, component_);
  const LoadedPart& replaced = *model.find_part(component_);
  const std::vector<std::string> differing =
      model::differing_numbers(detection, replaced.detection);
  if (!differing.empty())
    throw Error(ErrorCode::kInvalidArgument,
                path + ": its config differs from that of " + replaced.checkpoint.name() + " in " +
                    report::list_names(differing, 5),
                "begin with weights of the same model, or name this file in --model_paths");
}

void StartingWeights::load(progress::Progress& progress,
                           const std::function<void()>& on_bytes) const {
  progress::Step step(progress, "load " + component_, 0, progress::Unit::kBytes);
  model_.load_component_from(component_, binding_, checkpoint_,
                             [&](const model::LoadProgress& state) {
                               step.set(state.bytes_done, state.bytes_total);
                               on_bytes();
                             });
  step.finish();
}

}  // namespace atelier::parameters
