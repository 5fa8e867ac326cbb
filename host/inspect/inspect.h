// What files are, and which family takes them.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/files/model_paths.h"
#include "host/model/model_loader.h"

namespace atelier::inspect {

// One thing that was found: its path, its kind, and what things of its kind have. What is wrong
// with it stands under "refused", as the error's line.
using Thing = nlohmann::ordered_json;

struct Options {
  std::vector<const ModelFamily*> families;  // that are asked about checkpoints
  std::map<std::string, DetectHint> hints;
  bool lists_tensors = false;
};

class Inspector {
 public:
  using Show = std::function<void(const Thing&)>;
  using Refuse = std::function<void(const Error&)>;

  Inspector(Options options, Show show) : options_(std::move(options)), show_(std::move(show)) {}

  // Shows each thing at a path: the file, or what the folder holds. What cannot be told is refused.
  void run(const std::string& path, const Refuse& refuse);

 private:
  Thing inspect_file(const std::string& path);
  Thing inspect_json(const std::string& path);
  Thing inspect_checkpoint(const files::CheckpointFiles& files);
  void inspect_folder(const std::string& path);
  void attempt(const std::function<void()>& inspect);

  Options options_;
  Show show_;
  Refuse refuse_;
  // What was found so far and has a config, for files without one.
  std::vector<model::LoadedPart> lenders_;
};

}  // namespace atelier::inspect
