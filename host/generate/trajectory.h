// Images or clips of one request that walk through the noise levels together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "host/generate/engine_model.h"
#include "host/generate/known_latents.h"
#include "host/generate/material.h"

namespace atelier::generate {

class Trajectory {
 public:
  // Begins with images `first` to `first + count` of the material's, on the model's device: with
  // the noise of their seeds, and what is given put into it. `of` outlives it. Throws
  // Error{kEnvironment} for a solver that is none.
  Trajectory(std::shared_ptr<const Material> material, size_t first, int64_t count,
             const EngineModel& of);

  const Request& request() const { return material_->request; }
  const Conditionings& cond() const { return material_->cond; }
  size_t first() const { return first_; }
  int64_t count() const { return x_.size(0); }
  const at::Tensor& x_BCTHW() const { return x_; }  // float32, at sigma()

  // The step that comes next, from 0, of steps().
  int64_t step() const { return step_; }
  int64_t steps() const { return request().num_steps(); }
  bool is_through() const { return step_ == steps(); }
  float sigma() const { return request().sigmas[static_cast<size_t>(step_)]; }
  float next_sigma() const { return request().sigmas[static_cast<size_t>(step_ + 1)]; }
  const model::RangedDenoiser& denoiser() const { return denoiser_at(step_); }
  const model::RangedDenoiser& denoiser_at(int64_t step) const;
  int64_t steps_of_denoiser() const;  // those around the next one
  bool is_guided() const;             // whether the next step is
  double cfg_scale() const;

  // What the denoiser is told of a step's level, float32 [rows], on the device; 2 * count() at
  // most.
  at::Tensor level(int64_t step, int64_t rows) const;
  // Goes to the next level. v: the velocity at this one, float32 of x's shape.
  void advance(const at::Tensor& v);
  // Goes to the next step that `makes_step` does not leave out, or to the end.
  void skip(const std::function<bool(int64_t step)>& makes_step);

  // Waits on the host until it comes back. Returns the bytes that it has there.
  int64_t put_aside();
  void bring_back();

 private:
  at::Tensor initial_noise(size_t first, int64_t count) const;
  void keep_known(float sigma);
  void visit(const std::function<void(at::Tensor&)>& visit);

  std::shared_ptr<const Material> material_;
  const EngineModel& of_;
  size_t first_;
  at::Tensor x_;
  // What the model was given, and what stays of the image that sampling begins from.
  KnownLatents known_, kept_;
  std::unique_ptr<Solver> solver_;
  at::Tensor levels_;  // that the denoiser is told, a row of each: on the device before it begins
  int64_t step_ = 0;
};

}  // namespace atelier::generate
