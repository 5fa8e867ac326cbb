// What a run learns: from samples to a loss.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/block.h"
#include "atelier/model.h"

#include "host/model/model_loader.h"
#include "host/random/noise.h"
#include "host/samples/samples.h"
#include "host/samples/timesteps.h"

namespace atelier::train {

// A sample of a step, and the number of its place there: it keys the sample's random numbers.
struct StepSample {
  samples::TrainSample sample;
  uint32_t slot = 0;
  at::Tensor noise = {};  // of its step, on the host; undefined: made when it is needed
};

// By which the model's denoisers were trained.
ScheduleDefaults training_schedule(const model::LoadedModel& model);

// The noise levels of `denoisers` as the options draw them. Throws as Timesteps.
samples::Timesteps timesteps_of(const model::LoadedModel& model,
                                const samples::TimestepOptions& options,
                                std::span<const model::RangedDenoiser> denoisers);

// Samples whose latents have one shape. Not thread-safe. `model` and `runner` outlive it.
class Objective {
 public:
  // `denoisers`: those that run, which `timesteps` has the ranges of, in this order. `device`:
  // where it works; absent: where the model does. In a dry run nothing has values, and nothing is
  // loaded.
  Objective(model::LoadedModel& model, std::vector<model::RangedDenoiser> denoisers,
            BlockRunner& runner, const samples::Timesteps& timesteps, uint64_t seed,
            std::optional<at::Device> device = std::nullopt);

  // Makes what copies of a sample of `step` to the device would wait for: pinned memory and, with
  // `makes_noise`, the noise of flow matching where latents are there. From any thread; does
  // nothing where the host computes.
  void read_ahead(StepSample& placed, int64_t step, bool makes_noise) const;

  // Flow matching: with sigma s and noise e, x = (1 - s) clean + s e, and the model predicts
  // e - clean. Noise, levels and targets are float32, x is rounded to the compute dtype once. All
  // levels of a step are of one denoiser.
  //
  // Returns the sum over the samples of weight(s) * mean((prediction - target)^2 * mask), a float32
  // scalar on the compute device. `step` from 0.
  at::Tensor flow_matching(std::span<const StepSample> batch, int64_t step);

  // The denoiser that flow matching draws for a step, from 0.
  std::string denoiser_of(int64_t step) const;
  // Before the last backward pass of the step before `step`: blocks of the denoiser of `step` may
  // come where that pass leaves room.
  void expect(int64_t step);

  // Direct distillation: from the row's noise ("seed", "rand_device") through "num_inference_steps"
  // steps of the family's training schedule, all with gradients, to latents that are compared with
  // the sample's. Latents that are given are kept at each step and do not count. All samples go
  // through the levels of one denoiser before those of the next. Returns the sum over the samples
  // of mean((latents - clean)^2 * mask).
  //
  // `calls`: as of distillation_calls(), how often each denoiser runs, with gradients from the last
  // block to the first; those runs that the batch does not need count nothing. Empty: as often as
  // it needs. Throws Error{kInternal} where it needs more.
  at::Tensor direct_distillation(std::span<const StepSample> batch,
                                 std::span<const int64_t> calls = {});
  // How often direct distillation runs each denoiser for a row that says enough. Safe to call from
  // several threads.
  std::vector<int64_t> distillation_calls(const samples::RowValues& values) const;

  // mean((prediction - target)^2 * mask) of one sample at each level, [levels], float32, with noise
  // of `noise_seed`, `slot` and the level's number.
  at::Tensor at_levels(const samples::TrainSample& sample,
                       std::span<const samples::Timestep> levels, uint64_t noise_seed,
                       uint32_t slot);

 private:
  // A sample on the compute device.
  struct Prepared {
    Conditioning cond;
    at::Tensor clean;  // float32 [C, T, H, W]
    std::optional<GivenLatents> given;
    at::Tensor mask;                  // of the loss, broadcastable to clean; undefined: everywhere
    at::Tensor pinned, pinned_where;  // replaces the noisy latents where it is true
    at::Tensor counted;               // part of the elements that the family counts; undefined: all

    at::Tensor loss(const at::Tensor& error) const;
  };
  Prepared prepare(const samples::TrainSample& sample);
  at::Tensor mask_of(const samples::TrainSample& sample, const at::Tensor& clean) const;
  at::Tensor predict(std::span<const Prepared> samples, std::span<const samples::Timestep> levels,
                     const std::vector<at::Tensor>& noise);
  int64_t tokens_of(const at::Tensor& latents) const;
  at::Tensor noise(const random::NoiseKey& key, at::IntArrayRef shape) const;
  random::NoiseKey noise_key(const StepSample& placed, int64_t step) const;
  at::Tensor initial_noise(const samples::TrainSample& sample, at::IntArrayRef shape) const;

  struct Distilled;  // a sample on its way
  std::vector<float> distillation_sigmas(const samples::RowValues& values) const;
  Distilled begin_distilled(const StepSample& placed);
  at::Tensor velocity(const Conditioning& cond, const at::Tensor& x, float sigma,
                      const model::RangedDenoiser& denoiser);

  model::LoadedModel& model_;
  const std::vector<model::RangedDenoiser> denoisers_;
  BlockRunner& runner_;
  const samples::Timesteps& timesteps_;
  at::Device device_;
  ScheduleDefaults schedule_;
  uint64_t noise_seed_, timestep_seed_, denoiser_seed_;
};

// Steps that direct distillation makes for a row; 1 where it does not say.
int64_t distillation_steps(const samples::RowValues& values);
// What is wrong with the values of a row for direct distillation; empty: nothing.
std::string distillation_problem(const samples::RowValues& values);

}  // namespace atelier::train
