#include "memory/graph_runner.h"

#include "atelier/host/sequence_scope.h"
#include "atelier/host/stop.h"

#include "memory/matrices.h"
#include "memory/quantized_store.h"
#include "memory/residency.h"
#include "memory/toy_net.h"
#include "support/traced_graphs.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::Net;
using test::same_bits;
using test::Train;

using Counts = test::TracedRecorder::Counts;

// A network whose blocks are graphs, and the same one without.
struct Scene {
  const at::NoGradGuard no_grad;
  Counts counts;
  DirectRunner direct;
  GraphRunner runner{direct};
  Net net{Train::kAdapters, 0}, plain{Train::kAdapters, 0};
  std::vector<std::string> told;

  Scene() { begin(); }

  GraphRunner::Options options(std::function<void()> fails = [] {}) {
    return {.recorder = std::make_unique<test::TracedRecorder>(counts, std::move(fails)),
            .warn = [this](const std::string& what) { told.push_back(what); }};
  }
  void begin(std::function<void()> fails = [] {}) { runner.begin(options(std::move(fails))); }

  static Tensors inputs(int seed, const Segments& rows = Segments({7, 4})) {
    at::manual_seed(static_cast<uint64_t>(seed));
    const int64_t n = rows.total();
    return {at::randn({n, test::kWidth}), at::randn({rows.count(), test::kWidth}),
            at::randn({n, test::kWidth / test::kHeads / 2}),
            at::randn({n, test::kWidth / test::kHeads / 2}), rows.tensor()};
  }
  // All blocks one after another.
  static Tensors run(Net& net, BlockRunner& runner, Tensors in) {
    Tensors seen;
    for (const auto& block : net.blocks) {
      in[0] = runner.run(*block, in)[0];
      seen.push_back(in[0]);
    }
    return seen;
  }
  // Whether the outputs of all blocks have the bits that they have without graphs.
  bool is_right(const Tensors& in) {
    return same_bits(run(net, runner, in), run(plain, direct, in));
  }
};

int blocks_of(const Net& net) {
  return static_cast<int>(net.blocks.size());
}

}  // namespace

TEST_CASE("A block that runs again is recorded once, and then replayed to the same bits",
          "[graphs]") {
  Scene scene;
  const int blocks = blocks_of(scene.net);
  CHECK(scene.is_right(Scene::inputs(1)));
  CHECK(scene.counts.recorded == 0);
  for (int step = 2; step < 6; ++step) {
    CHECK(scene.is_right(Scene::inputs(step)));
    CHECK(scene.counts.recorded == blocks);
    CHECK(scene.counts.replayed == (step - 1) * blocks);
  }
  CHECK(scene.told.empty());
  scene.runner.end();
  CHECK(scene.counts.live == 0);
  CHECK(scene.is_right(Scene::inputs(6)));
  CHECK(scene.counts.recorded == blocks);
}

TEST_CASE("What a graph gave stays as it is when the graph is replayed", "[graphs]") {
  Scene scene;
  for (int step = 0; step < 2; ++step) scene.is_right(Scene::inputs(step));
  const Tensors first = Scene::run(scene.net, scene.runner, Scene::inputs(3));
  Tensors copies;
  for (const Tensor& t : first) copies.push_back(t.clone());
  Scene::run(scene.net, scene.runner, Scene::inputs(4));
  CHECK(same_bits(first, copies));
}

TEST_CASE("Inputs of another form have graphs of their own", "[graphs]") {
  Scene scene;
  const int blocks = blocks_of(scene.net);
  const auto run = [&](const Segments& rows) {
    for (int step = 0; step < 3; ++step) CHECK(scene.is_right(Scene::inputs(step, rows)));
  };
  run(Segments({7, 4}));
  run(Segments({4, 7}));  // of the same shape
  CHECK(scene.counts.recorded == 2 * blocks);
  run(Segments({7, 4}));
  CHECK(scene.counts.recorded == 2 * blocks);

  // Strides, and where memory begins.
  Tensors in = Scene::inputs(1);
  const auto turned = [](const Tensor& t) { return t.t().contiguous().t(); };
  const auto shifted = [](const Tensor& t) {
    Tensor whole = at::empty({t.numel() + 1}, t.options());
    return whole.narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
  };
  for (const auto& changed : {std::function<Tensor(const Tensor&)>(turned), {shifted}}) {
    const int before = scene.counts.recorded;
    for (int step = 0; step < 3; ++step) {
      in = Scene::inputs(step);
      in[1] = changed(in[1]);
      CHECK(scene.is_right(in));
    }
    CHECK(scene.counts.recorded == before + blocks);
  }
}

