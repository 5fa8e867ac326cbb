#include "host/generate/generator.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "atelier/error.h"
#include "atelier/ops/stop.h"

#include "host/generate/guidance.h"
#include "host/plugins/guard.h"
#include "host/random/noise.h"

namespace atelier::generate {
namespace {

// Of encoded prompts that are kept for later requests.
constexpr int64_t kCacheBytes = int64_t{1} << 30;

void append_tensor(std::string& key, const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  key += c10::str(bytes.sizes());
  key.append(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
}

// Equal for equal inputs only. Lengths stand before texts, so that no two lists run into one.
std::string content_key(const Inputs& inputs) {
  std::string key;
  for (const auto& [name, value] : inputs) {
    key += name + '\0' + std::to_string(value.index()) + ':';
    if (const auto* text = std::get_if<std::string>(&value)) {
      key += std::to_string(text->size()) + ':' + *text;
    } else if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      append_tensor(key, *tensor);
    } else if (const auto* tensors = std::get_if<std::vector<at::Tensor>>(&value)) {
      key += std::to_string(tensors->size()) + ':';
      for (const at::Tensor& tensor : *tensors) append_tensor(key, tensor);
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      key += std::to_string(*integer) + ';';
    } else if (const auto* real = std::get_if<double>(&value)) {
      key.append(reinterpret_cast<const char*>(real), sizeof *real);
    } else {
      key += std::get<bool>(value) ? '1' : '0';
    }
  }
  return key;
}

int64_t bytes_of(const Conditioning& cond) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : cond) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

bool is_guided(const Request& request, size_t step) {
  return request.cfg_scale != 1.0 && is_guided_at(request.sigmas[step], request.cfg_trunc);
}

// At any step.
bool is_guided(const Request& request) {
  for (size_t i = 0; i + 1 < request.sigmas.size(); ++i) {
    if (is_guided(request, i)) return true;
  }
  return false;
}

// Counts the blocks that `inner` runs. Where tiles are counted, blocks are not.
class CountingRunner final : public BlockRunner {
 public:
  CountingRunner(BlockRunner& inner, progress::Step& step) : inner_(inner), step_(step) {}
  Tensors run(Block& block, const Tensors& inputs) override {
    Tensors outputs = inner_.run(block, inputs);
    step_.advance();
    return outputs;
  }
  std::shared_ptr<void> hold(Block& block) override { return inner_.hold(block); }

 private:
  BlockRunner& inner_;
  progress::Step& step_;
};

// What the model computes ahead for the levels of a loop, for as long as this lives.
class PreparedLevels {
 public:
  PreparedLevels(const Engine& engine, std::span<const float> sigmas, BlockRunner& runner)
      : engine_(engine) {
    try {
      plugins::guard(engine_.family + ".prepare_levels",
                     [&] { engine_.model.prepare_levels(sigmas, runner); });
    } catch (...) {
      engine_.model.forget_levels();
      throw;
    }
  }
  ~PreparedLevels() { engine_.model.forget_levels(); }
  PreparedLevels(const PreparedLevels&) = delete;
  PreparedLevels& operator=(const PreparedLevels&) = delete;

 private:
  const Engine& engine_;
};

// Keeps the host at most one step ahead of the device: otherwise progress would show launches, and
// Ctrl-C would be heard when everything is queued already.
class Pacer {
 public:
  explicit Pacer(at::Device device) : device_(device) {}

  // Call after the work of a step is queued: waits for the step before it.
  void step() {
    if (device_.is_cpu()) return;
    c10::Event event(device_.type());
    event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    if (previous_) previous_->synchronize();
    previous_.emplace(std::move(event));
  }

 private:
  at::Device device_;
  std::optional<c10::Event> previous_;
};

}  // namespace

Inputs negative_inputs(const Inputs& inputs, const std::string& prompt) {
  Inputs changed = inputs;
  changed["prompt"] = prompt;
  changed["is_negative"] = true;
  return changed;
}

