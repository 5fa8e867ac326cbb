// What is asked of the engine: images, or clips, of one prompt and one size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "atelier/model.h"
#include "atelier/schedule.h"

#include "host/lora/selection.h"
#include "host/model/stages.h"
#include "host/order/settings.h"
#include "host/sampling/solvers.h"

namespace atelier::generate {

struct Request {
  Inputs inputs;  // "prompt", and whatever else the family's stages read
  // Controls that do nothing although inputs are given that are for them, see Model::runs().
  std::set<std::string, std::less<>> idle_controls = {};
  // What encodings depend on beside `inputs`; see lora::Registry::fingerprint.
  std::string encoder_state = {};
  std::vector<lora::LoraRef> loras = {};  // see RequestLoras
  std::string negative_prompt;
  // The scale `cfg_off` turns classifier-free guidance off: the negative prompt is then not used.
  double cfg_scale = 1.0, cfg_off = 1.0;
  std::optional<double> cfg_scale_2;  // of the steps of other denoisers than the first; or the same
  // Steps whose 1 - sigma is not less than this go without it, and cost half.
  double cfg_trunc = 1.0;
  CfgRenorm cfg_renorm = CfgRenorm::kNone;
  double cfg_renorm_ratio = 1.0;
  // One call of the denoiser with both conditionings; otherwise two calls, with less memory. Where
  // one does not fit into the device's memory, there are two from that step on.
  bool batches_cfg = true;
  std::string schedule = {};  // the name of what made `sigmas`
  std::vector<float> sigmas;  // see make_sigmas()
  // From 0 to 1, how much of the start is made anew; nullopt: there is no start.
  std::optional<double> denoising_strength = {};
  bool whole_timesteps = false;  // of the levels that the denoiser is told
  // Where the second of two denoisers takes over, in place of their own border.
  std::optional<double> switch_boundary = {};
  SolverSpec solver = sampling::solvers().front();
  MediaTarget target = {};  // of each image
  double fps = 0.0;         // frames per second of a clip; 0: it has no rate
  // The pieces that each clip is made in, see Model::pieces(); empty: it is made at once.
  std::vector<Piece> pieces = {};
  // Reads what runs beside a piece, which `inputs` are without where there are pieces.
  std::function<Inputs(const Piece& piece)> read_beside = {};
  std::vector<uint64_t> seeds;  // the same
  int64_t batch_size = 1;       // images that are denoised together
  at::Tensor
      latents;  // float32 [N, C, T, H, W]: initial noise in place of the seeds'; may be undefined
  at::Tensor input_pixels;  // float32 [3, T, H, W] in [-1, 1], or a clip's bytes; may be undefined
  // float32 [1, H, W], of an input image: where it is less than one half, the image's latents stay,
  // at each step with its noise; may be undefined.
  at::Tensor inpaint_mask;
  std::optional<order::Tiling> tiling;  // of the VAE

  int64_t num_steps() const { return std::ssize(sigmas) - 1; }
};

// Steps of all images and pieces; images that are denoised together make them together.
int64_t steps_of_all(const Request& request);
// What the denoiser is told of the levels.
std::vector<float> denoiser_levels(const Request& request);
// The tokens of a denoiser's sequence for this target, as its schedule counts them.
int64_t tokens_of(const MediaTarget& target, const LatentSpec& spec);
// The latent frames of it.
int64_t latent_frames_of(const MediaTarget& target, const LatentSpec& spec);
// The one of `denoisers` that makes the step of that number, from 0: that of the level which it is
// told.
const model::RangedDenoiser& denoiser_of(const Request& request,
                                         std::span<const model::RangedDenoiser> denoisers,
                                         int64_t step);
// What a denoiser is told of the steps that it makes without another one between, and which step
// the first of these is.
struct DenoiserLevels {
  int64_t first_step = 0;
  std::vector<float> levels;
};
// The levels around a step.
DenoiserLevels levels_around(const Request& request,
                             std::span<const model::RangedDenoiser> denoisers, int64_t step);
// What such a step has: how far guidance goes, and whether it is made with any.
double cfg_scale_at(const Request& request, const model::Stages& stages, int64_t step);
bool is_guided(const Request& request, const model::Stages& stages, int64_t step);
// Whether any step is.
bool is_guided(const Request& request, const model::Stages& stages);

}  // namespace atelier::generate
