#include "atelier/host/sample_scope.h"

#include "atelier/host/sequence_scope.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/level_rows.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/linears.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;

constexpr int64_t kIn = 24, kOut = 40;

// A layer with three numbered adapters, and four samples: one has one of them, one has two, one has
// none, one has the first one with another strength.
struct Scene {
  at::ScalarType dtype;
  const at::NoGradGuard no_grad;
  WeightPtr weight, bias;
  std::vector<Adapter> adapters;
  SampleStrengths strengths = {{0.5, 0, 0}, {0, -1.5, 2}, {0, 0, 0}, {1.25, 0, 0}};

  explicit Scene(at::ScalarType of, uint64_t seed = 1) : dtype(of) {
    at::manual_seed(seed);
    weight = test::make_weight(at::randn({kOut, kIn}).to(of));
    bias = test::make_weight(at::randn({kOut}).to(of));
    for (int64_t i = 0; i < 3; ++i) {
      adapters.push_back({.a = at::randn({2 + i, kIn}).to(of),
                          .b = at::randn({kOut, 2 + i}).to(of),
                          .scale = 0.3 + 0.1 * static_cast<double>(i),
                          .number = i});
    }
  }
  std::vector<Adapter> adapters_of(size_t sample) const {
    std::vector<Adapter> own = adapters;
    for (size_t i = 0; i < own.size(); ++i) {
      own[i].scale *= strengths[sample][i];
      own[i].number = -1;
    }
    return own;
  }
  Tensor alone(const Tensor& x, size_t sample) const {
    return linear(x, weight, bias, adapters_of(sample));
  }
  Tensor together(const Tensor& x) const { return linear(x, weight, bias, adapters); }
  // The whole layer is rounded as its products are.
  double tolerance() const { return dtype == at::kBFloat16 ? 0.02 : 1e-6; }
};

Tensor rows(int64_t count, at::ScalarType dtype) {
  return at::randn({count, kIn}).to(dtype);
}

}  // namespace

TEST_CASE("Rows of each sample have its adapters, however they are packed", "[ops][samples]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Scene scene(dtype);
    const SampleScope scope(scene.strengths);
    const Segments packed({3, 0, 4, 5}), others({2, 1, 6, 1}), joined = join(packed, others);
    for (const Segments& segments : {packed, others, joined}) {
      const Tensor x = rows(segments.total(), dtype), got = scene.together(x);
      for (int64_t s = 0; s < 4; ++s) {
        const auto of = [&](const Tensor& t) {
          return t.narrow(0, segments.offset(s), segments.length(s));
        };
        CHECK(error(of(got), scene.alone(of(x), static_cast<size_t>(s))) < scene.tolerance());
      }
      CHECK(got.is_contiguous());
      const Tensor heads = at::randn({segments.total(), 3, kIn}).to(dtype);
      CHECK(error(scene.together(heads).select(1, 2), scene.together(heads.select(1, 2))) <
            scene.tolerance());
    }
    // A row, rows of one length, and several axes of them for each sample.
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{4, kIn}, {4, 6, kIn}, {4, 2, 3, kIn}, {1, 4, 6, kIn}}) {
      const Tensor x = at::randn(sizes).to(dtype), got = scene.together(x);
      const int64_t axis = sizes[0] == 1 ? 1 : 0;
      for (int64_t s = 0; s < 4; ++s)
        CHECK(error(got.select(axis, s), scene.alone(x.select(axis, s), static_cast<size_t>(s))) <
              scene.tolerance());
    }
    CHECK_FALSE(scope.is_unresolved());
  }
}

TEST_CASE("A sample without adapters has the bits of the layer alone beside others",
          "[ops][samples]") {
  const Scene scene(at::kFloat);
  const Tensor x = at::randn({4, 9, kIn});
  const Tensor plain = linear(x, scene.weight, scene.bias);
  CHECK(at::equal(scene.together(x), plain));  // no scope: in nobody's rows
  const SampleScope scope(scene.strengths);
  const Tensor got = scene.together(x);
  CHECK(at::equal(got[2], plain[2]));
  CHECK(error(got[0], plain[0]) > 0.01);
}

