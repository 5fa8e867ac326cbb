// Where training samples come from: encoded once and kept on the disk, or encoded in each step by a
// component that is trained.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atelier/component.h"
#include "atelier/conditioning.h"
#include "atelier/model.h"

#include "host/data/dataset.h"
#include "host/model/model_loader.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::samples {

// Whether what a stage makes is made ahead of training, by the stage's name; others run in each
// step.
using CachedStages = std::map<std::string, bool, std::less<>>;

// What is made ahead when the components `trained`, which may be dotted ("text_encoder.layers.0"),
// are trained: nothing that one of them makes.
CachedStages cached_stages(const ModelFamily& family, std::span<const EncodeStage> stages,
                           std::span<const std::string> trained);
bool are_all_cached(const CachedStages& cached);

// A share of the work of several processes: the piece of number `rank`, of `size` pieces.
struct Share {
  int rank = 0, size = 1;
};

// Columns of a row that are no images: "num_inference_steps".
using RowValues = std::map<std::string, nlohmann::json, std::less<>>;

struct TrainSample {
  Conditioning cond;  // what is cached; of the target's stage, "latents"
  std::map<std::string, Inputs, std::less<>> inputs;  // of stages that are not cached, by name
  MediaTarget target;
  at::Tensor mask;  // float32 [1, 1, H', W'] at the latents' size, in [0, 1]; undefined: everywhere
  RowValues values;
  std::string place;  // names the row in messages
};

// The samples of a run, cached under a folder:
//
//   FOLDER/manifest.json            what was encoded, by what, and where each row's results are
//   FOLDER/STAGE/HASH.safetensors   one for each different input of a stage: FOLDER/text for each
//                                   text, FOLDER/latents for each image and size, with its mask
//
// HASH is of everything that decides the result: content of the files, texts, sizes, dtype, family,
// the version of its plugin and the encoders' weights. So a cache is filled on from where it was
// left, and changed rows are encoded anew. Immutable once filled; load() is safe to call from
// several threads.
class Samples {
 public:
  // Opens the samples of a dataset; `cached` names every stage. Hashes contents; encodes nothing.
  // Encoders that `model` was made without are taken to be those that the cache in `folder` was
  // made by; throws Error{kNotFound} when there is none. `with_empty_caption` also needs the
  // encoding of an empty prompt (caption dropout).
  static Samples of_dataset(std::shared_ptr<const data::Dataset> dataset,
                            const model::LoadedModel& model, const CachedStages& cached,
                            std::string folder, bool with_empty_caption);

  // Opens the samples of a cache alone (sft:train without a dataset). Throws Error{kNotFound} when
  // there is no manifest, and Error{kInvalidArgument} when the cache is stale: made by other
  // encoders, for another family, by another version of its plugin, or from files that have changed
  // since; it names the first of them and says to run sft:data_process again. Encoders that `model`
  // was made without are not compared, nor files that are gone. Throws Error{kDataLoss} when
  // entries are missing or their headers are damaged.
  static Samples of_cache(std::string folder, const model::LoadedModel& model,
                          bool with_empty_caption);

  // Alternatives of an item are one sample with it.
  size_t size() const;
  // Height and width in latent cells, and text length, do not matter for batches beyond this: a
  // number that is equal for samples whose latents have one shape.
  std::vector<int64_t> shapes() const;
  // For each sample, how many tokens of the denoiser it is: its latents, and its text and the
  // pictures that it is given, where they are encoded and in the folder.
  std::vector<int64_t> tokens() const;
  // TrainSample::values of a sample.
  const RowValues& values(size_t index) const;

  // Entries that are not in the folder yet.
  int64_t missing() const;

  // Different entries of each stage, and how many of them are not in the folder yet.
  struct Count {
    std::string what;  // "texts"
    int64_t entries = 0, missing = 0;
  };
  std::vector<Count> counts() const;

  // About what the missing entries will take on the disk. Loads no weights.
  struct Bytes {
    std::optional<int64_t> texts;  // nullopt when the model lacks denoiser or tokenizer to tell
    int64_t images = 0;
  };
  Bytes missing_bytes(model::LoadedModel& model) const;

  // Encodes what is missing, components loaded and unloaded as they are needed; the manifest comes
  // last. `stop` is asked at the edges of all work: true ends early, and what is done stays.
  // Returns whether it came to its end. Throws Error naming the row when latents or encodings are
  // not finite.
  //
  // Where processes share the work, each opens the samples before one of them fills; they are whole
  // when all have come to their ends, and one of them has opened and filled them again, alone.
  bool fill(model::LoadedModel& model, int workers, progress::Progress& progress,
            const std::function<bool()>& stop, const Share& share = {});

  // One sample, on the CPU. `empty_caption`: as if its prompt were empty. `drawn`, in [0, 1): which
  // of its alternatives. Throws Error{kDataLoss} naming an entry that is damaged.
  TrainSample load(size_t index, bool empty_caption, double drawn = 0.0) const;

  // Most that load() decodes of the files of one sample; 0 where everything is cached.
  int64_t decoded_bytes() const;

  // A hash of everything that load() gives; stands in checkpoints.
  const std::string& fingerprint() const;

 private:
  struct State;
  explicit Samples(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace atelier::samples
