// What an output folder already holds: which run or model it belongs to.
#pragma once

#include <string>
#include <vector>

namespace atelier::run {

// What a folder holds of a run, or of a model: names, sorted. Caches of encoded samples, what a
// kill left unfinished, and files of other kinds belong to nobody.
struct Occupants {
  std::vector<std::string> results;  // saved states, weights, and components or the list of a model
  std::vector<std::string> records;  // config.toml, metrics, sample images
};

// Empty for a folder that is not there.
Occupants find_occupants(const std::string& folder);

}  // namespace atelier::run