TEST_CASE("Graphs of inputs that were not met for long are let go", "[graphs]") {
  Scene scene;
  const int blocks = blocks_of(scene.net);
  for (int64_t length = 2; length < 22; ++length) {
    for (int step = 0; step < 3; ++step)
      CHECK(scene.is_right(Scene::inputs(step, Segments({length}))));
  }
  CHECK(scene.counts.recorded == 20 * blocks);
  CHECK(scene.counts.live == 16 * blocks);
}

TEST_CASE("A LoRA that comes, changes or goes is in the next run", "[graphs]") {
  Scene scene;
  const auto change = [&](const std::function<void(test::ToyBlock&)>& call) {
    for (Net* net : {&scene.net, &scene.plain}) call(*net->blocks[0]);
    const int before = scene.counts.recorded;
    for (int step = 0; step < 4; ++step) CHECK(scene.is_right(Scene::inputs(step)));
    return scene.counts.recorded - before;
  };
  CHECK(change([](test::ToyBlock&) {}) == blocks_of(scene.net));
  CHECK(change([](test::ToyBlock& block) { block.q.adapters[0].scale = 2; }) == 1);
  CHECK(change([](test::ToyBlock& block) { block.up.adapters.clear(); }) == 1);
  const Tensor a = at::randn({5, test::kWidth}), b = at::randn({test::kMlp, 5});
  CHECK(change([&](test::ToyBlock& block) { block.up.adapters.push_back({a, b, 1.0}); }) == 1);
  CHECK(change([&](test::ToyBlock& block) { block.up.adapters.push_back({a, b, 0.5}); }) == 1);
  // Others in the same place are what the graph reads.
  CHECK(change([&](test::ToyBlock&) { a.mul_(3); }) == 0);
}

TEST_CASE("A weight that is set anew is in the next run", "[graphs]") {
  Scene scene;
  for (int step = 0; step < 3; ++step) scene.is_right(Scene::inputs(step));
  const Tensor value = at::randn({test::kWidth, test::kWidth});
  for (Net* net : {&scene.net, &scene.plain}) net->blocks[1]->k.weight->set(value.clone());
  const int before = scene.counts.recorded;
  for (int step = 0; step < 3; ++step) CHECK(scene.is_right(Scene::inputs(step)));
  CHECK(scene.counts.recorded == before + 1);
}

TEST_CASE("Streamed blocks have a graph for each place that they come to", "[graphs]") {
  constexpr int kBlocks = 5;
  constexpr int64_t kResident = 1, kPrefetch = 1;
  for (const bool is_quantized : {false, true}) {
    const at::NoGradGuard no_grad;
    DirectRunner direct;
    Net net(Train::kAdapters, 0, kBlocks), plain(Train::kAdapters, 0, kBlocks);
    std::vector<Block*> blocks;
    for (Net* of : {&net, &plain}) {
      for (const auto& block : of->blocks) {
        if (is_quantized)
          block->up.weight->state().set_store(std::make_shared<QuantizedStore>(
              quantize(block->up.weight->draw(), QuantizedKind::kFp8), at::kFloat));
        if (of == &net) blocks.push_back(block.get());
      }
    }
    const auto transfer = make_simulated_device({.poison = true});
    Residency residency(blocks, spread_residents(kBlocks, kResident, Place::kHost, kPrefetch),
                        *transfer);
    Counts counts;
    StreamingRunner streaming(direct, {&residency});
    GraphRunner graphs(streaming);
    graphs.begin({.recorder = std::make_unique<test::TracedRecorder>(counts)});
    for (int step = 0; step < 12; ++step) {
      const Tensors in = Scene::inputs(step);
      CHECK(same_bits(Scene::run(net, graphs, in), Scene::run(plain, direct, in)));
    }
    const int places = static_cast<int>(kPrefetch) + 1;
    const int streamed = kBlocks - static_cast<int>(kResident);
    CHECK(counts.recorded > streamed);
    CHECK(counts.recorded <= streamed * places + static_cast<int>(kResident));
    CHECK(counts.replayed == 11 * kBlocks);
  }
}

TEST_CASE("What cannot be recorded runs as ever, which is told once", "[graphs]") {
  Scene scene;
  scene.begin([] { throw std::runtime_error("a copy from the host\nand more"); });
  for (int step = 0; step < 4; ++step) CHECK(scene.is_right(Scene::inputs(step)));
  CHECK(scene.counts.live == 0);
  CHECK(scene.told ==
        std::vector<std::string>{"warning: blocks run without CUDA graphs from now on: a copy from "
                                 "the host"});
}

