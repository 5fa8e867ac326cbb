#include "host/train/objective.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "atelier/error.h"
#include "atelier/host/upload.h"

#include "host/generate/known_latents.h"
#include "host/random/counter.h"
#include "host/report/text.h"
#include "host/sampling/sigma_schedule.h"

namespace atelier::train {

using samples::RowValues;
using samples::Timestep;
using samples::TimestepOptions;
using samples::Timesteps;
using samples::TrainSample;

using at::Tensor;

namespace {

// A whole number, or the text of one as csv files have it.
std::optional<int64_t> integer_of(const RowValues& values, std::string_view name) {
  const auto found = values.find(name);
  if (found == values.end()) return std::nullopt;
  if (found->second.is_number_integer()) return found->second.get<int64_t>();
  if (!found->second.is_string()) return std::nullopt;
  return report::parse_number<int64_t>(found->second.get<std::string>());
}

std::vector<const Conditioning*> pointers(const auto& samples) {
  std::vector<const Conditioning*> result;
  for (const auto& sample : samples) result.push_back(&sample.cond);
  return result;
}

}  // namespace

ScheduleDefaults training_schedule(const model::LoadedModel& model) {
  return model.family().training_schedule(model.stages().first()->part);
}

Timesteps timesteps_of(const model::LoadedModel& model, const TimestepOptions& options,
                       std::span<const model::RangedDenoiser> denoisers) {
  std::vector<SigmaRange> ranges;
  for (const model::RangedDenoiser& denoiser : denoisers) ranges.push_back(denoiser.range);
  return Timesteps(training_schedule(model), options,
                   sampling::dynamic_shift(model.family().schedules(), model.stages().variant),
                   ranges);
}

Objective::Objective(model::LoadedModel& model, std::vector<model::RangedDenoiser> denoisers,
                     BlockRunner& runner, const Timesteps& timesteps, uint64_t seed,
                     std::optional<at::Device> device)
    : model_(model),
      denoisers_(std::move(denoisers)),
      runner_(runner),
      timesteps_(timesteps),
      device_(device.value_or(model.device())),
      schedule_(training_schedule(model)),
      noise_seed_(random::stream_seed(seed, random::Stream::kNoise)),
      timestep_seed_(random::stream_seed(seed, random::Stream::kTimestep)),
      denoiser_seed_(random::stream_seed(seed, random::Stream::kDenoiser)) {}

Objective::Prepared Objective::prepare(const TrainSample& sample) {
  Prepared prepared;
  for (const auto& [name, tensor] : sample.cond)
    prepared.cond.emplace(name, ops::upload(tensor, device_));
  for (const auto& [stage, values] : sample.inputs) {
    const EncodeInputs in = {
        .stage = stage, .values = values, .target = sample.target, .fps = model_.stages().fps};
    for (auto& [name, tensor] : model::encode(model_.model(), in, runner_, device_))
      prepared.cond.insert_or_assign(name, tensor);
  }
  prepared.clean = prepared.cond.at("latents").to(at::kFloat);
  prepared.given = model_.model().given(prepared.cond, prepared.clean.sizes());
  if (const auto& given = prepared.given) {
    prepared.mask = given->free_1THW.to(device_, at::kFloat);
    prepared.counted = prepared.mask.mean();
    if (!given->is_noised) {
      prepared.pinned = given->values_CTHW.to(device_, at::kFloat);
      prepared.pinned_where = prepared.mask == 0;
    }
  }
  if (sample.mask.defined()) {
    const Tensor mask = mask_of(sample, prepared.clean);
    prepared.mask = prepared.mask.defined() ? prepared.mask * mask : mask;
  }
  return prepared;
}

// Where the loss of a sample counts: ones for what is learnt in front of the clip that is masked.
Tensor Objective::mask_of(const TrainSample& sample, const Tensor& clean) const {
  Tensor mask = ops::upload(sample.mask.to(at::kFloat), device_);
  const int64_t of_clip = model_.model().latent_shape(sample.target, {})[1];
  const int64_t leading = clean.size(1) - of_clip;
  if (mask.size(1) == 1 && leading > 0) mask = mask.expand({-1, of_clip, -1, -1});
  if (mask.size(1) != 1 && mask.size(1) != of_clip)
    throw Error(ErrorCode::kUnsupported,
                c10::str(sample.place, ": the mask has ", mask.size(1),
                         " latent frames, and the model learns ", of_clip),
                "give an image as the mask, which holds for all frames");
  return leading > 0 ? at::constant_pad_nd(mask, {0, 0, 0, 0, leading, 0}, 1) : mask;
}

// mean(error^2 * mask) over what the family counts.
Tensor Objective::Prepared::loss(const Tensor& error) const {
  Tensor squared = error.square();
  if (mask.defined()) squared = squared * mask;
  const Tensor mean = squared.mean();
  return counted.defined() ? mean / counted : mean;
}

// Per sample: mean((prediction - target)^2 * mask), [B]. The levels are of one denoiser.
Tensor Objective::predict(std::span<const Prepared> samples, std::span<const Timestep> levels,
                          const std::vector<Tensor>& noise) {
  const model::RangedDenoiser& denoiser = model::denoiser_at(denoisers_, levels.front().sigma);
  std::vector<Tensor> noisy;
  std::vector<float> sigmas;
  for (size_t i = 0; i < samples.size(); ++i) {
    const float sigma = levels[i].sigma;
    sigmas.push_back(sigma);
    Tensor x = samples[i].clean * (1.0F - sigma) + noise[i] * sigma;
    if (samples[i].pinned.defined())
      x = generate::put_known(samples[i].pinned_where, samples[i].pinned, x);
    noisy.push_back(x.to(denoiser.dtype));
  }
  const std::vector<const Conditioning*> cond = pointers(samples);
  const DenoiseInputs inputs = {.x_BCTHW = at::stack(noisy),
                                .sigma_B = ops::upload(at::tensor(sigmas, at::kFloat), device_),
                                .cond = cond,
                                .denoiser = denoiser.name()};
  const Tensor velocity = model_.model().denoise(inputs, runner_);
  std::vector<Tensor> losses;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Tensor target = noise[i] - samples[i].clean;
    losses.push_back(samples[i].loss(velocity[static_cast<int64_t>(i)].to(at::kFloat) - target));
  }
  return at::stack(losses);
}

