#include "host/plugins/guarded_family.h"

#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include "host/plugins/guard.h"
#include "host/plugins/own_process.h"

namespace atelier::plugins {

namespace {

// Every virtual function is forwarded, those with a default too: the family may have its own.
class GuardedModel final : public Model {
 public:
  GuardedModel(std::string family, std::unique_ptr<Model> model)
      : family_(std::move(family)), model_(std::move(model)) {}

  nn::Module& component(std::string_view name) override {
    return call("component", &Model::component, name);
  }
  std::vector<Block*> blocks(std::string_view component) override {
    return call("blocks", &Model::blocks, component);
  }
  LatentSpec latent_spec() const override { return call("latent_spec", &Model::latent_spec); }
  MediaTarget target(const Inputs& inputs, const MediaTarget& asked) const override {
    return call("target", &Model::target, inputs, asked);
  }
  std::vector<int64_t> latent_shape(const MediaTarget& target) const override {
    return call("latent_shape", &Model::latent_shape, target);
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    return call("encode", &Model::encode, in, runner);
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return call("text_length", &Model::text_length, in);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    return call("denoise", &Model::denoise, in, runner);
  }
  std::vector<WeightPtr> level_weights(std::string_view denoiser) override {
    return call("level_weights", &Model::level_weights, denoiser);
  }
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      BlockRunner& runner) override {
    call("prepare_levels", &Model::prepare_levels, denoiser, sigmas, runner);
  }
  void forget_levels() override { call("forget_levels", &Model::forget_levels); }
  at::Tensor guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                   double scale) const override {
    return call("guide", &Model::guide, with_BCTHW, without_BCTHW, scale);
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
              const FrameSink& sink) override {
    std::exception_ptr of_sink;  // which is the host's: no plugin's name is put before it
    const FrameSink watched = [&](const at::Tensor& pixels_BCTHW) {
      try {
        sink(pixels_BCTHW);
      } catch (...) {
        of_sink = std::current_exception();
        throw;
      }
    };
    try {
      call("decode", &Model::decode, latents_BCTHW, runner, watched);
    } catch (...) {
      if (of_sink) std::rethrow_exception(of_sink);
      throw;
    }
  }
  std::optional<GivenLatents> given(const Conditioning& cond) const override {
    return call("given", &Model::given, cond);
  }
  NamedTensors probe(std::string_view component, const NamedTensors& inputs,
                     BlockRunner& runner) override {
    return call("probe", &Model::probe, component, inputs, runner);
  }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    return call("tokenize", &Model::tokenize, text);
  }

 private:
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, Model&, Arguments...> call(const char* name, F function,
                                                     Arguments&&... arguments) const {
    return guard(family_ + "." + name, [&]() -> decltype(auto) {
      return std::invoke(function, *model_, std::forward<Arguments>(arguments)...);
    });
  }

  std::string family_;
  std::unique_ptr<Model> model_;
};

class GuardedFamily final : public ModelFamily {
 public:
  GuardedFamily(const ModelFamily& family, std::string place)
      : family_(family), place_(std::move(place)), name_(family.name()) {}

  // ---- What only says what there is ----

  std::string_view name() const override { return name_; }
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
    std::unique_ptr<Model> model = call("make_model", &ModelFamily::make_model, parts, options);
    return model ? std::make_unique<GuardedModel>(name_, std::move(model)) : nullptr;
  }
  std::vector<Detection> tiny_parts() const override {
    return call("tiny_parts", &ModelFamily::tiny_parts);
  }
  Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                    at::ScalarType dtype) const override {
    return call("example_conditioning", &ModelFamily::example_conditioning, denoiser, tokens,
                dtype);
  }

 private:
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, const ModelFamily&, Arguments...> call(const char* name, F function,
                                                                 Arguments&&... arguments) const {
    return guard(name_ + "." + name, [&]() -> decltype(auto) {
      return std::invoke(function, family_, std::forward<Arguments>(arguments)...);
    });
  }
  // Nothing of the host runs in such a call: what it throws is the plugin's own.
  template <typename F, typename... Arguments>
  std::invoke_result_t<F, const ModelFamily&, Arguments...> ask(const char* name, F function,
                                                                Arguments&&... arguments) const {
    return guard(name_ + "." + name, [&]() -> decltype(auto) {
      try {
        return std::invoke(function, family_, std::forward<Arguments>(arguments)...);
      } catch (...) {
        rethrow_of_plugin(place_);
      }
    });
  }

  const ModelFamily& family_;
  std::string place_, name_;
};

}  // namespace

std::unique_ptr<const ModelFamily> guarded(const ModelFamily& family, std::string place) {
  return std::make_unique<GuardedFamily>(family, std::move(place));
}

}  // namespace atelier::plugins
