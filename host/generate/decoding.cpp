#include "host/generate/decoding.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/plugins/guard.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

constexpr int64_t kPreviewCells = 32;  // of latents, along the longer side at most

Error wrong_frames(int64_t decoded, int64_t asked) {
  return {ErrorCode::kInternal, "decode: gives " + std::to_string(decoded) + " frames of " +
                                    std::to_string(asked) + " that are asked for"};
}

}  // namespace

void Decoder::decode(const Trajectory& through, const OnFrames& on_frames,
                     const OnSound& on_sound) {
  const Request& request = through.request();
  const EngineModel& of = context_.of;
  if (!of.ranks.is_first() && !request.tiling) return;  // nothing is shared out
  for (int64_t i = 0; i < through.count(); ++i) {
    const size_t index = through.first() + static_cast<size_t>(i);
    context_.residents.decode(context_.check());
    context_.begin_phase("decode");
    const at::Tensor latents = through.x_BCTHW().narrow(0, i, 1);
    decode_sound(through, latents, index, on_sound);
    const FinishedLatents finished = of.model.to_decode(latents, through.cond().with);
    int64_t done = -finished.skipped_frames;
    decode_frames(request, finished.latents_BCTHW, [&](const at::Tensor& pixels) {
      const int64_t before = std::exchange(done, done + pixels.size(1));
      if (done > request.target.frames) throw wrong_frames(done, request.target.frames);
      const int64_t skipped = std::max<int64_t>(-before, 0);
      if (done > 0 && on_frames)
        on_frames(index, before + skipped, pixels.narrow(1, skipped, pixels.size(1) - skipped));
    });
    const bool decodes_all = !of.through_vae;  // a dry run decodes what is alike once
    if (decodes_all && done < request.target.frames)
      throw wrong_frames(done, request.target.frames);
  }
}

at::Tensor Decoder::preview(const Trajectory& of, const at::Tensor& clean_1CTHW) {
  const EngineModel& model = context_.of;
  for (const model::PresentComponent& component : model.stages.components) {
    if (component.spec.role == Role::kVae &&
        !(model.is_resident && model.is_resident(component.name)))
      return {};
  }
  const at::Tensor whole =
      model.model.to_decode(clean_1CTHW, of.cond().with).latents_BCTHW.select(2, 0);
  const int64_t side = (std::max(whole.size(2), whole.size(3)) - 1) / kPreviewCells + 1;
  const at::Tensor small = at::avg_pool2d(whole, {side, side}).unsqueeze(2);
  DirectRunner in_place;  // the engine's may record what the denoiser does
  at::Tensor picture;
  try {
    model::decode(model.model, small.to(model.decoder_dtype), in_place, host(),
                  [&](const at::Tensor& pixels) {
                    if (!picture.defined()) picture = pixels.select(1, 0);
                  });
  } catch (...) {
    if (!plugins::out_of_memory()) throw;
    return {};
  }
  return picture;
}

// Pieces of a clip have no sounds of their own.
void Decoder::decode_sound(const Trajectory& through, const at::Tensor& latents_1CTHW, size_t index,
                           const OnSound& on_sound) {
  if (!through.request().pieces.empty()) return;
  const Sound sound =
      context_.of.model.decode_sound(latents_1CTHW, through.cond().with, context_.runner());
  if (sound.samples_CN.defined() && on_sound) on_sound(index, sound);
}

at::Device Decoder::host() const {
  return context_.of.device.is_meta() ? at::kMeta : at::kCPU;
}

// Where tiles are counted, blocks are not.
void Decoder::decode_frames(const Request& request, const at::Tensor& latents_1CTHW,
                            const model::SampleSink& sink) {
  progress::Step step(context_.progress, "decode", 0, progress::Unit::kParts);
  CountingRunner counting(context_.runner(), step);
  const auto show = [&](const at::Tensor& pixels) {
    const memory::HostScope on_host;
    if (!host().is_meta() && !at::isfinite(pixels).all().item<bool>())
      throw Error(ErrorCode::kNumerics, "the image has values that are not finite",
                  "compute in another --dtype, and check the model's files");
    sink(pixels);
  };
  const at::Tensor latents = latents_1CTHW.to(context_.of.decoder_dtype);
  if (!request.tiling) {
    decode_whole(latents, counting, show);
    return step.finish();
  }
  const TileFunction tile = context_.through_vae([&](const at::Tensor& of_tile) {
    return model::decode_whole(context_.of.model, of_tile, context_.runner(), host());
  });
  const auto on_tile = [&](int64_t done, int64_t total) {
    step.set(done, total);
    context_.check_cancelled();
  };
  const int64_t stride = context_.of.model.latent_spec().spatial_stride;
  show(decode_tiled(latents, *request.tiling, stride, tile, on_tile, context_.tile_ranks())[0].to(
      host(), at::kFloat));
  step.finish();
}

void Decoder::decode_whole(const at::Tensor& latents_1CTHW, BlockRunner& blocks,
                           const model::SampleSink& sink) {
  context_.through_vae([&](const at::Tensor& whole) {
    model::decode(context_.of.model, whole, blocks, host(), sink);
    return whole;
  })(latents_1CTHW);
}

}  // namespace atelier::generate
