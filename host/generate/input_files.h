// The files of a request's inputs, read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/files/checkpoint.h"
#include "host/inputs/fit.h"
#include "host/order/settings.h"

namespace atelier::generate {

struct InputFiles {
  Inputs inputs = {};            // the prompt, numbers and words too
  at::Tensor start_pixels = {};  // [C, T, H, W] of the image or clip to start from; undefined: none
  at::Tensor inpaint_mask = {};  // [1, H, W], undefined: none
  at::Tensor latents = {};       // float32 [N, C, T, H, W], initial noise; undefined: none
};

// Which inputs of a clip are read.
enum class Beside {
  kWhole,   // all, as long as the clip
  kPieces,  // those that do not run beside it, see InputSpec::along_clip
};

// Reads the files of settings that fill_target() has filled. Throws Error when a file cannot be
// read or does not fit.
InputFiles read_inputs(const order::Settings& settings, const ModelFamily& family,
                       Beside beside = Beside::kWhole);
// What runs beside a piece of the clip. Throws as read_inputs().
Inputs read_beside(const order::Settings& settings, const ModelFamily& family, const Piece& piece);
// The shapes of what these give, filled with zeros, without initial latents: headers of files alone
// are read.
InputFiles blank_inputs(const order::Settings& settings, const ModelFamily& family,
                        Beside beside = Beside::kWhole);
Inputs blank_beside(const order::Settings& settings, const ModelFamily& family, const Piece& piece);

// Inputs that are no files: what the text encoder is given beside images.
Inputs value_inputs(const order::Settings& settings, const ModelFamily& family);
// The inputs that are given; images, clips and sounds have the sizes of their files and no values,
// clips the frames that are seen. Files that cannot be read are told when they are checked.
Inputs input_shapes(const order::Settings& settings, const ModelFamily& family);

// The pieces of the clip of settings that fill_target() has filled, see Model::pieces(); none: it
// is made at once. Throws as Model::pieces, and names the place of the settings.
std::vector<Piece> pieces_of(const order::Settings& settings, const ModelFamily& family,
                             const Model& model, const order::Origin& place = {});
// What is made at once: the clip, or the largest of its pieces.
MediaTarget made_at_once(const order::Settings& settings, const ModelFamily& family,
                         const Model& model);

// The file whose sound is written beside the clip that is made, see InputSpec::is_soundtrack;
// empty: there is none.
std::string soundtrack_file(const order::Settings& settings, const ModelFamily& family);

// The part of the frames that is written: without the bars beside an image that is padded to their
// size, see InputFit::kPad. `settings` that fill_target() has filled.
inputs::Area written_area(const order::Settings& settings, const ModelFamily& family);

// The file of initial latents; throws Error{kNotFound} when it lacks the tensor "latents".
files::Checkpoint open_latents(const std::string& path);

}  // namespace atelier::generate