TEST_CASE("Who stops while a block is recorded is heard, and graphs go on", "[graphs]") {
  Scene scene;
  bool stops = true;
  scene.begin([&] {
    if (stops) throw Error(ErrorCode::kCancelled, "stopped by the user");
  });
  CHECK(scene.is_right(Scene::inputs(1)));
  CHECK(test::error_of([&] { Scene::run(scene.net, scene.runner, Scene::inputs(2)); }).code() ==
        ErrorCode::kCancelled);
  stops = false;
  CHECK(scene.is_right(Scene::inputs(3)));
  CHECK(scene.counts.recorded == blocks_of(scene.net));
  CHECK(scene.told.empty());
}

TEST_CASE("A replay is an edge at which work ends", "[graphs]") {
  Scene scene;
  for (int step = 0; step < 2; ++step) scene.is_right(Scene::inputs(step));
  const ops::StopScope stops([] { throw Error(ErrorCode::kCancelled, "stopped by the user"); });
  const int before = scene.counts.replayed;
  CHECK(test::error_of([&] { Scene::run(scene.net, scene.runner, Scene::inputs(3)); }).code() ==
        ErrorCode::kCancelled);
  CHECK(scene.counts.replayed == before);
}

TEST_CASE("Large blocks, gradients, dropout and rows that ranks share have no graphs", "[graphs]") {
  struct Alone final : SequenceGroup {
    int64_t rank() const override { return 0; }
    int64_t size() const override { return 1; }
    Tensor exchange(const Tensor& parts) override { return parts; }
    Tensor gather(const Tensor& part) override { return part.unsqueeze(0); }
    std::function<Tensor()> pass_on(const Tensor& part) override {
      return [part] { return part; };
    }
  };
  Scene scene;
  SECTION("more rows") {
    GraphRunner::Options options = scene.options();
    options.most_rows = 10;
    scene.runner.begin(std::move(options));
    for (int step = 0; step < 3; ++step) CHECK(scene.is_right(Scene::inputs(step)));
    CHECK(scene.counts.recorded == 0);
    for (int step = 0; step < 3; ++step)
      CHECK(scene.is_right(Scene::inputs(step, Segments({6, 4}))));
    CHECK(scene.counts.recorded == blocks_of(scene.net));
  }
  SECTION("gradients") {
    const at::AutoGradMode enable(true);
    for (int step = 0; step < 3; ++step) CHECK(scene.is_right(Scene::inputs(step)));
    CHECK(scene.counts.recorded == 0);
  }
  SECTION("dropout") {
    for (Net* net : {&scene.net, &scene.plain}) net->blocks[0]->down.adapters[0].dropout = 0.5;
    for (int step = 0; step < 3; ++step) Scene::run(scene.net, scene.runner, Scene::inputs(step));
    CHECK(scene.counts.recorded == blocks_of(scene.net) - 1);
  }
  SECTION("shared rows") {
    Alone group;
    const SequenceScope shares(group);
    for (int step = 0; step < 3; ++step) CHECK(scene.is_right(Scene::inputs(step)));
    CHECK(scene.counts.recorded == 0);
  }
}

TEST_CASE("A block that reads what it was not given is found out by the traced recorder",
          "[graphs]") {
  struct Impure final : Block {
    double factor = 1;
    Impure() : Block(nullptr, "impure") {}
    std::string_view kind() const override { return "impure"; }
    Tensors forward(const Tensors& in) override { return {in[0] * factor}; }
  };
  Scene scene;
  Impure block;
  const Tensors in = {at::randn({3, 2})};
  for (int step = 0; step < 3; ++step) CHECK(same_bits(scene.runner.run(block, in), in));
  block.factor = 2;
  CHECK_THROWS_AS(scene.runner.run(block, in), std::logic_error);
}

TEST_CASE("Blocks are graphs where it is proven, unless the user says", "[graphs]") {
  CHECK(graph_rows(GraphChoice::kAuto, at::kCUDA) == 0);  // until something is
  set_proven_graph_rows(1024);
  CHECK(graph_rows(GraphChoice::kAuto, at::kCUDA) == 1024);
  CHECK(graph_rows(GraphChoice::kAuto, at::kCPU) == 0);
  CHECK(graph_rows(GraphChoice::kOff, at::kCUDA) == 0);
  CHECK(graph_rows(GraphChoice::kOn, at::kCUDA) == INT64_MAX);
  set_proven_graph_rows(0);
}

}  // namespace atelier::memory
