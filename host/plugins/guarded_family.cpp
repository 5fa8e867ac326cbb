#include "host/plugins/guarded_family.h"

#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include "atelier/block.h"
#include "atelier/error.h"

#include "host/plugins/guard.h"
#include "host/plugins/output_checks.h"
#include "host/plugins/own_process.h"
#include "host/plugins/plugin_call.h"

namespace atelier::plugins {

namespace {

// The blocks of a plugin, which exceptions that leave them name.
class NamedBlocks final : public BlockRunner {
 public:
  explicit NamedBlocks(BlockRunner& runner) : runner_(runner) {}
  Tensors run(Block& block, const Tensors& inputs) override {
    try {
      return runner_.run(block, inputs);
    } catch (const Error&) {
      throw;
    } catch (...) {
      note_block(block.path());
      throw;
    }
  }
  std::shared_ptr<void> hold(Block& block) override { return runner_.hold(block); }

 private:
  BlockRunner& runner_;
};

// Runs `call`, which is in `function` of a plugin, and hands what it gives to `check`.
template <typename F, typename Check>
auto checked_call(const PluginName& plugin, const char* function, CallKind kind, F&& call,
                  Check&& check) {
  const PluginCall running(plugin, function, kind);
  return guard(
      plugin.family + "." + function,
      [&] {
        auto given = std::forward<F>(call)();
        check(given);
        return given;
      },
      plugin.place);
}

// As checked_call(), of a function that judges what the user gave. Where it refuses that, no name
// of a function is put in front: whoever asked knows the place.
template <typename F, typename Check>
auto judging_call(const PluginName& plugin, const char* function, F&& call, Check&& check) {
  std::exception_ptr of_inputs;
  try {
    return checked_call(
        plugin, function, CallKind::kAnswers,
        [&] {
          try {
            return std::forward<F>(call)();
          } catch (const Error& error) {
            if (error.code() == ErrorCode::kInvalidArgument) of_inputs = std::current_exception();
            throw;
          }
        },
        std::forward<Check>(check));
  } catch (...) {
    if (of_inputs) std::rethrow_exception(of_inputs);
    throw;
  }
}

// Every virtual function is forwarded, those with a default too: the family may have its own.
class GuardedModel final : public Model {
 public:
  GuardedModel(const PluginName& plugin, std::string target_input, std::unique_ptr<Model> model)
      : plugin_(plugin), target_input_(std::move(target_input)), model_(std::move(model)) {}
  ~GuardedModel() override {
    const PluginCall running(plugin_, "~Model", CallKind::kAnswers);
    model_.reset();
  }

