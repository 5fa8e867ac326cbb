#include "host/generate/generator.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include "atelier/error.h"
#include "atelier/host/scaled_products.h"
#include "atelier/host/stop.h"

#include "host/distributed/staged.h"
#include "host/generate/guidance.h"
#include "host/generate/known_latents.h"
#include "host/inputs/parse.h"
#include "host/plugins/guard.h"
#include "host/random/noise.h"
#include "host/sampling/sigma_schedule.h"
#include "memory/transfer_device.h"

namespace atelier::generate {
namespace {

// The most bytes of encoded prompts that are kept for later requests.
constexpr int64_t kCacheBytes = int64_t{1} << 30;
// The bytes of latents at which no more are put aside for the next denoiser.
constexpr int64_t kWaitingBytes = int64_t{1} << 29;

int64_t bytes_of(const Conditioning& cond) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : cond) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// What the denoiser is told of the levels.
std::vector<float> denoiser_levels(const Request& request) {
  return request.whole_timesteps ? sampling::whole_timesteps(request.sigmas) : request.sigmas;
}

// Whether any step uses guidance.
bool is_guided(const Request& request, const model::Stages& stages) {
  for (int64_t i = 0; i + 1 < std::ssize(request.sigmas); ++i) {
    if (is_guided(request, stages, i)) return true;
  }
  return false;
}

at::Tensor copied_to(at::Device device, const at::Tensor& t) {
  return t.to(device, t.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

Error wrong_frames(int64_t decoded, int64_t asked) {
  return {ErrorCode::kInternal, "decode: gives " + std::to_string(decoded) + " frames of " +
                                    std::to_string(asked) + " that are asked for"};
}

Error wrong_solver(const SolverSpec& solver, const char* what) {
  return {ErrorCode::kEnvironment, "solver " + std::string(solver.name) + ": " + what,
          "ask the plugin's author", "PLUGIN_WRONG"};
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

// Keeps the host at most one step ahead of the device: otherwise progress would show launches, and
// Ctrl-C would be heard when everything is queued already.
class Pacer {
 public:
  explicit Pacer(at::Device device) : device_(device) {}

  // Call after the work of a step is queued: waits for the step before it.
  void step() {
    if (device_.is_cpu() || device_.is_meta()) return;
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

Generator::Generator(Engine engine, progress::Progress& progress,
                     std::function<bool()> is_cancelled)
    : engine_(std::move(engine)),
      residents_(engine_.stages.components, engine_.load, engine_.unload, engine_.stays),
      progress_(progress),
      is_cancelled_(std::move(is_cancelled)) {}

void Generator::check_cancelled() const {
  if (is_cancelled_ && is_cancelled_()) throw Error(ErrorCode::kCancelled, "stopped by the user");
}

void Generator::begin_phase(std::string_view phase, int64_t number) const {
  if (engine_.on_phase) engine_.on_phase(phase, number);
}

Conditioning Generator::encode(const EncodeStage& stage, const EncodeInputs& in,
                               const std::string& encoder_state) {
  std::string key;  // empty: what is made of a piece is not asked for again
  if (!in.piece) {
    key = encoder_state + std::string(stage.name) + (in.is_negative ? "-" : "+");
    if (stage.sees_target)
      key +=
          c10::str(in.target.frames, "x", in.target.height, "x", in.target.width, "@", in.fps, ":");
    key += inputs::content_of(in.values);
    if (const auto found = cache_.find(key); found != cache_.end()) return found->second;
  }
  residents_.encode(stage, check());
  begin_phase("encode");
  check_cancelled();
  int64_t num_blocks = 0;
  for (const model::PresentComponent& component : engine_.stages.components) {
    if (component.spec.role != Role::kTokenizer && model::uses(stage, component.spec))
      num_blocks += std::ssize(engine_.model.blocks(component.name));
  }
  const std::string what(model::is_prompted(stage) ? "prompt" : stage.name);
  progress::Step step(progress_, "encode " + what, num_blocks, progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  Conditioning cond = model::encode(engine_.model, in, counting, engine_.device);
  for (auto& [name, tensor] : cond) tensor = tensor.to(engine_.device);
  step.finish();
  if (!key.empty()) keep(key, cond);
  return cond;
}

void Generator::keep(const std::string& key, const Conditioning& cond) {
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

// All of the prompt first, then all of the negative one. Where there are pieces, stages run either
// for all of them, without a `piece`, or for each.
Generator::Conditionings Generator::encode_conditions(const Request& request,
                                                      const PieceInputs* piece) {
  Conditionings cond;
  std::map<std::string_view, Conditioning> of_both;  // what stages of a piece make for both
  Inputs given = piece ? piece->beside : Inputs();
  given.insert(request.inputs.begin(), request.inputs.end());
  for (const bool is_negative : {false, true}) {
    if (is_negative && !is_guided(request, engine_.stages)) break;
    for (const EncodeStage& stage : engine_.stages.encoding) {
      const bool is_of_piece = stage.per_piece && !request.pieces.empty();
      if (engine_.stages.is_target(stage) || is_of_piece != (piece != nullptr)) continue;
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
        in = model::negative_of(std::move(in), request.negative_prompt, given,
                                engine_.stages.inputs);
      const bool is_of_both = piece && !model::runs_per_branch(stage);
      Conditioning part = is_of_both && is_negative ? of_both.at(stage.name)
                                                    : encode(stage, in, request.encoder_state);
      if (is_of_both) of_both[stage.name] = part;
      (is_negative ? cond.without : cond.with).merge(part);
      if (const auto prompt = cond.with.find(kPromptEmbeds);
          is_negative && !stage.kept_as.empty() && prompt != cond.with.end())
        cond.without.emplace(stage.kept_as, prompt->second);
    }
  }
  return cond;
}

void Generator::encode_ahead(std::span<const Request> requests) {
  const at::NoGradGuard no_grad;
  const ops::FastSums fast;
  const ops::StopScope stops([this] { check_cancelled(); });
  for (const Request& request : requests) {
    if (cache_bytes_ > kCacheBytes / 2) return;
    encode_conditions(request);
  }
}

at::Tensor Generator::encode_start(const Request& request, at::IntArrayRef latents_CTHW) {
  const EncodeStage* stage = engine_.stages.target_stage();
  if (stage == nullptr)
    throw Error(ErrorCode::kUnsupported, "this family does not start from an image",
                "leave the image out");
  residents_.encode(*stage, check());
  begin_phase("encode");
  check_cancelled();
  const bool is_image = request.input_pixels.size(1) == 1;
  progress::Step step(progress_, is_image ? "encode image" : "encode clip", 0,
                      progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  BlockRunner& blocks = request.tiling ? runner() : counting;
  const Inputs beside = model::inputs_of(*stage, request.inputs);
  const LatentSpec spec = engine_.model.latent_spec();
  const bool is_plain =
      latents_CTHW[1] == (request.input_pixels.size(1) - 1) / spec.temporal_stride + 1;
  const TileFunction encode = through_vae([&](const at::Tensor& pixels) {
    EncodeInputs in = engine_.stages.target_inputs(pixels);
    in.values.insert(beside.begin(), beside.end());
    in.fps = request.fps;
    return model::encode(engine_.model, in, blocks, engine_.device).at("latents");
  });
  const at::Tensor pixels = request.input_pixels.to(engine_.device);
  const auto on_tile = [&](int64_t done, int64_t total) {
    step.set(done, total);
    check_cancelled();
  };
  const at::Tensor latents =
      request.tiling && is_plain && beside.empty()  // no tile has a part of anything else
          ? encode_tiled(pixels, *request.tiling, engine_.model.latent_spec().spatial_stride,
                         encode, on_tile, tile_ranks())
          : encode(pixels);
  step.finish();
  return latents.to(at::kFloat);
}

at::Tensor Generator::initial_noise(const Request& request, const Conditioning& cond, size_t first,
                                    size_t count) const {
  if (request.latents.defined()) {
    return request.latents.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count))
        .to(engine_.device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  std::vector<int64_t> shape = engine_.model.latent_shape(request.target, cond);
  if (engine_.device.is_meta()) {
    shape.insert(shape.begin(), static_cast<int64_t>(count));
    return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  }
  std::vector<at::Tensor> samples;
  for (size_t i = first; i < first + count; ++i) {
    samples.push_back(random::normal_noise({.seed = request.seeds[i]}, shape));
  }
  return at::stack(samples).to(engine_.device);
}

// The denoiser's calls of one run over the levels.
class Generator::Guided {
 public:
  // `x`: [N, C, T, H, W] float32, which the caller moves from level to level.
  Guided(Generator& generator, const Request& request, const Conditionings& cond,
         const at::Tensor& x)
      : generator_(generator),
        request_(request),
        x_(x),
        batched_(is_guided(request, generator.engine_.stages) && request.batches_cfg &&
                 !generator.splits_cfg_ && !generator.engine_.ranks.guidance),
        with_(static_cast<size_t>(x.size(0)), &cond.with),
        without_(static_cast<size_t>(x.size(0)), &cond.without),
        both_(with_) {
    both_.insert(both_.end(), without_.begin(), without_.end());
    const auto num_levels = std::ssize(request.sigmas);
    // A row of each level, on the device before the loop begins.
    sigmas_ = at::tensor(denoiser_levels(request), at::kFloat)
                  .unsqueeze(1)
                  .expand({num_levels, rows()})
                  .contiguous()
                  .to(generator.engine_.device);
  }

  // The velocity at the level of a step, whose denoiser is there.
  at::Tensor velocity(int64_t step) {
    const at::ScalarType dtype = generator_.denoiser_->dtype;
    if (!input_.defined() || input_.scalar_type() != dtype) {
      std::vector<int64_t> shape = x_.sizes().vec();
      shape[0] = rows();
      input_ = at::empty(shape, x_.options().dtype(dtype));
    }
    input_.narrow(0, 0, x_.size(0)).copy_(x_);
    if (is_guided(request_, generator_.engine_.stages, step)) return guided(step);
    generator_.hand_over(request_, step);
    return call(step, with_);
  }

 private:
  int64_t rows() const { return batched_ ? 2 * x_.size(0) : x_.size(0); }

  // What the denoiser is given of the first samples, as many as there are conditionings.
  DenoiseInputs inputs_of(int64_t step, std::span<const Conditioning* const> cond) const {
    const auto n = std::ssize(cond);
    return {.x_BCTHW = input_.narrow(0, 0, n),
            .sigma_B = sigmas_[step].narrow(0, 0, n),
            .cond = cond,
            .level = step - generator_.first_step_,
            .denoiser = generator_.denoiser_->name(),
            .next_sigma_B = sigmas_[step + 1].narrow(0, 0, n),
            .step = step,
            .steps = std::ssize(request_.sigmas) - 1};
  }

  // Runs `call`, in which the model may denoise, with its rows shared out among ranks that do so.
  template <class Call>
  at::Tensor with_ranks(Call&& call) const {
    std::optional<SequenceScope> shares_rows;
    if (SequenceGroup* const rows = generator_.engine_.ranks.sequence.get())
      shares_rows.emplace(*rows);
    return call();
  }

  at::Tensor call(int64_t step, std::span<const Conditioning* const> cond) {
    return with_ranks([&] {
      return generator_.engine_.model.denoise(inputs_of(step, cond), generator_.runner())
          .to(at::kFloat);
    });
  }

  at::Tensor guided(int64_t step) {
    const int64_t count = x_.size(0);
    if (distributed::Group* const halves = generator_.engine_.ranks.guidance.get()) {
      generator_.hand_over(request_, step);
      const at::Tensor own = call(step, halves->is_first() ? with_ : without_);
      const at::Tensor both = distributed::gathered(*halves, own);
      return combine(step, both[0], both[1]);
    }
    if (batched_ && !generator_.splits_cfg_) {
      try {
        input_.narrow(0, count, count).copy_(x_);
        generator_.hand_over(request_, step);
        const at::Tensor pair = call(step, both_);
        return combine(step, pair.narrow(0, 0, count), pair.narrow(0, count, count));
      } catch (...) {
        const std::optional<Error> failure = plugins::out_of_memory();
        // Other ranks would go on with one call.
        if (!failure || !generator_.engine_.ranks.is_alone()) throw;
        generator_.take_back();
        generator_.splits_cfg_ = true;
        generator_.progress_.warn(
            failure->message() +
            "; from this step on guidance is made in two calls, as with --cfg_batch off");
      }
    }
    const at::Tensor with = call(step, with_);
    generator_.hand_over(request_, step);
    return combine(step, with, call(step, without_));
  }

  at::Tensor combine(int64_t step, const at::Tensor& with, const at::Tensor& without) {
    const double scale = cfg_scale_at(request_, generator_.engine_.stages, step);
    const GuideInputs in = {with, without, scale, inputs_of(step, with_)};
    const at::Tensor guided =
        with_ranks([&] { return generator_.engine_.model.guide(in, generator_.runner()); });
    return renormed(guided, with, request_.cfg_renorm, request_.cfg_renorm_ratio);
  }

  Generator& generator_;
  const Request& request_;
  const at::Tensor& x_;
  const bool batched_;
  std::vector<const Conditioning*> with_, without_, both_;
  at::Tensor sigmas_, input_;
};

// Images that are denoised together, on their way through the levels.
struct Generator::Batch {
  size_t first = 0;  // of the request's images
  at::Tensor x;      // [N, C, T, H, W] float32
  // What the model was given, and what stays of the image that sampling begins from.
  KnownLatents known, kept;
  std::unique_ptr<Solver> solver = nullptr;

  void keep_known(float sigma) {
    for (const KnownLatents* latents : {&kept, &known})
      if (!latents->is_empty()) x.copy_(latents->put_into(x, sigma));
  }
  void visit(const std::function<void(at::Tensor&)>& visit) {
    visit(x);
    known.visit(visit);
    kept.visit(visit);
    solver->visit(visit);
  }
};

// Steps that every batch makes before any goes on: those of one denoiser where there are several,
// which would be loaded for each batch anew.
std::vector<Generator::Steps> Generator::parts_of(const Request& request) const {
  const auto num_steps = std::ssize(request.sigmas) - 1;
  const std::span<const model::RangedDenoiser> denoisers = engine_.stages.denoisers;
  const bool all_stay = std::ranges::all_of(
      denoisers, [&](const auto& denoiser) { return engine_.stays.contains(denoiser.name()); });
  if (all_stay || std::ssize(request.seeds) <= request.batch_size) return {{0, num_steps}};
  std::vector<Steps> parts;
  const model::RangedDenoiser* last = nullptr;
  for (int64_t i = 0; i < num_steps; ++i) {
    const auto* const denoiser = &denoiser_of(request, denoisers, i);
    if (std::exchange(last, denoiser) != denoiser) parts.push_back({i, i});
    parts.back().end = i + 1;
  }
  return parts;
}

Generator::Batch Generator::begin_batch(const Request& request, const Conditionings& cond,
                                        const at::Tensor& clean, size_t first) const {
  const auto batch_size = static_cast<size_t>(std::max<int64_t>(request.batch_size, 1));
  const size_t count = std::min(batch_size, request.seeds.size() - first);
  at::Tensor x = initial_noise(request, cond.with, first, count);
  const float sigma = request.sigmas.front();
  Batch batch = {.first = first,
                 .x = x,
                 .known = KnownLatents(engine_.model.given(cond.with, x.sizes().slice(1)), x),
                 .kept = KnownLatents(kept_by(request.inpaint_mask, clean), x)};
  if (clean.defined()) x.mul_(sigma).add_(clean, 1.0 - static_cast<double>(sigma));
  batch.keep_known(sigma);
  batch.solver = request.solver.make(request.sigmas, batch.x);
  if (batch.solver == nullptr) throw wrong_solver(request.solver, "makes none");
  return batch;
}

void Generator::denoise(const Request& request, const Conditionings& cond, Batch& batch,
                        const Steps& steps) {
  const size_t num_images = request.seeds.size(), count = static_cast<size_t>(batch.x.size(0));
  std::string label = "denoise";
  if (num_images > 1) {
    label += " image " + std::to_string(batch.first + 1);
    if (count > 1) label += "-" + std::to_string(batch.first + count);
    label += "/" + std::to_string(num_images);
  }
  use_denoiser(request, steps.begin);
  if (steps.end - steps.begin + 1 < std::ssize(request.sigmas))
    label += " with " + denoiser_->name();
  Guided denoiser(*this, request, cond, batch.x);
  const std::vector<int64_t> latents = batch.x.sizes().vec();
  Pacer pacer(engine_.device);
  progress::Step progress_step(progress_, label, steps.end - steps.begin, progress::Unit::kSteps);
  for (int64_t i = steps.begin; i < steps.end; ++i) {
    check_cancelled();
    if (engine_.makes_step && !engine_.makes_step(i)) continue;
    use_denoiser(request, i);
    begin_phase("denoise", i + 1);
    batch.solver->step(batch.x, denoiser.velocity(i));
    if (batch.x.sizes() != latents || batch.x.scalar_type() != at::kFloat)
      throw wrong_solver(request.solver, "gives latents of another shape or dtype");
    batch.keep_known(request.sigmas[static_cast<size_t>(i + 1)]);
    pacer.step();
    progress_step.advance();
  }
  progress_step.finish();
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

const model::RangedDenoiser& denoiser_of(const Request& request,
                                         std::span<const model::RangedDenoiser> denoisers,
                                         int64_t step) {
  float level = request.sigmas[static_cast<size_t>(step)];
  if (request.whole_timesteps) level = sampling::whole_timesteps({&level, 1}).front();
  if (!request.switch_boundary) return model::denoiser_at(denoisers, level);
  const bool is_noisy = level >= static_cast<float>(*request.switch_boundary);
  return is_noisy ? denoisers.front() : denoisers.back();
}

// Brings the denoiser of a step, and has it compute ahead what the levels of its steps say.
void Generator::use_denoiser(const Request& request, int64_t step) {
  const auto of_step = [&](int64_t i) -> const model::RangedDenoiser& {
    return denoiser_of(request, engine_.stages.denoisers, i);
  };
  const model::RangedDenoiser& wanted = of_step(step);
  if (denoiser_ == &wanted) return;
  next_ = nullptr;
  forget_denoiser();
  residents_.denoise(wanted.name(), engine_.stages.controls_beside(wanted.name(), request.inputs),
                     check());
  check_cancelled();
  const auto num_steps = std::ssize(request.sigmas) - 1;
  int64_t end = step + 1;
  while (end < num_steps && &of_step(end) == &wanted) ++end;
  denoiser_ = &wanted;
  first_step_ = step;
  const std::vector<float> all = denoiser_levels(request);
  const auto levels =
      std::span(all).subspan(static_cast<size_t>(step), static_cast<size_t>(end - step));
  try {
    engine_.model.prepare_levels(wanted.name(), levels, runner());
  } catch (...) {
    forget_denoiser();
    throw;
  }
}

void Generator::forget_denoiser() {
  if (next_ != nullptr) {  // neither of the two is whole
    engine_.unload(next_->name());
    engine_.unload(denoiser_->name());
    next_ = nullptr;
  }
  denoiser_ = nullptr;
  engine_.model.forget_levels();
}

// Before the last call of a step: where that is the denoiser's last one, the next one begins to
// come.
void Generator::hand_over(const Request& request, int64_t step) {
  if (!engine_.hand_over || !hands_over_ || engine_.stays.contains(denoiser_->name()) ||
      step + 2 >= std::ssize(request.sigmas))
    return;
  const auto& next = denoiser_of(request, engine_.stages.denoisers, step + 1);
  if (&next == denoiser_) return;
  next_ = &next;
  engine_.hand_over(denoiser_->name(), next.name());
}

// The denoiser is called again after all.
void Generator::take_back() {
  if (next_ == nullptr) return;
  engine_.unload(std::exchange(next_, nullptr)->name());
  engine_.unload(denoiser_->name());
  engine_.load(denoiser_->name());
}

void Generator::decode(const Request& request, const at::Tensor& latents_1CTHW,
                       const model::SampleSink& sink) {
  progress::Step step(progress_, "decode", 0, progress::Unit::kParts);
  CountingRunner counting(runner(), step);
  BlockRunner& blocks = request.tiling ? runner() : counting;
  const at::Device host = engine_.device.is_meta() ? at::kMeta : at::kCPU;
  const auto show = [&](const at::Tensor& pixels) {
    const memory::HostScope on_host;
    if (!host.is_meta() && !at::isfinite(pixels).all().item<bool>())
      throw Error(ErrorCode::kNumerics, "the image has values that are not finite",
                  "compute in another --dtype, and check the model's files");
    sink(pixels);
  };
  const at::Tensor latents = latents_1CTHW.to(engine_.decoder_dtype);
  if (request.tiling) {
    const TileFunction tile = through_vae([&](const at::Tensor& of_tile) {
      return model::decode_whole(engine_.model, of_tile, blocks, host);
    });
    const auto on_tile = [&](int64_t done, int64_t total) {
      step.set(done, total);
      check_cancelled();
    };
    const int64_t stride = engine_.model.latent_spec().spatial_stride;
    show(decode_tiled(latents, *request.tiling, stride, tile, on_tile, tile_ranks())[0].to(
        host, at::kFloat));
  } else {
    through_vae([&](const at::Tensor& whole) {
      model::decode(engine_.model, whole, blocks, host, show);
      return whole;
    })(latents);
  }
  step.finish();
}

TileFunction Generator::through_vae(TileFunction run) const {
  if (!engine_.through_vae) return run;
  return
      [this, run = std::move(run)](const at::Tensor& in) { return engine_.through_vae(run, in); };
}

TileRanks Generator::tile_ranks() const {
  if (engine_.ranks.is_alone()) return {};
  distributed::Group& all = *engine_.ranks.all;
  return {.rank = all.rank(), .size = all.size(), .gather = [&all](const at::Tensor& tile) {
            return distributed::gathered(all, tile);
          }};
}

void Generator::run(const Request& request, const OnFrames& on_frames, OnSound on_sound) {
  on_sound_ = std::move(on_sound);
  const at::NoGradGuard no_grad;
  const ops::FastSums fast;
  const ops::StopScope stops([this] { check_cancelled(); });
  const Conditionings cond = encode_conditions(request);
  if (!request.pieces.empty()) return make_pieces(request, cond, on_frames);
  const std::vector<int64_t> shape = engine_.model.latent_shape(request.target, cond.with);
  if (request.latents.defined()) {
    std::vector<int64_t> wanted = shape;
    wanted.insert(wanted.begin(), std::ssize(request.seeds));
    if (request.latents.sizes() != wanted) {
      throw Error(ErrorCode::kInvalidArgument,
                  "tensor \"latents\": shape " + c10::str(request.latents.sizes()) + ", " +
                      c10::str(at::IntArrayRef(wanted)) + " expected",
                  "that is [images, channels, frames, height, width] at this size");
    }
  }
  at::Tensor clean;
  if (request.input_pixels.defined()) {
    clean = encode_start(request, shape);
    if (clean.sizes() != shape) {
      throw Error(ErrorCode::kInvalidArgument, "the input image gives latents of shape " +
                                                   c10::str(clean.sizes()) + ", " +
                                                   c10::str(at::IntArrayRef(shape)) + " expected");
    }
  }
  make(request, cond, clean, on_frames);
}

// What is encoded becomes frames.
void Generator::make(const Request& request, const Conditionings& cond, const at::Tensor& clean,
                     const OnFrames& on_frames) {
  residents_.end_encoding();
  use_denoiser(request, 0);
  const auto forgets = c10::make_scope_exit([this] { forget_denoiser(); });
  sample(request, cond, clean, on_frames);
}

// Brings all batches through one part of the steps after the other, and decodes each at the end of
// its last part. Those that wait are on the host, so that the device has one at a time.
void Generator::sample(const Request& request, const Conditionings& cond, const at::Tensor& clean,
                       const OnFrames& on_frames) {
  const size_t num_images = request.seeds.size();
  const std::vector<Steps> parts = parts_of(request);
  std::deque<Batch> waiting;
  int64_t waiting_bytes = 0;
  const auto make_part = [&](Batch batch, size_t part, bool is_last) {
    hands_over_ = is_last;
    denoise(request, cond, batch, parts[part]);
    if (part + 1 == parts.size()) return decode(request, cond, batch, on_frames);
    batch.visit([&](at::Tensor& tensor) {
      const memory::HostScope on_host;
      if (!tensor.is_meta()) tensor = copied_to(at::kCPU, tensor);
      waiting_bytes += static_cast<int64_t>(tensor.nbytes());
    });
    waiting.push_back(std::move(batch));
  };
  for (size_t first = 0; first < num_images;) {
    for (; first < num_images && waiting_bytes < kWaitingBytes;) {
      Batch batch = begin_batch(request, cond, clean, first);
      first += static_cast<size_t>(batch.x.size(0));
      make_part(std::move(batch), 0, /*is_last=*/first == num_images);
    }
    for (size_t part = 1; part < parts.size(); ++part) {
      waiting_bytes = 0;
      for (size_t left = waiting.size(); left > 0; --left) {
        Batch batch = std::move(waiting.front());
        waiting.pop_front();
        batch.visit([&](at::Tensor& tensor) { tensor = copied_to(engine_.device, tensor); });
        make_part(std::move(batch), part, /*is_last=*/left == 1);
      }
    }
  }
}

// Pieces of a clip have no sounds of their own.
void Generator::decode_sound(const Request& request, const at::Tensor& latents_1CTHW,
                             const Conditioning& cond, size_t index) {
  if (!request.pieces.empty()) return;
  const Sound sound = engine_.model.decode_sound(latents_1CTHW, cond, runner());
  if (sound.samples_CN.defined() && on_sound_) on_sound_(index, sound);
}

void Generator::decode(const Request& request, const Conditionings& cond, const Batch& batch,
                       const OnFrames& on_frames) {
  const auto count = static_cast<size_t>(batch.x.size(0));
  // Decoding may need the room.
  if (batch.first + count == request.seeds.size()) forget_denoiser();
  if (!engine_.ranks.is_first() && !request.tiling) return;  // nothing is shared out
  for (size_t i = 0; i < count; ++i) {
    residents_.decode(check());
    begin_phase("decode");
    const at::Tensor latents = batch.x.narrow(0, static_cast<int64_t>(i), 1);
    decode_sound(request, latents, cond.with, batch.first + i);
    const FinishedLatents finished = engine_.model.to_decode(latents, cond.with);
    int64_t done = -finished.skipped_frames;
    decode(request, finished.latents_BCTHW, [&](const at::Tensor& pixels) {
      const int64_t before = std::exchange(done, done + pixels.size(1));
      if (done > request.target.frames) throw wrong_frames(done, request.target.frames);
      const int64_t skipped = std::max<int64_t>(-before, 0);
      if (done > 0)
        on_frames(batch.first + i, before + skipped,
                  pixels.narrow(1, skipped, pixels.size(1) - skipped));
    });
    const bool decodes_all = !engine_.through_vae;  // a dry run decodes what is alike once
    if (decodes_all && done < request.target.frames)
      throw wrong_frames(done, request.target.frames);
  }
}

}  // namespace atelier::generate
