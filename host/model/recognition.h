// What checkpoints are to a family: their components, told by names, shapes and configs.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/files/checkpoint.h"
#include "host/files/model_paths.h"
#include "host/report/problems.h"

namespace atelier::model {

// What the user said about files, by a glob over their paths.
using DetectHints = std::map<std::string, DetectHint>;

// A recognised checkpoint.
struct LoadedPart {
  Detection detection;
  files::Checkpoint checkpoint;
  DetectHint hint = {};  // what the user said of it
  // The model's folder that was named beside it, where its own path has none and it takes the place
  // of a part of that folder; empty: none.
  std::string folder_beside = {};

  // The model's folder whose scheduler and model_index.json count for the part.
  std::string model_folder() const;
};

// Whether a tensor of a checkpoint is one of the part's.
bool owns(const Detection& part, std::string_view tensor);

// Says what a checkpoint is to a family: a part for each component, with the tensors that it owns
// alone. Tensors that are no component's are the first part's, and so are those of others that its
// own table knows and does not use: a file that is saved has them, too. Empty when it is nothing of
// the family's. Throws Error{kUnsupported} for a LoRA file, what ModelFamily::detect and assign
// throw, and Error{kInternal} where these name a component that the family does not have.
//
// A checkpoint without a config takes that of the first of `lenders` that is the same component and
// whose config does not contradict its tensors. A saved file is what it says where that is one of
// `lenders`, and else what one alone is to the family.
std::vector<LoadedPart> detect_parts(const ModelFamily& family, const files::Checkpoint& checkpoint,
                                     const DetectHints& hints = {},
                                     std::span<const LoadedPart> lenders = {});

// A checkpoint that the user named, and its parts.
struct RecognisedCheckpoint {
  files::FoundCheckpoint found;
  files::Checkpoint checkpoint;
  std::vector<LoadedPart> parts;
};

// Opens and recognises what was found, in its order, and assigns all parts together: several files
// of one control become "controlnet", "controlnet.1" and so on, see ComponentSpec::max_count. Those
// with a config lend it to those without, and so do `lenders`. A part outside of a model's folder
// that is like one in it, in component and numbers, belongs to that folder, too. What cannot be
// opened or is refused is added to `problems` and left out; so is what is nothing of the family's,
// unless it stands in a model folder: then it has no parts. Nothing is left where the family cannot
// say which part is which, and where there are more files of a control than it may have.
std::vector<RecognisedCheckpoint> recognise(const ModelFamily& family,
                                            const std::vector<files::FoundCheckpoint>& found,
                                            const DetectHints& hints,
                                            std::vector<LoadedPart> lenders,
                                            report::Problems& problems);

// Says which of a model's denoisers is which where nothing but their order told it, for the user:
// "dit is a.safetensors, dit2 is b.safetensors: …". Empty where files, names or hints tell it.
std::string told_by_order(const ModelFamily& family, std::span<const LoadedPart> parts);

// The numbers in which two checkpoints of one component differ, for messages: "axes".
std::vector<std::string> differing_numbers(const Detection& one, const Detection& other);

// Whether tensor names, in any published spelling, say that a file is a LoRA.
bool is_lora(const TensorIndex& index);

}  // namespace atelier::model