Generator::Generator(Engine engine, progress::Progress& progress,
                     std::function<bool()> is_cancelled)
    : engine_(std::move(engine)), progress_(progress), is_cancelled_(std::move(is_cancelled)) {}

std::vector<int64_t> Generator::latent_shape(const LatentSpec& spec, int64_t height, int64_t width,
                                             int64_t frames) {
  return {spec.channels, (frames - 1) / spec.temporal_stride + 1, height / spec.spatial_stride,
          width / spec.spatial_stride};
}

void Generator::check_cancelled() const {
  if (is_cancelled_ && is_cancelled_()) throw Error(ErrorCode::kCancelled, "stopped by the user");
}

void Generator::begin_phase(std::string_view phase, int64_t number) const {
  if (engine_.on_phase) engine_.on_phase(phase, number);
}

void Generator::load_where(const std::function<bool(const ComponentSpec&)>& is_needed) {
  for (const ComponentSpec& component : engine_.components) {
    if (component.role == "tokenizer" || !is_needed(component)) continue;
    check_cancelled();
    engine_.load(component.name);
  }
}

void Generator::unload_text_encoders() {
  if (engine_.keeps_all) return;
  for (const ComponentSpec& component : engine_.components) {
    if (component.role == "text_encoder") engine_.unload(component.name);
  }
}

