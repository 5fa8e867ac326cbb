#include "host/generate/trajectory.h"

#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/random/noise.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

Error wrong_solver(const SolverSpec& solver, const char* what) {
  return {ErrorCode::kEnvironment, "solver " + std::string(solver.name) + ": " + what,
          "ask the plugin's author", "PLUGIN_WRONG"};
}

at::Tensor copied_to(at::Device device, const at::Tensor& t) {
  return t.to(device, t.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

Trajectory::Trajectory(std::shared_ptr<const Material> material, size_t first, int64_t count,
                       const EngineModel& of)
    : material_(std::move(material)),
      of_(of),
      first_(first),
      x_(initial_noise(first, count)),
      known_(of.model.given(cond().with, x_.sizes().slice(1)), x_),
      kept_(kept_by(request().inpaint_mask, material_->clean), x_),
      levels_(at::tensor(denoiser_levels(request()), at::kFloat)
                  .unsqueeze(1)
                  .expand({steps() + 1, 2 * count})
                  .contiguous()
                  .to(of.device)) {
  if (material_->clean.defined())
    x_.mul_(sigma()).add_(material_->clean, 1.0 - static_cast<double>(sigma()));
  keep_known(sigma());
  solver_ = request().solver.make(request().sigmas, x_);
  if (solver_ == nullptr) throw wrong_solver(request().solver, "makes none");
}

at::Tensor Trajectory::initial_noise(size_t first, int64_t count) const {
  const Request& asked = request();
  if (asked.latents.defined()) {
    return asked.latents.narrow(0, static_cast<int64_t>(first), count)
        .to(of_.device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  std::vector<int64_t> shape = of_.model.latent_shape(asked.target, cond().with);
  if (of_.device.is_meta()) {
    shape.insert(shape.begin(), count);
    return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  }
  std::vector<at::Tensor> samples;
  for (size_t i = first; i < first + static_cast<size_t>(count); ++i)
    samples.push_back(random::normal_noise({.seed = asked.seeds[i]}, shape));
  return at::stack(samples).to(of_.device);
}

const model::RangedDenoiser& Trajectory::denoiser_at(int64_t step) const {
  return denoiser_of(request(), of_.stages.denoisers, step);
}

int64_t Trajectory::steps_of_denoiser() const {
  return std::ssize(levels_around(request(), of_.stages.denoisers, step_).levels);
}

bool Trajectory::is_guided() const {
  return generate::is_guided(request(), of_.stages, step_);
}

double Trajectory::cfg_scale() const {
  return cfg_scale_at(request(), of_.stages, step_);
}

at::Tensor Trajectory::level(int64_t step, int64_t rows) const {
  return levels_[step].narrow(0, 0, rows);
}

void Trajectory::advance(const at::Tensor& v) {
  const std::vector<int64_t> latents = x_.sizes().vec();
  const float next = next_sigma();
  solver_->step(x_, v);
  if (x_.sizes() != latents || x_.scalar_type() != at::kFloat)
    throw wrong_solver(request().solver, "gives latents of another shape or dtype");
  keep_known(next);
  ++step_;
}

void Trajectory::skip(const std::function<bool(int64_t step)>& makes_step) {
  while (makes_step && !is_through() && !makes_step(step_)) ++step_;
}

void Trajectory::keep_known(float sigma) {
  for (const KnownLatents* latents : {&kept_, &known_})
    if (!latents->is_empty()) x_.copy_(latents->put_into(x_, sigma));
}

void Trajectory::visit(const std::function<void(at::Tensor&)>& visit) {
  visit(x_);
  known_.visit(visit);
  kept_.visit(visit);
  solver_->visit(visit);
}

int64_t Trajectory::put_aside() {
  int64_t bytes = 0;
  visit([&](at::Tensor& tensor) {
    const memory::HostScope on_host;
    if (!tensor.is_meta()) tensor = copied_to(at::kCPU, tensor);
    bytes += static_cast<int64_t>(tensor.nbytes());
  });
  return bytes;
}

void Trajectory::bring_back() {
  visit([this](at::Tensor& tensor) { tensor = copied_to(of_.device, tensor); });
}

}  // namespace atelier::generate