// The denoiser's tokens for latents [C, T, H, W].
int64_t Objective::tokens_of(const Tensor& latents) const {
  const LatentSpec spec = model_.model().latent_spec();
  const int64_t patch = std::max<int64_t>(spec.token_stride / spec.spatial_stride, 1);
  const int64_t frames = timesteps_.counts_one_frame() ? 1 : latents.size(1);
  return frames * (latents.size(2) / patch) * (latents.size(3) / patch);
}

Tensor Objective::noise(const random::NoiseKey& key, at::IntArrayRef shape) const {
  if (device_.is_meta()) return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  return ops::upload(random::normal_noise(key, shape), device_);
}

random::NoiseKey Objective::noise_key(const StepSample& placed, int64_t step) const {
  return {noise_seed_, placed.slot, static_cast<uint32_t>(step)};
}

void Objective::read_ahead(StepSample& placed, int64_t step, bool makes_noise) const {
  if (device_.is_cpu()) return;
  const auto pin = [&](Tensor& tensor) {
    if (tensor.defined()) tensor = ops::pinned_for(tensor, device_);
  };
  TrainSample& sample = placed.sample;
  if (const auto latents = sample.cond.find("latents"); makes_noise && latents != sample.cond.end())
    placed.noise = random::normal_noise(noise_key(placed, step), latents->second.sizes());
  pin(placed.noise);
  pin(sample.mask);
  for (auto& [name, tensor] : sample.cond) pin(tensor);
  for (auto& [stage, values] : sample.inputs) {
    for (auto& [name, value] : values) {
      if (auto* tensor = std::get_if<Tensor>(&value)) pin(*tensor);
      if (auto* tensors = std::get_if<std::vector<Tensor>>(&value))
        std::ranges::for_each(*tensors, pin);
    }
  }
}

