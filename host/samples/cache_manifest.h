// What a cache says of itself: manifest.json.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/samples/samples.h"
#include "host/samples/source_files.h"

namespace atelier::samples {

// Tags of errors: a manifest.json that is something else, which is not written over, and a cache
// that was made from other files or by another version.
inline constexpr const char* kForeignCache = "CACHE_FOREIGN";
inline constexpr const char* kStaleCache = "CACHE_STALE";

// The version of the plugins that caches are of which say none: keys and manifests name others. All
// plugins that came with the program had this one before versions were noted.
inline constexpr const char* kUnsaidVersion = "0.1.0";

// An encoder: a component that is used before training.
struct EncoderRecord {
  std::string fingerprint;
  std::string dtype;  // of its weights; empty where there are none
  bool operator==(const EncoderRecord&) const = default;
};
using EncoderRecords = std::map<std::string, EncoderRecord, std::less<>>;  // by component

// By stage.
using Keys = std::map<std::string, std::string, std::less<>>;

// A row. Keys name entries; of what is not cached they tell contents apart and no more.
struct CacheItem {
  std::string place;
  bool is_alternative = false;  // see data::Item
  MediaTarget target;
  std::vector<int64_t> latents_shape;  // empty: not cached
  Keys keys;
  // The entries of the row with an empty prompt, for stages that read one; empty texts: not cached.
  Keys empty_keys;
  std::map<std::string, nlohmann::json, std::less<>> values;
  std::vector<std::string> files;  // absolute paths
};

struct Manifest {
  bool is_complete = false;  // false: the encoding was interrupted
  std::string family;
  std::string plugin_version = kUnsaidVersion;  // of the family's plugin
  CachedStages cached;
  std::map<std::string, EncoderRecords, std::less<>> encoders;  // by stage, of all of `cached`
  std::string dataset;                                          // its fingerprint
  nlohmann::json options;                                       // of the dataset; for readers
  SourceFiles files;
  std::vector<CacheItem> items;

  // Throws Error{kNotFound} when there is none, {kDataLoss} when it is damaged and
  // {kInvalidArgument} for another version, or for a file of another kind (kForeignCache).
  static Manifest read(const std::string& folder);

  // Replaces FOLDER/manifest.json, unless that says the same already. Throws Error{kEnvironment}.
  void write(const std::string& folder) const;

  // FOLDER/manifest.json.
  static std::string path(const std::string& folder);
};

}  // namespace atelier::samples
