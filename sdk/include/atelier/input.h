// What a family takes from a dataset row or from the command line.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier {

enum class InputKind { kText, kImage, kImageList, kVideo, kMask, kAudio, kInteger, kReal, kFlag };

enum class InputUse { kTrain, kGenerate, kBoth };

// What becomes of the encoding of an input.
enum class InputRole {
  kCondition,  // the denoiser is given it
  // Training learns it, and sampling may begin from it: the stage that reads it gives "latents",
  // the clean latents [C, T, H, W]. One input of a family at most.
  kTarget,
};

struct InputSpec {
  std::string_view name;  // "edit_image": the dataset column and the flag --edit_image
  InputKind kind;
  bool required = false;  // the host names every missing input at once, before any weight is loaded
  InputUse use = InputUse::kBoth;
  std::string_view variants = "*";  // glob over Detection::variant: "*-edit*"
  std::string_view help = {};       // one line
  InputRole role = InputRole::kCondition;
};

// Images are float32 RGB in [-1, 1]: kImage [3, H, W], kVideo [3, T, H, W]; kMask is [1, H, W] in
// [0, 1].
using InputValue =
    std::variant<std::string, at::Tensor, std::vector<at::Tensor>, int64_t, double, bool>;
using Inputs = std::map<std::string, InputValue, std::less<>>;

}  // namespace atelier
