// From prompts to pixels: encode, denoise, decode.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model.h"
#include "atelier/schedule.h"

#include "host/generate/picture_ranks.h"
#include "host/generate/tiling.h"
#include "host/model/residents.h"
#include "host/model/stages.h"
#include "host/progress/progress.h"
#include "host/sampling/solvers.h"

namespace atelier::generate {

// A model whose weights come and go.
struct Engine {
  Model& model;
  model::Stages stages = {};
  at::Device device = at::kCPU;
  at::ScalarType decoder_dtype = at::kFloat;  // of what decodes
  // Each does nothing when there is nothing to do.
  std::function<void(std::string_view component)> load = {}, unload = {};
  // See model::hand_over(). Empty: nothing is ahead of its time.
  std::function<void(std::string_view from, std::string_view to)> hand_over = {};
  BlockRunner* runner = nullptr;  // of the model's blocks, and outlives this; null: in place
  std::set<std::string, std::less<>> stays = {};  // components that do not leave; see Residents
  PictureRanks ranks = {};                        // all of them run the same requests
  // Is told what is done from now on: "encode", "denoise" with the step's number, "decode".
  std::function<void(std::string_view phase, int64_t number)> on_phase = {};
  // What a dry run makes only once of what is alike: steps and pieces that are left out, and what
  // the VAE is called through with a tile or a whole image. Empty: everything is made.
  std::function<bool(int64_t step)> makes_step = {};
  std::function<bool(size_t piece)> makes_piece = {};
  std::function<at::Tensor(const TileFunction& run, const at::Tensor& in)> through_vae = {};
};

// Images, or clips, of one prompt and one size.
struct Request {
  Inputs inputs;  // "prompt", and whatever else the family's stages read
  // What encodings depend on beside `inputs`; see lora::Registry::fingerprint.
  std::string encoder_state = {};
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
};

// The one of `denoisers` that makes the step of that number, from 0: that of the level which it is
// told.
const model::RangedDenoiser& denoiser_of(const Request& request,
                                         std::span<const model::RangedDenoiser> denoisers,
                                         int64_t step);
// What such a step has: how far guidance goes, and whether it is made with any.
double cfg_scale_at(const Request& request, const model::Stages& stages, int64_t step);
bool is_guided(const Request& request, const model::Stages& stages, int64_t step);

// Results do not depend on batch_size, on batches_cfg, on other ranks or on what ran before, up to
// what the model's own arithmetic does with another batch. Not thread-safe.
class Generator {
 public:
  // `progress` outlives the generator. `is_cancelled` is asked at the edges of all work; see
  // ops::StopScope.
  Generator(Engine engine, progress::Progress& progress, std::function<bool()> is_cancelled = {});
  Generator(const Generator&) = delete;  // it points into its engine
  Generator& operator=(const Generator&) = delete;

  // Gets the frames of each image in order, as soon as they are decoded: float32 [3, frames, H, W]
  // in [-1, 1], on the CPU. `index`: which image they are of, `first`: the number of the first
  // frame. An image has one frame; those of a clip come in one call or in several. Of several ranks
  // the first gets them, others may or may not.
  using OnFrames = std::function<void(size_t index, int64_t first, const at::Tensor& pixels)>;

  // Gets the sound that is made beside a clip, before its frames; see Model::decode_sound().
  using OnSound = std::function<void(size_t index, const Sound& sound)>;

  // Throws Error{kCancelled} at the next edge after is_cancelled said yes; what on_frames has got
  // stays valid. Throws Error{kInvalidArgument} when latents or input_pixels have the wrong shape.
  void run(const Request& request, const OnFrames& on_frames, OnSound on_sound = {});

  // Encodes what `requests` will need, so that encoders are loaded once for all of them.
  // What does not fit into the cache is encoded when it is asked for.
  void encode_ahead(std::span<const Request> requests);

  // All components leave that do not stay.
  void unload() { residents_.end(); }

  int64_t cached_bytes() const { return cache_bytes_; }  // of encodings, on the device

 private:
  struct Conditionings {
    Conditioning with, without;
  };

  // A piece that is being made: what runs beside it, and the frames that it shares with the one
  // before, see EncodeInputs::before_CTHW.
  struct PieceInputs {
    Piece piece;
    Inputs beside;
    at::Tensor before_CTHW;
  };

  Conditionings encode_conditions(const Request& request, const PieceInputs* piece = nullptr);
  Conditioning encode(const EncodeStage& stage, const EncodeInputs& in,
                      const std::string& encoder_state);
  void keep(const std::string& key, const Conditioning& cond);
  at::Tensor encode_start(const Request& request, at::IntArrayRef latents_CTHW);
  at::Tensor initial_noise(const Request& request, const Conditioning& cond, size_t first,
                           size_t count) const;
  class Guided;
  struct Batch;
  struct Steps {
    int64_t begin = 0, end = 0;
  };
  std::vector<Steps> parts_of(const Request& request) const;
  Batch begin_batch(const Request& request, const Conditionings& cond, const at::Tensor& clean,
                    size_t first) const;
  void make(const Request& request, const Conditionings& cond, const at::Tensor& clean,
            const OnFrames& on_frames);
  void make_pieces(const Request& request, const Conditionings& of_clip, const OnFrames& on_frames);
  void share_frames(const at::Tensor& frames_CTHW) const;
  void sample(const Request& request, const Conditionings& cond, const at::Tensor& clean,
              const OnFrames& on_frames);
  void denoise(const Request& request, const Conditionings& cond, Batch& batch, const Steps& steps);
  void use_denoiser(const Request& request, int64_t step);
  void forget_denoiser();
  void hand_over(const Request& request, int64_t step);
  void take_back();
  void decode(const Request& request, const at::Tensor& latents_1CTHW,
              const model::SampleSink& sink);
  void decode_sound(const Request& request, const at::Tensor& latents_1CTHW,
                    const Conditioning& cond, size_t index);
  void decode(const Request& request, const Conditionings& cond, const Batch& batch,
              const OnFrames& on_frames);
  TileFunction through_vae(TileFunction run) const;
  TileRanks tile_ranks() const;
  void begin_phase(std::string_view phase, int64_t number = 0) const;

  BlockRunner& runner() { return engine_.runner != nullptr ? *engine_.runner : in_place_; }
  void check_cancelled() const;
  // As Residents ask it.
  std::function<void()> check() const {
    return [this] { check_cancelled(); };
  }

  Engine engine_;
  model::Residents residents_;
  DirectRunner in_place_;
  progress::Progress& progress_;
  std::function<bool()> is_cancelled_;

  OnSound on_sound_;         // of the run that goes on
  bool splits_cfg_ = false;  // both halves at once did not fit

  // The denoiser whose levels are prepared, and the step of the first of them.
  const model::RangedDenoiser* denoiser_ = nullptr;
  int64_t first_step_ = 0;
  bool hands_over_ = false;                      // no batch needs the denoiser after this one
  const model::RangedDenoiser* next_ = nullptr;  // its blocks are coming already

  // Encodings by stage and content, the oldest dropped first.
  std::map<std::string, Conditioning> cache_;
  std::deque<std::string> cache_order_;
  int64_t cache_bytes_ = 0;
};

}  // namespace atelier::generate
