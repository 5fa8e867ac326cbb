// A family's denoiser with its blocks as graphs; built for each family.
#include <array>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "atelier/nn/layers.h"

#include "memory/graph_runner.h"
#include "support/opened_family.h"
#include "support/tensors.h"
#include "support/traced_graphs.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::opened_family;

constexpr std::array<float, 5> kLevels = {0.9f, 0.7f, 0.5f, 0.3f, 0.1f};

// The tiny denoiser on its way through the levels, with a prompt and another one of another length.
struct GraphedDenoiser {
  const at::NoGradGuard no_grad;
  std::unique_ptr<Model> model;
  std::string name;
  DirectRunner direct;
  std::vector<Conditioning> prompts;

  GraphedDenoiser() {
    at::manual_seed(3);
    for (const ComponentSpec& spec : opened_family().components()) {
      if (spec.role == Role::kDenoiser) name = spec.name;
    }
    std::vector<Detection> parts = opened_family().tiny_parts();
    std::erase_if(parts, [&](const Detection& part) { return part.component != name; });
    model = opened_family().make_model(parts, {});
    model->component(name).visit_weights([](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()) / std::sqrt(double(weight.sizes().back())));
    });
    for (const int64_t tokens : {5, 3})
      prompts.push_back(opened_family().example_conditioning(parts[0], tokens, at::kFloat));
    model->prepare_levels(name, kLevels, direct);
  }

  Tensor step(BlockRunner& runner, size_t level, std::vector<const Conditioning*> cond) const {
    const LatentSpec spec = model->latent_spec();
    const int64_t token = spec.pixel_multiple / spec.spatial_stride, n = std::ssize(cond);
    at::manual_seed(level);
    const Tensor x = at::randn({n, spec.channels, 1, 2 * token, 3 * token});
    return model->denoise({.x_BCTHW = x,
                           .sigma_B = at::full({n}, kLevels[level]),
                           .cond = cond,
                           .level = level,
                           .denoiser = name},
                          runner);
  }
};

}  // namespace

TEST_CASE("A denoiser whose blocks are graphs gives the same bits at each level", "[graphs]") {
  GraphedDenoiser denoiser;
  test::TracedRecorder::Counts counts;
  GraphRunner runner(denoiser.direct);
  runner.begin({.recorder = std::make_unique<test::TracedRecorder>(counts),
                .warn = [](const std::string& what) { FAIL(what); }});
  const auto blocks = static_cast<int>(denoiser.model->blocks(denoiser.name).size());
  const Conditioning *with = &denoiser.prompts[0], *without = &denoiser.prompts[1];
  const auto all_levels = [&] {
    for (size_t level = 0; level < kLevels.size(); ++level) {
      for (const auto& cond : {std::vector{with, without}, {with}, {without}})
        CHECK(at::equal(denoiser.step(runner, level, cond),
                        denoiser.step(denoiser.direct, level, cond)));
    }
  };
  all_levels();
  // Graphs of both together, and of each: for blocks that see no text, or texts of one length, that
  // is one.
  const int graphs = counts.recorded;
  CHECK(graphs >= 2 * blocks);
  CHECK(graphs <= 3 * blocks);
  CHECK(counts.replayed == 3 * static_cast<int>(kLevels.size()) * blocks - graphs);

  denoiser.model->blocks(denoiser.name).back()->visit([](nn::Module& module) {
    if (auto* linear = dynamic_cast<nn::Linear*>(&module))
      linear->adapters.push_back(
          {at::randn({2, linear->in_features()}), at::randn({linear->out_features(), 2}), 0.5});
  });
  all_levels();
  CHECK(counts.recorded > graphs);
  CHECK(counts.recorded <= graphs + 3);
  CHECK(counts.live == graphs);
}

}  // namespace atelier::memory