Tensor Objective::flow_matching(std::span<const StepSample> batch, int64_t step) {
  std::vector<Prepared> samples;
  std::vector<Timestep> levels;
  std::vector<Tensor> noise;
  std::vector<float> weights;
  const auto number = static_cast<uint32_t>(step);
  const size_t denoiser = timesteps_.draw_denoiser(denoiser_seed_, number);
  for (const StepSample& placed : batch) {
    samples.push_back(prepare(placed.sample));
    levels.push_back(timesteps_.draw(timestep_seed_, placed.slot, number,
                                     tokens_of(samples.back().clean), denoiser));
    weights.push_back(static_cast<float>(levels.back().weight));
    noise.push_back(placed.noise.defined()
                        ? ops::upload(placed.noise, device_)
                        : this->noise(noise_key(placed, step), samples.back().clean.sizes()));
  }
  const Tensor weight = ops::upload(at::tensor(weights, at::kFloat), device_);
  return (predict(samples, levels, noise) * weight).sum();
}

std::string Objective::denoiser_of(int64_t step) const {
  return denoisers_[timesteps_.draw_denoiser(denoiser_seed_, static_cast<uint32_t>(step))].name();
}

void Objective::expect(int64_t step) {
  if (memory::Residency* const residency = model_.residency(denoiser_of(step))) residency->expect();
}

Tensor Objective::at_levels(const TrainSample& sample, std::span<const Timestep> levels,
                            uint64_t noise_seed, uint32_t slot) {
  const Prepared prepared = prepare(sample);
  std::vector<Tensor> losses;
  for (size_t i = 0; i < levels.size(); ++i) {
    const Tensor noise =
        this->noise({noise_seed, slot, static_cast<uint32_t>(i)}, prepared.clean.sizes());
    losses.push_back(predict(std::span(&prepared, 1), levels.subspan(i, 1), {noise})[0]);
  }
  return at::stack(losses);
}

// "rand_device" names the generator of LibTorch that the teacher's noise came from; rows without it
// have the noise of `atelier generate`.
Tensor Objective::initial_noise(const TrainSample& sample, at::IntArrayRef shape) const {
  const auto seed = integer_of(sample.values, "seed").value();
  const auto device = sample.values.find("rand_device");
  if (device == sample.values.end()) return noise({static_cast<uint64_t>(seed)}, shape);
  const at::Device where(device->second.get<std::string>());
  at::Generator generator = where.is_cpu()
                                ? at::detail::createCPUGenerator(static_cast<uint64_t>(seed))
                                : at::globalContext()
                                      .getAcceleratorHooksInterface(where.type())
                                      .getNewGenerator(where.has_index() ? where.index() : 0);
  generator.set_current_seed(static_cast<uint64_t>(seed));
  return at::randn(shape, generator, at::TensorOptions(at::kFloat).device(where));
}

std::vector<float> Objective::distillation_sigmas(const RowValues& values) const {
  sampling::ScheduleOptions request;
  request.num_steps = static_cast<int>(distillation_steps(values));
  return sampling::make_sigmas(schedule_, request);
}

std::vector<int64_t> Objective::distillation_calls(const RowValues& values) const {
  std::vector<int64_t> calls(denoisers_.size());
  const std::vector<float> sigmas = distillation_sigmas(values);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i)
    ++calls[static_cast<size_t>(&model::denoiser_at(denoisers_, sigmas[i]) - denoisers_.data())];
  return calls;
}

struct Objective::Distilled {
  Prepared sample;
  std::vector<float> sigmas;
  generate::KnownLatents known;
  Tensor x;       // [1, C, T, H, W] at sigmas[at]
  size_t at = 0;  // steps that are made

  bool is_done() const { return at + 1 == sigmas.size(); }
};

