// What Samples knows. Private to samples.cpp and samples_fill.cpp.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "host/data/prefetcher.h"
#include "host/train/cache_manifest.h"
#include "host/train/encoding_store.h"
#include "host/train/samples.h"

namespace atelier::train {

struct Samples::State {
  // Something to encode, and the first row that needs it.
  struct Job {
    size_t item;
    bool empty_caption;
    std::string key;
  };
  struct Entries {
    std::set<std::string> keys;     // of all rows
    std::set<std::string> missing;  // those that are not in the folder
  };

  State(std::string folder, const ModelFamily& of_family, const LatentSpec& latent_spec)
      : store(std::move(folder)), family(of_family), spec(latent_spec) {}

  Entries& entries(Encoding encoding) { return encoding == Encoding::kText ? texts : pictures; }

  // Fills `texts` and `pictures` from the items of the manifest and the folder.
  void find_entries();
  std::vector<Job> missing_jobs(Encoding encoding);

  // Of fill(). Return whether they were not stopped.
  bool encode_texts(model::LoadedModel& model, int workers, progress::Progress& progress,
                    const std::function<bool()>& stop);
  bool encode_pictures(model::LoadedModel& model, int workers, progress::Progress& progress,
                       const std::function<bool()>& stop);
  template <typename T>
  bool encode_all(Encoding encoding, const std::vector<Job>& jobs, data::Prefetcher<T>& rows,
                  progress::Progress& progress, const std::function<bool()>& stop,
                  const std::function<NamedTensors(const T&)>& encode);
  // An entry that is on the disk now.
  void note_written(Encoding encoding, const std::string& key, const EntryShapes& shapes);

  // Of missing_bytes().
  std::optional<int64_t> missing_text_bytes(model::LoadedModel& model);

  std::shared_ptr<const data::Dataset> dataset;  // null: of a cache alone
  EncodingStore store;
  const ModelFamily& family;
  LatentSpec spec;
  bool with_empty_caption = false;
  Manifest manifest;
  std::string fingerprint;
  Entries texts, pictures;
  std::map<std::string, std::vector<int64_t>> latents_shapes;  // by key; of those that are there
};

}  // namespace atelier::train