TEST_CASE("Layers of one input have the adapters of each sample, and those of all beside them",
          "[ops][samples]") {
  const Scene first(at::kFloat, 1), second(at::kFloat, 2);
  const Adapter of_all = {.a = at::randn({3, kIn}), .b = at::randn({kOut, 3}), .scale = 0.2};
  std::vector<Adapter> both = first.adapters;
  both.push_back(of_all);
  const LinearTerms terms[] = {{first.weight, first.bias, both},
                               {second.weight, nullptr, second.adapters},
                               {second.weight, second.bias, {}}};
  const SampleScope scope(first.strengths);
  const Segments packed({2, 5, 1, 3});
  const Tensor x = rows(packed.total(), at::kFloat);
  const std::vector<Tensor> got = linears(x, terms);
  REQUIRE(got.size() == 3);
  for (int64_t s = 0; s < 4; ++s) {
    const auto of = [&](const Tensor& t) {
      return t.narrow(0, packed.offset(s), packed.length(s));
    };
    std::vector<Adapter> own = first.adapters_of(static_cast<size_t>(s));
    own.push_back(of_all);
    const std::vector<Adapter> of_second = second.adapters_of(static_cast<size_t>(s));
    CHECK(error(of(got[0]), linear(of(x), first.weight, first.bias, own)) < 1e-6);
    CHECK(error(of(got[1]), linear(of(x), second.weight, nullptr, of_second)) < 1e-6);
    CHECK(error(of(got[2]), linear(of(x), second.weight, second.bias)) < 1e-6);
  }
}

TEST_CASE("Neighbours with adapters of the same ranks have their own products and strengths",
          "[ops][samples]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Scene first(dtype, 1), second(dtype, 2);
    for (Scene* scene : {&first, &second}) {
      for (Adapter& adapter : scene->adapters) {
        adapter.a = at::randn({4, kIn}).to(dtype), adapter.b = at::randn({kOut, 4}).to(dtype);
        adapter.scale = 0.5;
      }
      scene->strengths = {{1, 0, 0}, {0, 1, 0}, {0, 0, -2}, {0.5, 0, 1}, {1, 1, 0}, {0, 1, 1}};
    }
    const LinearTerms terms[] = {{first.weight, first.bias, first.adapters},
                                 {second.weight, second.bias, second.adapters}};
    const SampleScope scope(first.strengths);
    // All as long; one of another length between the others; a row of each.
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{5, 5, 5, 5, 5, 5}, {5, 5, 2, 5, 5, 5}, {1, 1, 1, 1, 1, 1}}) {
      const Segments packed(lengths);
      const Tensor x = rows(packed.total(), dtype);
      const std::vector<Tensor> got = linears(x, terms);
      for (int64_t s = 0; s < 6; ++s) {
        const auto of = [&](const Tensor& t) {
          return t.narrow(0, packed.offset(s), packed.length(s));
        };
        const auto sample = static_cast<size_t>(s);
        CHECK(error(of(got[0]), first.alone(of(x), sample)) < first.tolerance());
        CHECK(error(of(got[1]), second.alone(of(x), sample)) < second.tolerance());
      }
    }
  }
}

TEST_CASE("A strong LoRA beside a weak one stays within float16", "[ops][samples]") {
  Scene scene(at::kHalf);
  scene.strengths = {{0.001, 0, 0}, {0, 1, 0}};
  for (Adapter& adapter : scene.adapters) {
    adapter.a = at::full({2, kIn}, 20.0).to(at::kHalf);
    adapter.b = at::full({kOut, 2}, 0.01).to(at::kHalf);
    adapter.scale = 1;
  }
  const SampleScope scope(scene.strengths);
  const Tensor x = at::ones({2, 3, kIn}, at::kHalf), got = scene.together(x);
  CHECK(got.isfinite().all().item<bool>());
  for (int64_t s = 0; s < 2; ++s)
    CHECK(error(got[s], scene.alone(x[s], static_cast<size_t>(s))) < 0.005);
}

