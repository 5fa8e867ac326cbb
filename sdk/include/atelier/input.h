// What a family takes from a dataset row or from the command line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/picture.h"

namespace atelier {

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
  // Scaled until it lies within the size (bilinear), see InputSpec::pad_level. What is generated
  // with an image loses the bars that stand beside that.
  kPad,
};

// What stands behind the end of a clip or a sound that is shorter than what is made.
enum class Tail {
  kRefuse,    // nothing: it has to be as long
  kMirror,    // its frames backwards, then forwards again: 1 2 3 2 1 2
  kRepeat,    // its last frame
  kMinusOne,  // values of -1: black
  kZero,      // values of 0: silence
};

// What becomes of an image that a row of a dataset lacks.
enum class WhenAbsent {
  kNone,        // every row needs one
  kFirstFrame,  // the target's first frame stands in for it
  kLastFrame,   // its last frame
  kLeftOut,     // the row goes without it
};

struct InputSpec {
  std::string_view name;  // "edit_image": the dataset column and the flag --edit_image
  InputKind kind;
  bool required = false;  // the host names every missing input at once, before any weight is loaded
  std::string_view required_by = "*";  // globs: other variants that take it do without it
  InputUse use = InputUse::kBoth;
  // Globs over Detection::variant of the denoiser, with bars between them: "*-edit*|*-layered*".
  // Where it is another variant, the input
  // is not required, and refused when it is given.
  std::string_view variants = "*";
  std::string_view help = {};  // one line
  InputRole role = InputRole::kCondition;
  // How many values it has where it is given. It is a list, and its flag may be repeated, unless
  // max_count is 1; texts, images, masks and numbers may be lists.
  int64_t min_count = 1, max_count = 1;
  // An image has 3, and transparency lies over white, or 4, and RGBA is kept. A sound has 1 or 2.
  int64_t channels = 3;
  InputFit fit = InputFit::kCrop;
  // An image of training may say what becomes of rows that lack it; it is then never missing.
  WhenAbsent when_absent = WhenAbsent::kNone;
  // The values that a text may have; empty: any.
  std::span<const std::string_view> choices = {};
  // Another input, of which as many values are given, for a list of which any are.
  std::string_view paired_with = {};
  // The input whose place a text takes where the negative branch of guidance is encoded, in stages
  // of EncodeStage::per_branch; both are lists or neither. Where it is not given, empty texts do.
  std::string_view negative_of = {};
  // The component, of Role::kControl, that each value belongs to in turn: as many values as it has
  // files. Empty: none.
  std::string_view per_instance_of = {};

  // ---- Of images and clips
  // The filter of all scaling; none: that of `fit`.
  std::optional<ResizeFilter> filter = std::nullopt;
  int pad_level = 0;  // kPad: brightness beside the picture, from 0 (black) to 255 (white)
  // It shows what the target shows, pixel by pixel: beside a row of training its file has the shape
  // of the target's, at any size, and is fitted as that is.
  bool lies_on_target = false;
  // The size that it is brought to by `fit`, whatever the size of what is made is; 0: that one.
  int64_t fit_height = 0, fit_width = 0;

  // ---- Of clips and sounds
  // Frames per second to which a clip is brought, by the nearest frame, or to those of what is made
  // where these are others; 0: those that it has.
  double fps = 0.0;
  // It runs beside what is made, frame by frame: where that is made in pieces, a stage that runs
  // for each piece is given what lies beside the piece.
  bool along_clip = false;
  Tail tail = Tail::kRefuse;    // behind the end of what runs beside
  int64_t sample_rate = 16000;  // of a sound, samples per second to which it is brought
  bool is_soundtrack = false;   // the sound is written into the file of the clip that is made
};

// Images are float32 in [-1, 1]: kImage [channels, H, W], kVideo [channels, T, H, W]. Masks are
// float32 in [0, 1], the brightness of each pixel: kMask [1, H, W], kVideoMask [1, T, H, W]. Sounds
// are float32 in [-1, 1]: kAudio [channels, samples], with one channel the mean of the file's.
using InputValue =
    std::variant<std::string, at::Tensor, std::vector<at::Tensor>, int64_t, double, bool,
                 std::vector<std::string>, std::vector<int64_t>, std::vector<double>>;
using Inputs = std::map<std::string, InputValue, std::less<>>;

}  // namespace atelier