Conditioning Generator::encode_text(const Inputs& inputs, const std::string& encoder_state) {
  const std::string key = encoder_state + content_key(inputs);
  if (const auto found = cache_.find(key); found != cache_.end()) return found->second;
  const auto is_text_encoder = [](const ComponentSpec& c) {
    return c.phases.encode && c.role != "vae";
  };
  load_where(is_text_encoder);
  begin_phase("encode");
  check_cancelled();
  int64_t num_blocks = 0;
  for (const ComponentSpec& component : engine_.components) {
    if (!is_text_encoder(component) || component.role == "tokenizer") continue;
    num_blocks += static_cast<int64_t>(engine_.model.blocks(component.name).size());
  }
  progress::Step step(progress_, "encode prompt", num_blocks, progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  Conditioning cond = plugins::guard(engine_.family + ".encode_text",
                                     [&] { return engine_.model.encode_text(inputs, counting); });
  for (auto& [name, tensor] : cond) tensor = tensor.to(engine_.device);
  step.finish();

  cache_bytes_ += bytes_of(cond);
  cache_.emplace(key, cond);
  cache_order_.push_back(key);
  while (cache_bytes_ > kCacheBytes) {
    const auto oldest = cache_.find(cache_order_.front());
    cache_bytes_ -= bytes_of(oldest->second);
    cache_.erase(oldest);
    cache_order_.pop_front();
  }
  return cond;
}

Generator::Conditionings Generator::encode_prompts(const Request& request) {
  Conditionings cond;
  cond.with = encode_text(request.inputs, request.encoder_state);
  if (is_guided(request)) {
    cond.without = encode_text(negative_inputs(request.inputs, request.negative_prompt),
                               request.encoder_state);
  }
  return cond;
}

void Generator::encode_ahead(std::span<const Request> requests) {
  const at::NoGradGuard no_grad;
  const ops::StopScope stops([this] { check_cancelled(); });
  for (const Request& request : requests) {
    if (cache_bytes_ > kCacheBytes / 2) return;
    encode_prompts(request);
  }
}

at::Tensor Generator::encode_input(const Request& request) {
  load_where([](const ComponentSpec& c) { return c.phases.encode && c.role == "vae"; });
  begin_phase("encode");
  check_cancelled();
  progress::Step step(progress_, "encode image", 0, progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  BlockRunner& blocks = request.tiling ? runner() : counting;
  const auto encode = [&](const at::Tensor& pixels) {
    return plugins::guard(engine_.family + ".encode_media",
                          [&] { return engine_.model.encode_media(pixels, blocks); });
  };
  const at::Tensor pixels = request.input_pixels.to(engine_.device);
  const auto on_tile = [&](int64_t done, int64_t total) {
    step.set(done, total);
    check_cancelled();
  };
  const at::Tensor latents =
      request.tiling ? encode_tiled(pixels, *request.tiling,
                                    engine_.model.latent_spec().spatial_stride, encode, on_tile)
                     : encode(pixels);
  step.finish();
  return latents.to(at::kFloat);
}

at::Tensor Generator::initial_noise(const Request& request, size_t first, size_t count) const {
  if (request.latents.defined()) {
    return request.latents.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count))
        .to(engine_.device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  const auto shape = latent_shape(engine_.model.latent_spec(), request.height, request.width);
  std::vector<at::Tensor> samples;
  for (size_t i = first; i < first + count; ++i) {
    samples.push_back(random::normal_noise({.seed = request.seeds[i]}, shape));
  }
  return at::stack(samples).to(engine_.device);
}

at::Tensor Generator::denoise(const Request& request, const Conditionings& cond, at::Tensor x,
                              const std::string& label) {
  const int64_t count = x.size(0);
  const auto num_steps = static_cast<int64_t>(request.sigmas.size()) - 1;
  const bool batched = is_guided(request) && request.batches_cfg && !splits_cfg_;
  const int64_t rows = batched ? 2 * count : count;

  const std::vector<const Conditioning*> with(count, &cond.with), without(count, &cond.without);
  std::vector<const Conditioning*> both = with;
  both.insert(both.end(), without.begin(), without.end());

  // One row of levels a step, on the device before the loop begins.
  const at::Tensor sigmas = at::tensor(request.sigmas, at::kFloat)
                                .narrow(0, 0, num_steps)
                                .unsqueeze(1)
                                .expand({num_steps, rows})
                                .contiguous()
                                .to(engine_.device);
  std::vector<int64_t> input_shape = x.sizes().vec();
  input_shape[0] = rows;
  const at::Tensor input = at::empty(input_shape, x.options().dtype(engine_.dtype));

  const auto velocity = [&](int64_t step, std::span<const Conditioning* const> rows_of) {
    const auto n = std::ssize(rows_of);
    const DenoiseInputs inputs = {.x_BCTHW = input.narrow(0, 0, n),
                                  .sigma_B = sigmas[step].narrow(0, 0, n),
                                  .cond = rows_of,
                                  .level = step};
    return plugins::guard(engine_.family + ".denoise",
                          [&] { return engine_.model.denoise(inputs, runner()); })
        .to(at::kFloat);
  };
  const auto guide = [&](const at::Tensor& v_with, const at::Tensor& v_without) {
    const at::Tensor guided = plugins::guard(engine_.family + ".guide", [&] {
      return engine_.model.guide(v_with, v_without, request.cfg_scale);
    });
    return renormed(guided, v_with, request.cfg_renorm, request.cfg_renorm_ratio);
  };
  const auto guided_velocity = [&](int64_t step) {
    if (batched && !splits_cfg_) {
      try {
        input.narrow(0, count, count).copy_(x);
        const at::Tensor pair = velocity(step, both);
        return guide(pair.narrow(0, 0, count), pair.narrow(0, count, count));
      } catch (...) {
        const std::optional<Error> failure = plugins::out_of_memory();
        if (!failure) throw;
        splits_cfg_ = true;
        progress_.warn(
            failure->message() +
            "; from this step on guidance is made in two calls, as with --cfg_batch off");
      }
    }
    const at::Tensor v_with = velocity(step, with);
    return guide(v_with, velocity(step, without));
  };
  Pacer pacer(engine_.device);
  progress::Step progress_step(progress_, label, num_steps, progress::Unit::kSteps);
  for (int64_t i = 0; i < num_steps; ++i) {
    check_cancelled();
    begin_phase("denoise", i + 1);
    input.narrow(0, 0, count).copy_(x);
    const at::Tensor v =
        is_guided(request, static_cast<size_t>(i)) ? guided_velocity(i) : velocity(i, with);
    x.add_(v, static_cast<double>(request.sigmas[i + 1]) - request.sigmas[i]);
    pacer.step();
    progress_step.advance();
  }
  progress_step.finish();
  return x;
}

at::Tensor Generator::decode(const Request& request, const at::Tensor& latents_CTHW) {
  load_where([](const ComponentSpec& c) { return c.phases.decode; });
  begin_phase("decode");
  progress::Step step(progress_, "decode", 0, progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  BlockRunner& blocks = request.tiling ? runner() : counting;
  const auto decode = [&](const at::Tensor& latents) {
    return plugins::guard(engine_.family + ".decode",
                          [&] { return engine_.model.decode(latents, blocks); });
  };
  const at::Tensor latents = latents_CTHW.unsqueeze(0).to(engine_.decoder_dtype);
  const auto on_tile = [&](int64_t done, int64_t total) {
    step.set(done, total);
    check_cancelled();
  };
  const at::Tensor pixels =
      request.tiling ? decode_tiled(latents, *request.tiling,
                                    engine_.model.latent_spec().spatial_stride, decode, on_tile)
                     : decode(latents);
  const at::Tensor on_cpu = pixels[0].to(at::kCPU, at::kFloat);
  step.finish();
  if (!at::isfinite(on_cpu).all().item<bool>())
    throw Error(ErrorCode::kNumerics, "the picture has values that are not finite",
                "compute in another --dtype, and check the model's files");
  return on_cpu;
}

void Generator::run(const Request& request, const OnPicture& on_picture) {
  const at::NoGradGuard no_grad;
  const ops::StopScope stops([this] { check_cancelled(); });
  const size_t num_pictures = request.seeds.size();
  const auto shape = latent_shape(engine_.model.latent_spec(), request.height, request.width);
  if (request.latents.defined()) {
    std::vector<int64_t> wanted = shape;
    wanted.insert(wanted.begin(), static_cast<int64_t>(num_pictures));
    if (request.latents.sizes() != wanted) {
      throw Error(ErrorCode::kInvalidArgument,
                  "tensor \"latents\": shape " + c10::str(request.latents.sizes()) + ", " +
                      c10::str(at::IntArrayRef(wanted)) + " expected",
                  "that is [pictures, channels, frames, height, width] at this size");
    }
  }
  const Conditionings cond = encode_prompts(request);
  at::Tensor clean;
  if (request.input_pixels.defined()) {
    clean = encode_input(request);
    if (clean.sizes() != shape) {
      throw Error(ErrorCode::kInvalidArgument, "the input image gives latents of shape " +
                                                   c10::str(clean.sizes()) + ", " +
                                                   c10::str(at::IntArrayRef(shape)) + " expected");
    }
  }
  unload_text_encoders();
  load_where([](const ComponentSpec& c) { return c.phases.denoise; });
  check_cancelled();
  std::optional<PreparedLevels> levels;
  levels.emplace(engine_, std::span(request.sigmas).first(request.sigmas.size() - 1), runner());

  const auto batch_size = static_cast<size_t>(std::max<int64_t>(request.batch_size, 1));
  for (size_t first = 0; first < num_pictures; first += batch_size) {
    const size_t count = std::min(batch_size, num_pictures - first);
    at::Tensor x = initial_noise(request, first, count);
    if (clean.defined()) {
      const double sigma = request.sigmas.front();
      x.mul_(sigma).add_(clean, 1.0 - sigma);
    }
    std::string label = "denoise";
    if (num_pictures > 1) {
      label += " picture " + std::to_string(first + 1);
      if (count > 1) label += "-" + std::to_string(first + count);
      label += "/" + std::to_string(num_pictures);
    }
    x = denoise(request, cond, std::move(x), label);
    if (first + count == num_pictures) levels.reset();  // decoding may need the room
    for (size_t i = 0; i < count; ++i) {
      on_picture(first + i, decode(request, x[static_cast<int64_t>(i)]));
    }
  }
}

}  // namespace atelier::generate