TEST_CASE("Rows that may be of other samples are refused, and nothing else is", "[ops][samples]") {
  const Scene scene(at::kFloat);
  const auto is_refused = [&](const std::vector<Segments>& made, const Tensor& x,
                              const SampleStrengths& strengths) {
    const SampleScope scope(strengths);
    for (const Segments& segments : made) Segments::from_tensor(segments.tensor());
    try {
      scene.together(x);
    } catch (const Error& failure) {
      CHECK(failure.code() == ErrorCode::kInternal);
      CHECK(scope.is_unresolved());
      return true;
    }
    CHECK_FALSE(scope.is_unresolved());
    return false;
  };
  const Segments packed({3, 0, 4, 5}), others({4, 4, 2, 2}), of_eight({3, 0, 4, 5, 0, 0, 0, 0}),
      of_four({2, 0, 1, 1});
  const Tensor x = rows(12, at::kFloat);
  CHECK(is_refused({}, x, scene.strengths));
  CHECK(is_refused({of_eight}, x, scene.strengths));
  CHECK(is_refused({packed, others}, x, scene.strengths));
  CHECK_FALSE(is_refused({packed, of_eight}, x, scene.strengths));
  CHECK(is_refused({of_four}, rows(4, at::kFloat), scene.strengths));
  CHECK_FALSE(is_refused({packed}, rows(4, at::kFloat), scene.strengths));
  // Where it makes no difference which rows they are.
  CHECK_FALSE(is_refused({}, x, {{0.5, 0, 1}, {0.5, 0, 1}}));
  CHECK_FALSE(is_refused({}, x, {{0.5, 0, 1}}));
  CHECK_FALSE(is_refused({}, x, {{0, 0, 0}, {0}}));
}

TEST_CASE("Ranks that share rows refuse samples with adapters of their own", "[ops][samples]") {
  const Scene scene(at::kFloat);
  struct Alone final : SequenceGroup {
    int64_t rank() const override { return 0; }
    int64_t size() const override { return 1; }
    Tensor exchange(const Tensor& parts) override { return parts; }
    Tensor gather(const Tensor& part) override { return part.unsqueeze(0); }
    std::function<Tensor()> pass_on(const Tensor& part) override {
      return [part] { return part; };
    }
  } group;
  const SequenceScope shares(group);
  const SampleScope scope(scene.strengths);
  CHECK(test::error_of([&] {
          scene.together(at::randn({4, kIn}));
        }).code() == ErrorCode::kInternal);
  CHECK(scope.is_unresolved());
}

TEST_CASE("A part of the samples counts from its first one, and knows its own segments",
          "[ops][samples]") {
  const Scene scene(at::kFloat);
  const SampleScope scope(scene.strengths);
  const Segments before({6, 1, 1, 1});
  {
    const SampleScope::Part part(1, 2);
    const Segments packed({4, 5});
    const Tensor x = rows(9, at::kFloat), got = scene.together(x);
    CHECK(error(got.narrow(0, 0, 4), scene.alone(x.narrow(0, 0, 4), 1)) < 1e-6);
    CHECK(error(got.narrow(0, 4, 5), scene.alone(x.narrow(0, 4, 5), 2)) < 1e-6);
  }
  const Tensor x = rows(9, at::kFloat), got = scene.together(x);
  CHECK(error(got.narrow(0, 0, 6), scene.alone(x.narrow(0, 0, 6), 0)) < 1e-6);
}

TEST_CASE("Adapters of single samples have no gradients and no dropout", "[ops][samples]") {
  Scene scene(at::kFloat);
  const SampleScope scope(scene.strengths);
  scene.adapters[1].dropout = 0.5;
  CHECK(test::error_of([&] {
          scene.together(at::randn({4, kIn}));
        }).code() == ErrorCode::kInternal);
  scene.adapters[1].dropout = 0;
  const at::AutoGradMode grad(true);
  const Tensor x = at::randn({4, kIn}).requires_grad_();
  CHECK(test::error_of([&] { scene.together(x); }).code() == ErrorCode::kInternal);
}

