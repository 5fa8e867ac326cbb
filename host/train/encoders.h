// The components that work before training: which they are, what they are, and their use.
#pragma once

#include <string>
#include <vector>

#include "host/model/model_loader.h"
#include "host/progress/progress.h"
#include "host/train/cache_manifest.h"
#include "host/train/encoding_store.h"

namespace atelier::train {

// Whether a component, tokenizers included, is needed to encode texts, or pictures.
bool takes_part(const ComponentSpec& component, Encoding encoding);

// Those that `model` has.
EncoderRecords encoder_records(const model::LoadedModel& model, Encoding encoding);

// The same; a required one that the model was made without is taken to be that of `recorded`.
// Throws Error{kNotFound} when it is not there either.
EncoderRecords encoder_records(const model::LoadedModel& model, Encoding encoding,
                               const EncoderRecords& recorded);

// Encoders that are loaded while this lives; those that were there before stay. Not thread-safe.
class Encoders {
 public:
  Encoders(model::LoadedModel& model, Encoding encoding, progress::Progress& progress);
  ~Encoders();
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  // On the CPU, without gradients. Throw Error{kNumerics} when values are not finite, and what the
  // model throws.
  Conditioning encode_text(const Inputs& inputs);
  at::Tensor encode_picture(const at::Tensor& pixels_3HW);

 private:
  void unload();

  model::LoadedModel& model_;
  std::vector<std::string> loaded_;
};

}  // namespace atelier::train
