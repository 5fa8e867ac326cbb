// What a family's model holds in a dry run, beside what it holds in a real one; built for each
// family.
#include "atelier/host/dry_run.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "memory/live_bytes.h"
#include "memory/meta_bytes.h"
#include "support/catch.h"
#include "support/device_calls.h"
#include "support/models.h"
#include "support/opened_family.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::opened_family;

// The tiny model with weights on `device`: zeros, or nothing.
struct TinyModel {
  std::vector<Detection> parts = opened_family().tiny_parts();
  std::unique_ptr<Model> model = opened_family().make_model(parts, {});
  at::TensorOptions options;
  Tensor x, sigma, pixels;
  std::vector<Conditioning> prompts;

  explicit TinyModel(at::Device device) : options(at::TensorOptions(device).dtype(at::kFloat)) {
    for (const Detection& part : parts) {
      model->component(part.component).visit_weights([&](const std::string&, Weight& weight) {
        weight.set(at::ones(weight.sizes(), options));
      });
    }
    const LatentSpec spec = model->latent_spec();
    const int64_t token = spec.pixel_multiple / spec.spatial_stride;
    x = at::zeros({2, spec.channels, 1, 12 * token, 16 * token}, options);
    sigma = at::full({2}, 0.5, options);
    pixels = at::zeros({3, 1, 8 * spec.pixel_multiple, 8 * spec.pixel_multiple}, options);
    const Detection& denoiser =
        *std::find_if(parts.begin(), parts.end(),
                      [](const Detection& part) { return role_of(part) == Role::kDenoiser; });
    for (int64_t tokens : {9, 6}) {
      Conditioning prompt = opened_family().example_conditioning(denoiser, tokens, at::kFloat);
      for (auto& [name, t] : prompt) t = t.to(device);
      prompts.push_back(std::move(prompt));
    }
  }

  static std::optional<Role> role_of(const Detection& part) {
    for (const ComponentSpec& spec : opened_family().components()) {
      if (spec.name == part.component) return spec.role;
    }
    return std::nullopt;
  }

  Tensor denoise() {
    const std::array<const Conditioning*, 2> cond = {&prompts[0], &prompts[1]};
    DirectRunner runner;
    return model->denoise({.x_BCTHW = x, .sigma_B = sigma, .cond = cond}, runner);
  }
  Tensor encode() {
    DirectRunner runner;
    const auto inputs = opened_family().inputs();
    const auto target = std::find_if(inputs.begin(), inputs.end(), [](const InputSpec& input) {
      return input.role == InputRole::kTarget;
    });
    return model
        ->encode({.stage = "latents", .values = {{std::string(target->name), pixels}}}, runner)
        .at("latents");
  }
  Tensor decode() {
    DirectRunner runner;
    return test::decode(*model, x.narrow(0, 0, 1), runner);
  }
};

struct Held {
  std::vector<int64_t> sizes;
  int64_t peak = 0;
};

// The second of two calls: the first one makes what is kept between calls.
template <typename Counter>
Held measure(const std::function<Tensor()>& call) {
  const at::NoGradGuard no_grad;
  call();
  const auto counter = [] {
    if constexpr (std::is_same_v<Counter, LiveBytes>) {
      return std::make_unique<LiveBytes>(at::kCPU);
    } else {
      return std::make_unique<MetaBytes>();
    }
  }();
  const Tensor result = call();
  return {result.sizes().vec(), counter->peak()};
}

TEST_CASE("A dry run of a family holds what a real one holds", "[dry_run]") {
  TinyModel real(at::kCPU), dry(at::kMeta);
  const ops::DryRun scope(at::kCPU);
  const auto compare = [&](Tensor (TinyModel::*call)()) {
    const Held held = measure<LiveBytes>([&] { return (real.*call)(); });
    const Held predicted = measure<MetaBytes>([&] { return (dry.*call)(); });
    CHECK(predicted.sizes == held.sizes);
    CHECK(static_cast<double>(predicted.peak) ==
          Approx(static_cast<double>(held.peak)).epsilon(0.05));
  };
  SECTION("denoising") {
    compare(&TinyModel::denoise);
  }
  SECTION("encoding images") {
    compare(&TinyModel::encode);
  }
  SECTION("decoding") {
    compare(&TinyModel::decode);
  }
}

TEST_CASE("A family runs without values as if on a GPU", "[dry_run]") {
  const at::NoGradGuard no_grad;
  TinyModel dry(at::kMeta);
  const ops::DryRun scope(at::kCUDA);
  const MetaBytes bytes;
  CHECK(dry.denoise().sizes() == dry.x.sizes());
  CHECK(dry.encode().size(-1) > 0);
  CHECK(dry.decode().size(-1) > 0);
  CHECK(scope.product_flops() > 0);
  CHECK(scope.attention_flops() > 0);
  CHECK(bytes.peak() > 0);
}

TEST_CASE("A denoising step neither copies from the host nor waits for the device", "[dry_run]") {
  const at::NoGradGuard no_grad;
  TinyModel dry(at::kMeta);
  const ops::DryRun scope(at::kCUDA);
  const test::DeviceCalls calls;
  dry.denoise();
  dry.denoise();
  CHECK(calls.copies() == 0);
  CHECK(calls.waits() == 0);
}

}  // namespace
}  // namespace atelier::memory
