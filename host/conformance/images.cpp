#include "host/conformance/images.h"

#include <cmath>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/generate/engine.h"
#include "host/generate/fill_settings.h"
#include "host/generate/request.h"
#include "host/model/stages.h"
#include "host/sampling/sigma_schedule.h"

namespace atelier::conformance {
namespace {

using at::Tensor;
using order::Settings;

constexpr double kLeastDecibels = 20.0;  // of an image that was encoded and decoded
constexpr double kStrength = 0.3;        // of image to image
// The part of the distance between the images of two seeds that image to image may go away from
// its input.
constexpr double kLayoutShare = 0.5;

// The mean of |a - b|, of values in [-1, 1].
double distance(const Tensor& a, const Tensor& b) {
  return (a - b).abs().mean().item<double>();
}

double decibels(const Tensor& a, const Tensor& b) {
  return 10.0 * std::log10(4.0 / std::max((a - b).square().mean().item<double>(), 1e-12));
}

std::string print(double value) {
  std::ostringstream out;
  out.precision(3);
  out << value;
  return out.str();
}

class Images {
 public:
  Images(model::LoadedModel& model, const ImageOptions& options)
      : model_(model),
        options_(options),
        progress_({.quiet = true}),
        engine_(generate::engine_model_of(model), progress_) {}

  // float32 [3, 1, H, W] in [-1, 1].
  const Tensor& first() {
    if (!first_.defined()) first_ = draw(options_.prompt, 1);
    return first_;
  }

  const Tensor& second() {
    if (!second_.defined()) second_ = draw(options_.prompt, 2);
    return second_;
  }

  Finding check_repeats() {
    const Tensor& before = first();
    for (const model::LoadedPart& part : model_.parts())
      model_.unload_component(part.detection.component);
    const bool is_equal = at::equal(before, draw(options_.prompt, 1));
    return {"", is_equal, is_equal ? "" : "prompt and seed give another image the second time"};
  }

  Finding check_batch() {
    generate::Request request = request_of(options_.prompt, 1);
    request.seeds = {2, 1};
    request.batch_size = 2;
    std::vector<Tensor> drawn(2);
    engine_.run(request, [&](size_t i, int64_t, const Tensor& pixels) { add(drawn[i], pixels); });
    const double most = std::max(distance(drawn[0], second()), distance(drawn[1], first()));
    return {"", most * 127.5 <= 1.0, print(most * 127.5) + " of 255 away from images drawn alone"};
  }

  Finding check_differ() {
    const double by_seed = distance(first(), second());
    const double by_prompt = distance(first(), draw(options_.other_prompt, 1));
    return {"", by_seed > 0.01 && by_prompt > 0.01,
            print(by_seed) + " between two seeds, " + print(by_prompt) + " between two prompts"};
  }

  Finding check_reconstruction() {
    const at::NoGradGuard no_grad;
    first();
    for (const ComponentSpec& component : model_.family().components()) {
      if (component.role == Role::kVae && model_.find_part(component.name))
        model_.load_component(component.name);
    }
    DirectRunner runner;
    const model::Stages& stages = model_.stages();
    if (stages.target_stage() == nullptr) return {"", true, "nothing encodes images"};
    const Tensor latents =
        model::encode(model_.model(), stages.target_inputs(first()), runner, model_.device())
            .at("latents");
    const Tensor again = model::decode_whole(
        model_.model(), latents.unsqueeze(0).to(model_.decoder_dtype()), runner, at::kCPU);
    const double found = decibels(first(), again[0].to(at::kFloat));
    return {"", found >= kLeastDecibels, print(found) + " dB"};
  }

  Finding check_layout() {
    generate::Request request = request_of(options_.prompt, 2);
    const Tensor& input = first();
    request.input_pixels = input;
    request.sigmas = sampling::keep_last_steps(request.sigmas, kStrength);
    const double moved = distance(input, run(request));
    const double apart = distance(input, second());
    return {"", moved <= kLayoutShare * apart,
            print(moved) + " from its input, two seeds are " + print(apart) + " apart"};
  }

 private:
  generate::Request request_of(const std::string& prompt, uint64_t seed) const {
    Settings settings;
    settings.prompt = prompt;
    settings.height = options_.height;
    settings.width = options_.width;
    settings.num_inference_steps = options_.num_steps;
    generate::fill_target(settings, model_);
    return generate::read_request(settings, model_, seed);
  }
  static void add(Tensor& drawn, const Tensor& frames) {
    drawn = drawn.defined() ? at::cat({drawn, frames}, 1) : frames;
  }
  Tensor run(const generate::Request& request) {
    Tensor drawn;
    engine_.run(request, [&](size_t, int64_t, const Tensor& pixels) { add(drawn, pixels); });
    return drawn;
  }
  Tensor draw(const std::string& prompt, uint64_t seed) { return run(request_of(prompt, seed)); }

  model::LoadedModel& model_;
  const ImageOptions& options_;
  progress::Progress progress_;
  generate::Engine engine_;
  Tensor first_, second_;
};

}  // namespace

void check_images(model::LoadedModel& model, const ImageOptions& options,
                  const std::function<void(const Finding&)>& report) {
  Images images(model, options);
  const auto check = [&](const std::string& name, Finding (Images::*run)()) {
    Finding finding;
    try {
      finding = (images.*run)();
    } catch (const std::exception& error) {
      finding = {"", false, error.what()};
    }
    finding.check = name;
    report(finding);
  };
  check("images: prompt and seed give the same bits again", &Images::check_repeats);
  check("images: drawn together they are those drawn alone", &Images::check_batch);
  check("images: seeds and prompts make a difference", &Images::check_differ);
  check("images: the VAE gives back what it gets", &Images::check_reconstruction);
  check("images: image to image keeps the layout", &Images::check_layout);
}

}  // namespace atelier::conformance
