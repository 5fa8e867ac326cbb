// The parts of a model that are loaded, placed and trained one by one.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "atelier/export.h"

namespace atelier {

// What a component is to the host. Denoisers are needed while sampling, VAEs to decode, and what
// encodes says the table of EncodeStage; at other times a component may be elsewhere, or not
// loaded.
enum class Role {
  kTokenizer,     // a folder or file without tensors, see ModelOptions::files
  kTextEncoder,   // texts, and what is read beside them, to conditionings
  kImageEncoder,  // images to conditionings
  kVae,           // pixels to latents, and back
  kDenoiser,
  kControl,  // blocks that run beside a denoiser's, see ComponentSpec::beside
};

// "tokenizer", "text_encoder", "image_encoder", "vae", "dit", "control".
ATELIER_API std::string_view role_name(Role role);

struct ComponentSpec {
  std::string_view name;  // "dit": names flags, caches and LoRA files
  Role role;
  // A model is refused without it. What is not required is demanded all the same where an input is
  // given whose EncodeStage uses it, and loaded nowhere else.
  bool required = true;
  std::string_view help = {};  // one line: what it is and which published files hold it
  // Globs over the denoiser's Detection::variant, with bars between them: "*-i2v-*|*-s2v-*".
  // Another variant does without it: it is not looked
  // for, and its file is refused.
  std::string_view variants = "*";
  // Globs in lower case over names of files and folders that hold this component, and not another
  // one of its architecture or another tokenizer: "*low_noise*", "transformer_2".
  std::array<const char*, 4> paths = {};
  // It is computed in float32 whatever the others are in, unless --dtype names it.
  bool is_float32 = false;
  // kControl: the denoiser that runs it. It comes, stays and leaves with that one, whatever the
  // noise level is, and may be streamed, trained and given LoRAs like it.
  std::string_view beside = {};
  // kControl: how many files of it a model may have at once. They are the components "controlnet",
  // "controlnet.1", "controlnet.2" in the order in which their paths were given.
  int64_t max_count = 1;
};

// "controlnet" of "controlnet.1", see ComponentSpec::max_count; any other name as it is.
ATELIER_API std::string_view spec_name(std::string_view component);

// Whether ComponentSpec::paths fit the name of a file or folder, in upper case or lower.
ATELIER_API bool is_called(const ComponentSpec& component, std::string_view name);

// One kind of encoding that a family makes before the denoiser runs: of texts, of images. The
// host loads, plans, caches and sends components away by this table.
struct EncodeStage {
  // "text": names folders of caches, and steps of the progress.
  std::string_view name;
  // The components that Model::encode() uses in this stage, tokenizers included. A control among
  // them is given what the stage makes, and does not encode.
  std::span<const std::string_view> components;
  // Names of ModelFamily::inputs() that it reads. A stage runs where one of them is given; one that
  // reads "prompt" runs again for the negative prompt, and one of pieces that reads none runs for
  // those that follow on others. Where several stages of one name are for a variant, the first
  // counts.
  std::span<const std::string_view> inputs;
  bool sees_target = false;         // the result depends on the size of what is generated
  std::string_view variants = "*";  // globs over the denoiser's Detection::variant, bars between
  // It runs for both branches of guidance although it does not read "prompt": a second time with
  // EncodeInputs::is_negative, see InputSpec::negative_of.
  bool per_branch = false;
  // It runs again for each piece of what is generated, see Model::pieces().
  bool per_piece = false;
  // What it makes of the prompt, "prompt_embeds", is given to the negative branch of guidance under
  // this name, too: for what follows the prompt on both branches. Empty: it is not.
  std::string_view kept_as = {};
};

}  // namespace atelier
