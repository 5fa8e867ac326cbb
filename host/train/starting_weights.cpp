#include "host/train/starting_weights.h"

#include "atelier/error.h"

#include "host/plugins/guard.h"

namespace atelier::train {

using checkpoint::Checkpoint;

StartingWeights::StartingWeights(checkpoint::LoadedModel& model, const std::string& path)
    : model_(model), checkpoint_(Checkpoint::open(path, {path})) {
  const ModelFamily& family = model.family();
  if (checkpoint::is_lora(checkpoint_.index()))
    throw Error(ErrorCode::kInvalidArgument, path + ": is a LoRA",
                "pass it with --lora_checkpoint");
  const std::optional<Detection> detection = checkpoint::detect_checkpoint(family, checkpoint_);
  if (!detection || model.find_part(detection->component) == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument,
        path + ": is no component of the " + std::string(family.name()) + " model that is trained",
        "atelier inspect says what it is");
  component_ = detection->component;
  binding_ = plugins::guard(family.name(), [&] {
    return checkpoint::bind_weights(family.weight_map(*detection), detection->prefix,
                                    checkpoint_.index(), model.model().component(component_));
  });
  binding_.throw_unless_complete(path, component_);
}

void StartingWeights::load() const {
  model_.load_component_from(component_, binding_, checkpoint_);
}

}  // namespace atelier::train
