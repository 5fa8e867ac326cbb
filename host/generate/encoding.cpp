#include "host/generate/encoding.h"

#include <utility>

#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"

#include "host/inputs/parse.h"

namespace atelier::generate {
namespace {

// The most bytes of encoded prompts that are kept for later requests.
constexpr int64_t kCacheBytes = 2 * Encoder::kAheadBytes;

// What an encoding is found by: all that it depends on.
std::string key_of(const EncodeStage& stage, const EncodeInputs& in,
                   const std::string& encoder_state) {
  std::string key = encoder_state + std::string(stage.name) + (in.is_negative ? "-" : "+");
  if (stage.sees_target)
    key +=
        c10::str(in.target.frames, "x", in.target.height, "x", in.target.width, "@", in.fps, ":");
  return key + inputs::content_of(in.values);
}

void check_latents(const Request& request, std::vector<int64_t> latents_CTHW) {
  if (!request.latents.defined()) return;
  latents_CTHW.insert(latents_CTHW.begin(), std::ssize(request.seeds));
  if (request.latents.sizes() == latents_CTHW) return;
  throw Error(ErrorCode::kInvalidArgument,
              "tensor \"latents\": shape " + c10::str(request.latents.sizes()) + ", " +
                  c10::str(at::IntArrayRef(latents_CTHW)) + " expected",
              "that is [images, channels, frames, height, width] at this size");
}

}  // namespace

int64_t bytes_of(const Conditioning& cond) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : cond) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

Material Encoder::encode(const Request& request) {
  Material made = {.request = request, .cond = encode_conditions(request), .clean = {}};
  const std::vector<int64_t> shape = context_.of.model.latent_shape(request.target, made.cond.with);
  check_latents(request, shape);
  if (!request.input_pixels.defined()) return made;
  made.clean = encode_start(request, shape);
  if (made.clean.sizes() != shape) {
    throw Error(ErrorCode::kInvalidArgument, "the input image gives latents of shape " +
                                                 c10::str(made.clean.sizes()) + ", " +
                                                 c10::str(at::IntArrayRef(shape)) + " expected");
  }
  return made;
}

Conditionings Encoder::encode_conditions(const Request& request, const PieceInputs* piece) {
  const model::Stages& stages = context_.of.stages;
  Conditionings cond;
  std::map<std::string_view, Conditioning> of_both;  // what stages of a piece make for both
  Inputs given = piece ? piece->beside : Inputs();
  given.insert(request.inputs.begin(), request.inputs.end());
  for (const bool is_negative : {false, true}) {
    if (is_negative && !is_guided(request, stages)) break;
    for (const EncodeStage& stage : stages.encoding) {
      const bool is_of_piece = stage.per_piece && !request.pieces.empty();
      if (stages.is_target(stage) || is_of_piece != (piece != nullptr)) continue;
      EncodeInputs in = {.stage = stage.name,
                         .values = model::inputs_of(stage, given),
                         .target = request.target,
                         .fps = request.fps};
      const bool follows = is_of_piece && stage.inputs.empty() && piece->before_CTHW.defined();
      if (in.values.empty() && !follows) continue;
      if (piece) {
        in.target.frames = piece->piece.frames;
        in.piece = piece->piece;
        in.before_CTHW = piece->before_CTHW;
      }
      if (is_negative && model::runs_per_branch(stage))
        in = model::negative_of(std::move(in), request.negative_prompt, given, stages.inputs);
      const bool is_of_both = piece && !model::runs_per_branch(stage);
      Conditioning part = is_of_both && is_negative
                              ? of_both.at(stage.name)
                              : encode_stage(stage, in, request.encoder_state);
      if (is_of_both) of_both[stage.name] = part;
      (is_negative ? cond.without : cond.with).merge(part);
      if (is_negative && !stage.kept_as.empty())
        cond.without.emplace(stage.kept_as, cond.with.at(std::string(kPromptEmbeds)));
    }
  }
  return cond;
}

// What is made of a piece is not asked for again.
Conditioning Encoder::encode_stage(const EncodeStage& stage, const EncodeInputs& in,
                                   const std::string& encoder_state) {
  if (in.piece) return run_stage(stage, in);
  const std::string key = key_of(stage, in, encoder_state);
  if (const auto found = cache_.find(key); found != cache_.end()) return found->second;
  Conditioning cond = run_stage(stage, in);
  keep(key, cond);
  return cond;
}

Conditioning Encoder::run_stage(const EncodeStage& stage, const EncodeInputs& in) {
  const EngineModel& of = context_.of;
  context_.residents.encode(stage, context_.check());
  context_.begin_phase("encode");
  context_.check_cancelled();
  int64_t num_blocks = 0;
  for (const model::PresentComponent& component : of.stages.components) {
    if (component.spec.role != Role::kTokenizer && model::uses(stage, component.spec))
      num_blocks += std::ssize(of.model.blocks(component.name));
  }
  const std::string what(model::is_prompted(stage) ? "prompt" : stage.name);
  progress::Step step(context_.progress, "encode " + what, num_blocks, progress::Unit::kParts);
  CountingRunner counting(context_.runner(), step);
  Conditioning cond = model::encode(of.model, in, counting, of.device);
  for (auto& [name, tensor] : cond) tensor = tensor.to(of.device);
  step.finish();
  return cond;
}

void Encoder::keep(const std::string& key, const Conditioning& cond) {
  cache_bytes_ += bytes_of(cond);
  cache_.emplace(key, cond);
  cache_order_.push_back(key);
  while (cache_bytes_ > kCacheBytes) {
    const auto oldest = cache_.find(cache_order_.front());
    cache_bytes_ -= bytes_of(oldest->second);
    cache_.erase(oldest);
    cache_order_.pop_front();
  }
}

at::Tensor Encoder::encode_start(const Request& request, at::IntArrayRef latents_CTHW) {
  const EngineModel& of = context_.of;
  const EncodeStage* stage = of.stages.target_stage();
  if (stage == nullptr)
    throw Error(ErrorCode::kUnsupported, "this family does not start from an image",
                "leave the image out");
  context_.residents.encode(*stage, context_.check());
  context_.begin_phase("encode");
  context_.check_cancelled();
  const bool is_image = request.input_pixels.size(1) == 1;
  progress::Step step(context_.progress, is_image ? "encode image" : "encode clip", 0,
                      progress::Unit::kParts);
  CountingRunner counting(context_.runner(), step);
  BlockRunner& blocks = request.tiling ? context_.runner() : counting;
  const Inputs beside = model::inputs_of(*stage, request.inputs);
  const LatentSpec spec = of.model.latent_spec();
  const bool is_plain =
      latents_CTHW[1] == (request.input_pixels.size(1) - 1) / spec.temporal_stride + 1;
  const TileFunction encode = context_.through_vae([&](const at::Tensor& pixels) {
    EncodeInputs in = of.stages.target_inputs(pixels);
    in.values.insert(beside.begin(), beside.end());
    in.fps = request.fps;
    return model::encode(of.model, in, blocks, of.device).at("latents");
  });
  const at::Tensor pixels = request.input_pixels.to(of.device);
  const auto on_tile = [&](int64_t done, int64_t total) {
    step.set(done, total);
    context_.check_cancelled();
  };
  const at::Tensor latents =
      request.tiling && is_plain && beside.empty()  // no tile has a part of anything else
          ? encode_tiled(pixels, *request.tiling, spec.spatial_stride, encode, on_tile,
                         context_.tile_ranks())
          : encode(pixels);
  step.finish();
  return latents.to(at::kFloat);
}

}  // namespace atelier::generate
