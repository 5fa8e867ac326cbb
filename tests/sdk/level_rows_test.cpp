#include "atelier/nn/level_rows.h"

#include "atelier/nn/waves.h"

#include "support/models.h"
#include "support/tensors.h"

namespace atelier::nn {
namespace {

struct Modulated final : Block {
  Linear scale, shift;
  Modulated(Module* parent, std::string name)
      : Block(parent, std::move(name)), scale(this, "scale", 32, 16), shift(this, "shift", 32, 8) {}
  std::string_view kind() const override { return "modulated"; }
  Tensors forward(const Tensors& in) override { return in; }
};

// Two blocks that read time, the first one behind SiLU, and a layer behind them.
struct Net : Module {
  Linear in{this, "in", 8, 16}, out{this, "out", 16, 32}, end{this, "end", 32, 16},
      last{this, "last", 32, 24};
  Modulated first{this, "first"}, second{this, "second"};
  NoiseLevels levels;
  explicit Net(TimeActivation of_end, double factor = 1000.0)
      : Module(nullptr, ""),
        levels([factor](const at::Tensor& sigma_B) { return time_channels(sigma_B * factor, 8); },
               in, out, {&end, &last}, of_end) {
    levels.add(first, {&first.scale, &first.shift});
    levels.add(second, {&second.scale}, TimeActivation::kNone);
    at::manual_seed(6);
    visit_weights(
        [](const std::string&, Weight& weight) { weight.set(at::randn(weight.sizes())); });
  }
};

}  // namespace

TEST_CASE("Each reader of time has its activation, in a step and ahead of it", "[nn]") {
  for (const TimeActivation of_end : {TimeActivation::kSilu, TimeActivation::kNone}) {
    Net net(of_end);
    const std::vector<float> sigmas = {1.0F, 0.75F, 0.25F};
    const at::Tensor sigma_B = at::tensor({0.75F, 0.75F});
    const at::Tensor time =
        net.out.forward(at::silu(net.in.forward(time_channels(at::tensor(sigmas) * 1000.0, 8))))
            .slice(0, 1, 2);

    const at::NoGradGuard no_grad;
    const NoiseLevels::Step step = net.levels.step(sigma_B, at::kFloat, std::nullopt);
    const at::Tensor scale = of_levels(net.first.scale, step.of_block(0), 2),
                     plain = of_levels(net.second.scale, step.of_block(1), 2);
    CHECK(test::error(scale, net.first.scale.forward(at::silu(time)).expand({2, -1})) < 1e-6);
    CHECK(test::error(plain, net.second.scale.forward(time).expand({2, -1})) < 1e-6);
    const at::Tensor end = of_end == TimeActivation::kSilu ? at::silu(time) : time;
    CHECK(test::error(step.of_end(), net.end.forward(end).expand({2, -1})) < 1e-6);
    CHECK(test::error(step.of_end(1), net.last.forward(end).expand({2, -1})) < 1e-6);

    DirectRunner runner;
    net.levels.prepare(sigmas, runner);
    const NoiseLevels::Step ahead = net.levels.step(sigma_B, at::kFloat, 1);
    CHECK(at::equal(ahead.of_block(0).narrow(1, 0, 16), scale));
    CHECK(at::equal(ahead.of_block(0).narrow(1, 16, 8),
                    of_levels(net.first.shift, step.of_block(0), 2)));
    CHECK(at::equal(ahead.of_block(1), plain));
    CHECK(at::equal(ahead.of_end(), step.of_end()));
    CHECK(at::equal(ahead.of_end(1), step.of_end(1)));
    CHECK(test::error_of([&] { net.levels.step(sigma_B, at::kFloat, 3); }).code() ==
          ErrorCode::kInvalidArgument);
    CHECK(net.levels.weights().size() == 6);
  }
}

TEST_CASE("A row of a table is added to time, in a step and ahead of it", "[nn]") {
  Net net(TimeActivation::kSilu);
  Embedding table(&net, "added", 2, 32);
  table.weight->set(at::randn({2, 32}));
  const std::vector<float> sigmas = {0.5F};
  const at::Tensor sigma_B = at::tensor(sigmas);
  DirectRunner runner;
  const at::Tensor bare = net.levels.step(sigma_B, at::kFloat, std::nullopt).of_end();
  net.levels.add_row(table);
  const at::Tensor time =
      net.out.forward(at::silu(net.in.forward(time_channels(sigma_B * 1000.0, 8)))) +
      table.weight->draw().narrow(0, 0, 1);
  const at::NoGradGuard no_grad;
  const at::Tensor end = net.levels.step(sigma_B, at::kFloat, std::nullopt).of_end();
  CHECK(test::error(end, net.end.forward(at::silu(time))) < 1e-6);
  CHECK_FALSE(at::equal(end, bare));
  net.levels.prepare(sigmas, runner);
  CHECK(at::equal(net.levels.step(sigma_B, at::kFloat, 0).of_end(), end));
}

TEST_CASE("Time's channels may depend on what the model was made with", "[nn]") {
  Net thousand(TimeActivation::kSilu), one(TimeActivation::kSilu, 1.0);
  const at::Tensor sigma_B = at::tensor({0.5F});
  const auto end = [&](Net& net) {
    return net.levels.step(sigma_B, at::kFloat, std::nullopt).of_end();
  };
  CHECK(test::error(end(thousand), end(one)) > 1e-3);
}

}  // namespace atelier::nn