  nn::Module& component(std::string_view name) override {
    return call("component", &Model::component, name);
  }
  std::vector<Block*> blocks(std::string_view component) override {
    return checked("blocks", &Model::blocks, component);
  }
  LatentSpec latent_spec() const override { return checked("latent_spec", &Model::latent_spec); }
  MediaTarget target(const Inputs& inputs, const MediaTarget& asked) const override {
    return judging_call(
        plugin_, "target", [&] { return model_->target(inputs, asked); },
        [&](const MediaTarget& target) { check_output(plugin_.place, target); });
  }
  std::vector<int64_t> latent_shape(const MediaTarget& target,
                                    const Conditioning& cond) const override {
    return checked_call(
        plugin_, "latent_shape", CallKind::kAnswers,
        [&] { return model_->latent_shape(target, cond); },
        [&](const auto& shape) { check_latent_shape(plugin_.place, shape); });
  }
  FinishedLatents to_decode(const at::Tensor& latents_BCTHW,
                            const Conditioning& cond) const override {
    return checked_call(
        plugin_, "to_decode", CallKind::kComputes,
        [&] { return model_->to_decode(latents_BCTHW, cond); },
        [&](const auto& finished) { check_finished(plugin_.place, finished, latents_BCTHW); });
  }
  std::vector<Piece> pieces(const Inputs& inputs, const MediaTarget& target) const override {
    return judging_call(
        plugin_, "pieces", [&] { return model_->pieces(inputs, target); },
        [&](const auto& pieces) { check_pieces(plugin_.place, pieces, target); });
  }
  bool runs(std::string_view control, const Inputs& inputs, int64_t step,
            int64_t steps) const override {
    return call("runs", &Model::runs, control, inputs, step, steps);
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "encode", CallKind::kComputes, [&] { return model_->encode(in, blocks); },
        [&](const Conditioning& made) { check_encoded(in, made); });
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return checked("text_length", &Model::text_length, in);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "denoise", CallKind::kComputes, [&] { return model_->denoise(in, blocks); },
        [&](const at::Tensor& velocity) { check_like(plugin_.place, velocity, in.x_BCTHW); });
  }
  std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                      BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "denoise_all", CallKind::kComputes,
        [&] { return model_->denoise_all(calls, blocks); },
        [&](const auto& velocities) { check_velocities(plugin_.place, velocities, calls); });
  }
  std::vector<WeightPtr> level_weights(std::string_view denoiser) override {
    return checked("level_weights", &Model::level_weights, denoiser);
  }
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    compute("prepare_levels", &Model::prepare_levels, denoiser, sigmas, blocks);
  }
  void forget_levels() override { call("forget_levels", &Model::forget_levels); }
  at::Tensor guide(const GuideInputs& in, BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "guide", CallKind::kComputes, [&] { return model_->guide(in, blocks); },
        [&](const at::Tensor& velocity) { check_like(plugin_.place, velocity, in.with_BCTHW); });
  }
  Sound decode_sound(const at::Tensor& latents_1CTHW, const Conditioning& cond,
                     BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "decode_sound", CallKind::kComputes,
        [&] { return model_->decode_sound(latents_1CTHW, cond, blocks); },
        [&](const Sound& sound) { check_sound(plugin_.place, sound); });
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
              const FrameSink& sink) override {
    const LatentSpec spec = guard(
        plugin_.family + ".decode", [&] { return model_->latent_spec(); }, plugin_.place);
    FrameCheck check(plugin_.place, latents_BCTHW, spec);
    NamedBlocks blocks(runner);
    std::exception_ptr of_sink;  // which is the host's: no plugin's name is put before it
    const FrameSink watched = [&](const at::Tensor& pixels_BCTHW) {
      check.add(pixels_BCTHW);
      try {
        sink(pixels_BCTHW);
      } catch (...) {
        of_sink = std::current_exception();
        throw;
      }
    };
    try {
      compute("decode", &Model::decode, latents_BCTHW, blocks, watched);
    } catch (...) {
      if (of_sink) std::rethrow_exception(of_sink);
      throw;
    }
    guard(plugin_.family + ".decode", [&] { check.end(); });
  }
  std::optional<GivenLatents> given(const Conditioning& cond,
                                    at::IntArrayRef latents_CTHW) const override {
    return checked("given", &Model::given, cond, latents_CTHW);
  }
  NamedTensors probe(std::string_view component, const NamedTensors& inputs,
                     BlockRunner& runner) override {
    NamedBlocks blocks(runner);
    return checked_call(
        plugin_, "probe", CallKind::kComputes,
        [&] { return model_->probe(component, inputs, blocks); },
        [&](const NamedTensors& given) { check_output(plugin_.place, given); });
  }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    return call("tokenize", &Model::tokenize, text);
  }

 private:
  void check_encoded(const EncodeInputs& in, const Conditioning& made) const {
    check_output(plugin_.place, made);
    const auto target = in.values.find(target_input_);
    if (target == in.values.end()) return;
    const at::Tensor* pixels = std::get_if<at::Tensor>(&target->second);
    if (pixels == nullptr) return;
    const int64_t axes = pixels->dim();
    check_latents(plugin_.place, made,
                  model_->latent_shape({axes == 4 ? pixels->size(1) : 1, pixels->size(axes - 2),
                                        pixels->size(axes - 1)},
                                       made));
  }

  template <typename F, typename... Arguments>
  std::invoke_result_t<F, Model&, Arguments...> run(const char* name, CallKind kind, F function,
                                                    Arguments&&... arguments) const {
    const PluginCall running(plugin_, name, kind);
    return guard(
        plugin_.family + "." + name,
        [&]() -> decltype(auto) {
          return std::invoke(function, *model_, std::forward<Arguments>(arguments)...);
        },
        plugin_.place);
  }
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, Model&, Arguments...> call(const char* name, F function,
                                                     Arguments&&... arguments) const {
    return run(name, CallKind::kAnswers, function, std::forward<Arguments>(arguments)...);
  }
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, Model&, Arguments...> compute(const char* name, F function,
                                                        Arguments&&... arguments) const {
    return run(name, CallKind::kComputes, function, std::forward<Arguments>(arguments)...);
  }
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, Model&, Arguments...> checked(const char* name, F function,
                                                        Arguments&&... arguments) const {
    return checked_call(
        plugin_, name, CallKind::kAnswers,
        [&] { return std::invoke(function, *model_, std::forward<Arguments>(arguments)...); },
        [&](const auto& given) { check_output(plugin_.place, given); });
  }

  const PluginName& plugin_;
  std::string target_input_;  // empty: there is none
  std::unique_ptr<Model> model_;
};

class GuardedFamily final : public ModelFamily {
 public:
  GuardedFamily(const ModelFamily& family, std::string place, std::string version)
      : family_(family),
        plugin_(lasting({std::string(family.name()), std::move(place)})),
        version_(std::move(version)) {}

