// What a family takes from a dataset row or from the command line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier {

// Sound is declared already and cannot be read yet.
enum class InputKind { kText, kImage, kVideo, kMask, kVideoMask, kAudio, kInteger, kReal, kFlag };

enum class InputUse { kTrain, kGenerate, kBoth };

// What becomes of the encoding of an input.
enum class InputRole {
  kCondition,  // the denoiser is given it
  // Training learns it: the stage that reads it gives "latents", the clean latents [C, T, H, W].
  // One input of a family at most.
  kTarget,
  // Sampling begins from it: the stage that reads the input of kTarget encodes it in that one's
  // place, and --denoising_strength says how much of it is changed. An image, or with a target of
  // clips a clip, of kGenerate; one input of a family at most.
  kStart,
};

// To which size images and masks are brought. All resizing is Pillow's.
enum class InputFit {
  kCrop,     // scaled until it covers what is made (bilinear), and the middle is cut out
  kStretch,  // scaled to the size of what is made, whatever its own shape is (bicubic)
  kAsIs,     // it keeps its own size
};

// What the target input gives in place of an image that a row of a dataset lacks.
enum class WhenAbsent { kNone, kFirstFrame, kLastFrame };

struct InputSpec {
  std::string_view name;  // "edit_image": the dataset column and the flag --edit_image
  InputKind kind;
  bool required = false;  // the host names every missing input at once, before any weight is loaded
  std::string_view required_by = "*";  // glob: other variants that take it do without it
  InputUse use = InputUse::kBoth;
  // Glob over Detection::variant of the denoiser: "*-edit*". Where it is another variant, the input
  // is not required, and refused when it is given.
  std::string_view variants = "*";
  std::string_view help = {};  // one line
  InputRole role = InputRole::kCondition;
  // How many values it has where it is given. It is a list, and its flag may be repeated, unless
  // max_count is 1; texts, images and masks may be lists.
  int64_t min_count = 1, max_count = 1;
  int64_t channels = 3;  // of an image: 3, transparency lies over white; 4, RGBA is kept
  InputFit fit = InputFit::kCrop;
  // An image of training may say what stands in for it; it is then never missing from a row.
  WhenAbsent when_absent = WhenAbsent::kNone;
};

// Images are float32 in [-1, 1]: kImage [channels, H, W], kVideo [channels, T, H, W]. Masks are
// float32 in [0, 1], the brightness of each pixel: kMask [1, H, W], kVideoMask [1, T, H, W].
using InputValue = std::variant<std::string, at::Tensor, std::vector<at::Tensor>, int64_t, double,
                                bool, std::vector<std::string>>;
using Inputs = std::map<std::string, InputValue, std::less<>>;

}  // namespace atelier
