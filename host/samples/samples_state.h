// What Samples knows. Private to samples.cpp and samples_fill.cpp.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host/data/prefetcher.h"
#include "host/model/stages.h"
#include "host/samples/cache_manifest.h"
#include "host/samples/encoding_store.h"
#include "host/samples/samples.h"

namespace atelier::samples {

struct Samples::State {
  // Something to encode, and the first row that needs it.
  struct Job {
    size_t item;
    bool empty_caption;
    std::string key;
  };
  struct Entries {
    std::set<std::string> keys;             // of all rows
    std::set<std::string> missing;          // those that are not in the folder
    std::map<std::string, int64_t> tokens;  // of others, where they are any: see note_found()
  };

  State(std::string folder, const model::LoadedModel& model);

  bool is_cached(const EncodeStage& stage) const {
    const auto found = manifest.cached.find(stage.name);
    return found != manifest.cached.end() && found->second;
  }
  // Fills `first_items`, and `entries` from the items of the manifest and the folder.
  void find_entries();
  std::vector<Job> missing_jobs(const EncodeStage& stage, const Share& share = {});

  // What a stage reads of a row, and, of the target's stage, the row's mask.
  struct Row {
    Inputs values;
    at::Tensor mask;
  };
  // `decoded`: the row's files, read by the first stage that needs them, for the stages after it.
  Row read(const EncodeStage& stage, const Job& job, std::optional<data::Sample>& decoded) const;

  // The part of fill() for one stage. Returns whether it was not stopped.
  bool encode(const EncodeStage& stage, model::LoadedModel& model, int workers,
              progress::Progress& progress, const std::function<bool()>& stop, const Share& share);
  // An entry that is on the disk: of the target's latents their shape, and of another one how many
  // tokens of the denoiser it is.
  void note_found(const EncodeStage& stage, const std::string& key, const EntryShapes& shapes);

  // The part of missing_bytes() for a stage that reads texts.
  std::optional<int64_t> missing_text_bytes(model::LoadedModel& model, const EncodeStage& stage);

  std::shared_ptr<const data::Dataset> dataset;  // null: of a cache alone
  EncodingStore store;
  const ModelFamily& family;
  model::Stages stages;  // whose encoding is what reads something of the samples
  const LatentSpec spec;
  bool with_empty_caption = false;
  Manifest manifest;
  std::string fingerprint;
  std::vector<size_t> first_items;  // of each sample, in the manifest; and how many items there are
  std::map<std::string, Entries, std::less<>> entries;         // by stage
  std::map<std::string, std::vector<int64_t>> latents_shapes;  // by key; of those that are there
};

}  // namespace atelier::samples