Objective::Distilled Objective::begin_distilled(const StepSample& placed) {
  const RowValues& values = placed.sample.values;
  if (const std::string problem = distillation_problem(values); !problem.empty())
    throw Error(ErrorCode::kInvalidArgument, placed.sample.place + ": " + problem,
                "direct_distill needs seed and num_inference_steps in each row");
  Prepared sample = prepare(placed.sample);
  std::vector<float> sigmas = distillation_sigmas(values);
  const Tensor noise =
      ops::upload(initial_noise(placed.sample, sample.clean.sizes()), device_).unsqueeze(0);
  generate::KnownLatents known(sample.given, noise);
  Tensor x = known.put_into(noise, sigmas.front());
  return {std::move(sample), std::move(sigmas), std::move(known), std::move(x)};
}

Tensor Objective::velocity(const Conditioning& cond, const Tensor& x, float sigma,
                           const model::RangedDenoiser& denoiser) {
  const Conditioning* const one = &cond;
  const DenoiseInputs inputs = {.x_BCTHW = x.to(denoiser.dtype),
                                .sigma_B = ops::upload(at::tensor({sigma}), device_),
                                .cond = std::span(&one, 1),
                                .denoiser = denoiser.name()};
  return model_.model().denoise(inputs, runner_).to(at::kFloat);
}

Tensor Objective::direct_distillation(std::span<const StepSample> batch,
                                      std::span<const int64_t> calls) {
  std::vector<Distilled> samples;
  for (const StepSample& placed : batch) {
    Distilled& one = samples.emplace_back(begin_distilled(placed));
    // Every run has its backward pass through all blocks then, the first one of a sample, too.
    if (!calls.empty()) one.x = one.x.detach().requires_grad_();
  }
  Tensor idle;  // of runs that count nothing
  for (size_t i = 0; i < denoisers_.size(); ++i) {
    const model::RangedDenoiser& denoiser = denoisers_[i];
    int64_t missing = calls.empty() ? 0 : calls[i];
    for (Distilled& one : samples) {
      for (; !one.is_done() && &model::denoiser_at(denoisers_, one.sigmas[one.at]) == &denoiser;
           ++one.at, --missing) {
        const float sigma = one.sigmas[one.at], next = one.sigmas[one.at + 1];
        const Tensor v = velocity(one.sample.cond, one.x, sigma, denoiser);
        one.x = one.known.put_into(one.x + v * (next - sigma), next);
      }
    }
    if (!calls.empty() && missing < 0)
      throw Error(ErrorCode::kInternal,
                  c10::str("a batch runs ", denoiser.name(), " ", -missing, " times too often"));
    const Distilled& first = samples.front();
    for (; missing > 0; --missing) {
      const Tensor x = first.x.detach().requires_grad_();
      const auto sigma = static_cast<float>(denoiser.range.high);
      const Tensor sum = velocity(first.sample.cond, x, sigma, denoiser).sum();
      idle = idle.defined() ? idle + sum : sum;
    }
  }
  Tensor total;
  for (const Distilled& one : samples) {
    const Tensor loss = one.sample.loss(one.x[0] - one.sample.clean);
    total = total.defined() ? total + loss : loss;
  }
  return idle.defined() ? total + idle * 0 : total;
}

int64_t distillation_steps(const RowValues& values) {
  return integer_of(values, "num_inference_steps").value_or(1);
}

std::string distillation_problem(const RowValues& values) {
  if (integer_of(values, "seed").value_or(-1) < 0)
    return "column seed: an integer from 0 is needed";
  const int64_t steps = integer_of(values, "num_inference_steps").value_or(0);
  if (steps < 1 || steps > 1000) return "column num_inference_steps: 1 to 1000 are needed";
  const auto device = values.find("rand_device");
  if (device == values.end()) return "";
  const bool is_text = device->second.is_string();
  const std::string name = is_text ? device->second.get<std::string>() : device->second.dump();
  if (name != "cpu" && !name.starts_with("cuda")) return "column rand_device: cpu or cuda";
  if (name != "cpu" && !at::hasCUDA())
    return "column rand_device: noise of cuda can only be made on a GPU";
  return "";
}

}  // namespace atelier::train
