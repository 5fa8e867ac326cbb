#include "host/generate/image_request.h"

#include <algorithm>

#include "host/generate/guidance.h"
#include "host/sampling/sigma_schedule.h"

namespace atelier::generate {

int64_t steps_of_all(const Request& request) {
  const int64_t images = std::ssize(request.seeds);
  if (!request.pieces.empty()) return images * std::ssize(request.pieces) * request.num_steps();
  const int64_t together = std::max<int64_t>(request.batch_size, 1);
  return (images + together - 1) / together * request.num_steps();
}

int64_t latent_frames_of(const MediaTarget& target, const LatentSpec& spec) {
  return (target.frames - 1) / spec.temporal_stride + 1;
}

int64_t tokens_of(const MediaTarget& target, const LatentSpec& spec) {
  return latent_frames_of(target, spec) * (target.height / spec.token_stride) *
         (target.width / spec.token_stride);
}

std::vector<float> denoiser_levels(const Request& request) {
  return request.whole_timesteps ? sampling::whole_timesteps(request.sigmas) : request.sigmas;
}

const model::RangedDenoiser& denoiser_of(const Request& request,
                                         std::span<const model::RangedDenoiser> denoisers,
                                         int64_t step) {
  float level = request.sigmas[static_cast<size_t>(step)];
  if (request.whole_timesteps) level = sampling::whole_timesteps({&level, 1}).front();
  if (!request.switch_boundary) return model::denoiser_at(denoisers, level);
  const bool is_noisy = level >= static_cast<float>(*request.switch_boundary);
  return is_noisy ? denoisers.front() : denoisers.back();
}

DenoiserLevels levels_around(const Request& request,
                             std::span<const model::RangedDenoiser> denoisers, int64_t step) {
  const auto at = [&](int64_t i) { return &denoiser_of(request, denoisers, i); };
  const model::RangedDenoiser* const own = at(step);
  int64_t begin = step, end = step + 1;
  while (begin > 0 && at(begin - 1) == own) --begin;
  while (end < request.num_steps() && at(end) == own) ++end;
  const std::vector<float> all = denoiser_levels(request);
  return {begin, {all.begin() + begin, all.begin() + end}};
}

double cfg_scale_at(const Request& request, const model::Stages& stages, int64_t step) {
  if (!request.cfg_scale_2) return request.cfg_scale;
  const bool is_first = &denoiser_of(request, stages.denoisers, step) == stages.first();
  return is_first ? request.cfg_scale : *request.cfg_scale_2;
}

bool is_guided(const Request& request, const model::Stages& stages, int64_t step) {
  return cfg_scale_at(request, stages, step) != request.cfg_off &&
         is_guided_at(request.sigmas[static_cast<size_t>(step)], request.cfg_trunc);
}

bool is_guided(const Request& request, const model::Stages& stages) {
  for (int64_t i = 0; i < request.num_steps(); ++i) {
    if (is_guided(request, stages, i)) return true;
  }
  return false;
}

}  // namespace atelier::generate
