// The components that work before training: which they are, what they are, and their use.
#pragma once

#include <string>
#include <vector>

#include "host/model/model_loader.h"
#include "host/model/residents.h"
#include "host/progress/progress.h"
#include "host/samples/cache_manifest.h"

namespace atelier::samples {

// Lists the components of a stage that `model` has, tokenizers included.
EncoderRecords encoder_records(const model::LoadedModel& model, const EncodeStage& stage);

// Records of all; one that the model was made without is taken to be that of `recorded`.
// Throws Error{kNotFound} when it is not there either.
EncoderRecords encoder_records(const model::LoadedModel& model, const EncodeStage& stage,
                               const EncoderRecords& recorded);

// The components of a stage, loaded while this lives; those that were there before stay. Not
// thread-safe.
class Encoders {
 public:
  Encoders(model::LoadedModel& model, const EncodeStage& stage, progress::Progress& progress);
  ~Encoders();
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  // On the CPU, without gradients. Throws Error{kNumerics} when values are not finite, and what the
  // model throws.
  Conditioning encode(const Inputs& values, const MediaTarget& target);

 private:
  model::LoadedModel& model_;
  const EncodeStage stage_;
  model::Residents residents_;
};

}  // namespace atelier::samples