namespace {

struct Modulated final : Block {
  nn::Linear scale;
  Modulated(Module* parent, std::string name)
      : Block(parent, std::move(name)), scale(this, "scale", kOut, 16) {}
  std::string_view kind() const override { return "modulated"; }
  Tensors forward(const Tensors& in) override { return in; }
};

struct Levelled : nn::Module {
  nn::Linear in{this, "in", kIn, kOut}, out{this, "out", kOut, kOut}, end{this, "end", kOut, 8};
  Modulated block{this, "block"};
  nn::NoiseLevels levels{
      [](const Tensor& sigma_B) { return nn::time_channels(sigma_B, kIn); }, in, out, {&end}};
  Levelled() : Module(nullptr, "") {
    levels.add(block, {&block.scale});
    at::manual_seed(6);
    visit_weights(
        [](const std::string&, Weight& weight) { weight.set(at::randn(weight.sizes()) * 0.3); });
  }
  // Modulation and end of samples with these levels.
  std::pair<Tensor, Tensor> made(const std::vector<float>& sigmas,
                                 const std::vector<std::optional<int64_t>>& prepared) {
    const auto step = levels.step(at::tensor(sigmas), at::kFloat, prepared);
    const Tensor of_block = step.of_block(0);
    const Tensor scale = of_block.size(-1) == 16
                             ? of_block
                             : nn::of_levels(block.scale, of_block, std::ssize(sigmas));
    return {scale, step.of_end()};
  }
};

}  // namespace

TEST_CASE("Noise levels that are prepared stay, and those that samples change are computed",
          "[ops][samples]") {
  const at::NoGradGuard no_grad;
  Levelled net;
  DirectRunner runner;
  const std::vector<float> sigmas = {0.9F, 0.4F};
  std::vector<float> of_samples;
  std::vector<std::optional<int64_t>> prepared;
  SampleStrengths strengths;
  for (int64_t s = 0; s < 11; ++s) {  // more than a group of them
    prepared.push_back(s % 2);
    of_samples.push_back(sigmas[static_cast<size_t>(s % 2)]);
    strengths.push_back({s % 3 == 0 ? 0.0 : 0.25 * static_cast<double>(s)});
  }
  const auto plain = net.made(of_samples, std::vector<std::optional<int64_t>>(11));
  net.levels.prepare(sigmas, runner);
  {  // of other rows than the samples'
    const SampleScope scope(strengths);
    const SampleScope::Part part(0, 5);
    net.end.adapters = {{.a = at::randn({2, kOut}), .b = at::randn({8, 2}), .number = 0}};
    CHECK(test::error_of([&] { net.made(of_samples, prepared); }).code() == ErrorCode::kInternal);
    net.levels.prepare(sigmas, runner);  // whichever samples there are
    net.end.adapters.clear();
  }
  CHECK(at::equal(net.made(of_samples, prepared).second, plain.second));
  for (nn::Linear* layer : {&net.in, &net.out, &net.end, &net.block.scale}) {
    INFO(layer->path());
    layer->adapters = {{.a = at::randn({2, layer->in_features()}),
                        .b = at::randn({layer->out_features(), 2}) * 0.2,
                        .number = 0}};
    const auto outside = net.made(of_samples, prepared);
    CHECK(at::equal(outside.first, plain.first));
    CHECK(at::equal(outside.second, plain.second));
    const auto both = [&] {
      const SampleScope scope(strengths);
      return net.made(of_samples, prepared);
    }();
    layer->adapters[0].number = -1;
    for (size_t s = 0; s < strengths.size(); ++s) {
      layer->adapters[0].scale = strengths[s][0];
      const auto alone = net.made({of_samples[s]}, {std::nullopt});
      const auto at = static_cast<int64_t>(s);
      CHECK(error(both.first.narrow(0, at, 1), alone.first) < 1e-5);
      CHECK(error(both.second.narrow(0, at, 1), alone.second) < 1e-5);
    }
    layer->adapters.clear();
  }
}

}  // namespace atelier::ops