  const std::string& version() const { return version_; }

  // ---- What only says what there is ----

  std::string_view name() const override { return plugin_.family; }
  std::string_view help() const override { return ask("help", &ModelFamily::help); }
  std::span<const ComponentSpec> components() const override {
    return ask("components", &ModelFamily::components);
  }
  std::span<const InputSpec> inputs() const override { return ask("inputs", &ModelFamily::inputs); }
  std::span<const EncodeStage> encode_stages() const override {
    return ask("encode_stages", &ModelFamily::encode_stages);
  }
  std::span<const ScheduleDefaults> schedules() const override {
    return ask("schedules", &ModelFamily::schedules);
  }
  ScheduleDefaults training_schedule(const Detection& denoiser) const override {
    return ask("training_schedule", &ModelFamily::training_schedule, denoiser);
  }
  std::span<const SolverSpec> solvers() const override {
    return ask("solvers", &ModelFamily::solvers);
  }
  MediaDefaults media_defaults(const Detection& denoiser) const override {
    return ask("media_defaults", &ModelFamily::media_defaults, denoiser);
  }
  SigmaRange sigma_range(const Detection& denoiser) const override {
    return ask("sigma_range", &ModelFamily::sigma_range, denoiser);
  }

  // ---- What works on files and models ----

  std::optional<Detection> detect(const TensorIndex& checkpoint,
                                  const DetectHint& hint) const override {
    return call("detect", &ModelFamily::detect, checkpoint, hint);
  }
  void assign(std::span<FoundPart> parts) const override {
    call("assign", &ModelFamily::assign, parts);
  }
  ConfigFields config_fields(const Detection& part) const override {
    return call("config_fields", &ModelFamily::config_fields, part);
  }
  WeightMap weight_map(const Detection& part) const override {
    return call("weight_map", &ModelFamily::weight_map, part);
  }
  LoraTargets lora_targets(const Detection& denoiser) const override {
    return call("lora_targets", &ModelFamily::lora_targets, denoiser);
  }
  std::vector<std::string> spellings(const Detection& part) const override {
    return call("spellings", &ModelFamily::spellings, part);
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    std::unique_ptr<Model> model = checked_call(
        plugin_, "make_model", CallKind::kAnswers,
        [&] { return family_.make_model(parts, options); },
        [&](const auto& made) { expect_model(plugin_.place, made.get()); });
    return std::make_unique<GuardedModel>(plugin_, target_input(), std::move(model));
  }
  std::vector<Detection> tiny_parts() const override {
    return call("tiny_parts", &ModelFamily::tiny_parts);
  }
  Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                    at::ScalarType dtype) const override {
    return checked_call(
        plugin_, "example_conditioning", CallKind::kAnswers,
        [&] { return family_.example_conditioning(denoiser, tokens, dtype); },
        [&](const Conditioning& given) { check_output(plugin_.place, given); });
  }

 private:
  // The input that training learns.
  std::string target_input() const {
    for (const InputSpec& input : inputs()) {
      if (input.role == InputRole::kTarget) return std::string(input.name);
    }
    return {};
  }

  template <typename F, typename... Arguments>
  std::invoke_result_t<F, const ModelFamily&, Arguments...> call(const char* name, F function,
                                                                 Arguments&&... arguments) const {
    const PluginCall running(plugin_, name, CallKind::kAnswers);
    return guard(
        plugin_.family + "." + name,
        [&]() -> decltype(auto) {
          return std::invoke(function, family_, std::forward<Arguments>(arguments)...);
        },
        plugin_.place);
  }
  // Nothing of the host runs in such a call: what it throws is the plugin's own.
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, const ModelFamily&, Arguments...> ask(const char* name, F function,
                                                                Arguments&&... arguments) const {
    return checked_call(
        plugin_, name, CallKind::kAnswers,
        [&] {
          try {
            return std::invoke(function, family_, std::forward<Arguments>(arguments)...);
          } catch (...) {
            rethrow_of_plugin(plugin_.place);
          }
        },
        [&](const auto& given) {
          if constexpr (requires { check_output(plugin_.place, given); })
            check_output(plugin_.place, given);
        });
  }

  const ModelFamily& family_;
  const PluginName& plugin_;
  const std::string version_;
};

}  // namespace

std::unique_ptr<const ModelFamily> guarded(const ModelFamily& family, std::string place,
                                           std::string version) {
  return std::make_unique<GuardedFamily>(family, std::move(place), std::move(version));
}

std::string_view plugin_version(const ModelFamily& family) {
  const auto* guarded = dynamic_cast<const GuardedFamily*>(&family);
  return guarded == nullptr ? std::string_view() : guarded->version();
}

}  // namespace atelier::plugins
