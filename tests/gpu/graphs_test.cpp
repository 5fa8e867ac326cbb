// Blocks as graphs of a device, beside the same blocks without.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/upload.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "gpu/device.h"
#include "memory/graph_runner.h"
#include "memory/quantized_store.h"
#include "memory/residency.h"
#include "support/traced_graphs.h"

namespace atelier {
namespace {

using at::Tensor;
using memory::GraphRunner;

constexpr int kBlocks = 4;
constexpr int64_t kHeads = 2;

test::TracedRecorder::Counts traced;  // on the CPU

std::unique_ptr<ops::GraphRecorder> make_recorder() {
  if (test::device().is_cpu()) return std::make_unique<test::TracedRecorder>(traced);
  return ops::make_graph_recorder(test::device());
}

// Attention and an MLP behind modulated norms. Inputs: rows [N, D], shift and scale [S, D],
// offsets.
struct SmallBlock final : Block {
  nn::Linear q, k, v, up, down;
  SmallBlock(nn::Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        q(this, "q", width, width),
        k(this, "k", width, width),
        v(this, "v", width, width),
        up(this, "up", width, 4 * width),
        down(this, "down", 4 * width, width) {}
  std::string_view kind() const override { return "small"; }
  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[3]);
    const auto heads = [&](const nn::Linear& layer, const Tensor& x) {
      const Tensor y = layer.forward(x);
      return y.view({y.size(0), kHeads, y.size(1) / kHeads});
    };
    const Tensor x = ops::norm_modulate(in[0], in[1], in[2], rows);
    const Tensor sum = in[0] + ops::attention(heads(q, x), heads(k, x), heads(v, x), rows);
    return {sum +
            down.forward(ops::gelu_tanh(up.forward(ops::norm_modulate(sum, in[1], in[2], rows))))};
  }
};

struct Blocks {
  nn::Module root{nullptr, ""};
  std::vector<std::unique_ptr<SmallBlock>> blocks;
  std::vector<Block*> all;
  int64_t width = test::has_model_shapes() ? 1024 : 64;
  DirectRunner direct;

  explicit Blocks(at::Device where, bool is_stored = false, bool is_w8a8 = false) {
    at::manual_seed(5);
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<SmallBlock>(&root, "blocks." + std::to_string(i), width));
      all.push_back(blocks.back().get());
      blocks.back()->visit_weights([&](const std::string&, Weight& weight) {
        const Tensor value = (test::noise(weight.sizes()) / 30).to(at::kBFloat16).to(where);
        if (is_stored && value.dim() == 2) {
          weight.state().set_store(std::make_shared<memory::QuantizedStore>(
              memory::quantize(value, memory::QuantizedKind::kFp8), at::kBFloat16, is_w8a8));
        } else {
          weight.set(value);
        }
      });
    }
  }

  Tensors inputs(int seed, const Segments& rows = Segments({40, 24})) const {
    at::manual_seed(static_cast<uint64_t>(seed));
    const auto noise = [&](int64_t count) {
      return test::noise({count, width}).to(test::device(), at::kBFloat16);
    };
    return {noise(rows.total()), noise(rows.count()), noise(rows.count()), rows.tensor()};
  }
  Tensor run(BlockRunner& runner, Tensors in) {
    for (Block* block : all) in[0] = runner.run(*block, in)[0];
    return in[0];
  }
};

GraphRunner::Options options() {
  return {.recorder = make_recorder(), .warn = [](const std::string& what) { FAIL(what); }};
}

}  // namespace

TEST_CASE("Graphs give the bits of their blocks, with LoRAs that come and change",
          "[gpu][graphs]") {
  const at::NoGradGuard no_grad;
  for (const bool is_stored : {false, true}) {
    Blocks blocks(test::device(), is_stored);
    GraphRunner graphs(blocks.direct);
    graphs.begin(options());
    const auto steps = [&](const Segments& rows) {
      for (int step = 0; step < 5; ++step) {
        const Tensors in = blocks.inputs(step, rows);
        CHECK(at::equal(blocks.run(graphs, in), blocks.run(blocks.direct, in)));
      }
    };
    steps(Segments({40, 24}));
    steps(Segments({24, 40}));
    steps(Segments({32, 32}));
    CHECK(graphs.stats().recorded == 3 * kBlocks);
    CHECK(graphs.stats().replayed == 3 * 4 * kBlocks);
    auto& adapters = blocks.blocks[1]->up.adapters;
    const auto factor = [&](int64_t rows, int64_t columns) {
      return test::noise({rows, columns}).to(test::device(), at::kBFloat16);
    };
    adapters.push_back({factor(8, blocks.width), factor(4 * blocks.width, 8), 0.5});
    steps(Segments({40, 24}));
    adapters[0].scale = 1.5;
    steps(Segments({40, 24}));
    adapters.clear();
    steps(Segments({40, 24}));
    CHECK(graphs.stats().recorded == 3 * kBlocks + 3);
    graphs.end();
    steps(Segments({40, 24}));
  }
}

TEST_CASE("Graphs of blocks that come and go read what has come", "[gpu][graphs]") {
  const at::NoGradGuard no_grad;
  for (const int64_t resident : {0, kBlocks / 2}) {
    Blocks plain(test::device()), away(at::kCPU);
    for (int i = 0; i < kBlocks; ++i) {  // residents are there already
      if (memory::spread_residents(kBlocks, resident, memory::Place::kHost).blocks[i] !=
          memory::Place::kDevice)
        continue;
      away.blocks[i]->visit_weights(
          [](const std::string&, Weight& weight) { weight.set(weight.draw().to(test::device())); });
    }
    const auto transfer = memory::make_transfer_device(test::device());
    memory::Residency residency(
        away.all, memory::spread_residents(kBlocks, resident, memory::Place::kHost, 1), *transfer);
    memory::StreamingRunner streaming(away.direct, {&residency});
    GraphRunner graphs(streaming);
    graphs.begin(options());
    for (int step = 0; step < 12; ++step) {
      const Tensors in = plain.inputs(step);
      CHECK(at::equal(away.run(graphs, in), plain.run(plain.direct, in)));
    }
    CHECK(graphs.stats().replayed == 11 * kBlocks);
  }
}

TEST_CASE("A block that waits for the device is not recorded, and the device goes on",
          "[gpu][graphs]") {
  struct Waiting final : Block {
    Waiting() : Block(nullptr, "waiting") {}
    std::string_view kind() const override { return "waiting"; }
    Tensors forward(const Tensors& in) override { return {in[0] * in[0].max().item<float>()}; }
  };
  if (test::device().is_cpu()) return;  // nobody waits there
  const at::NoGradGuard no_grad;
  Blocks blocks(test::device());
  GraphRunner graphs(blocks.direct);
  std::vector<std::string> told;
  GraphRunner::Options wanted = options();
  wanted.warn = [&](const std::string& what) { told.push_back(what); };
  graphs.begin(std::move(wanted));
  Waiting waiting;
  for (int step = 0; step < 3; ++step) {
    const Tensors in = blocks.inputs(step);
    CHECK(at::equal(graphs.run(waiting, in)[0], blocks.direct.run(waiting, in)[0]));
  }
  CHECK(told.size() == 1);
  // Neither the generator nor memory of the host is recorded any more.
  at::manual_seed(7);
  const auto on_device = at::TensorOptions().device(test::device());
  const Tensor drawn = at::randn({64}, on_device);
  at::manual_seed(7);
  CHECK(at::equal(at::randn({64}, on_device), drawn));
  CHECK_FALSE(at::equal(at::randn({64}, on_device), drawn));
  const Tensor pinned = at::arange(1000).pin_memory();
  CHECK(at::equal(pinned.to(test::device()).cpu(), at::arange(1000)));
  graphs.begin(options());
  for (int step = 0; step < 4; ++step) {
    const Tensors in = blocks.inputs(step);
    CHECK(at::equal(blocks.run(graphs, in), blocks.run(blocks.direct, in)));
  }
  CHECK(graphs.stats().recorded == kBlocks);
}

TEST_CASE("A recorder whose graphs are all gone records again", "[gpu][graphs]") {
  const at::NoGradGuard no_grad;
  Blocks blocks(test::device());
  const auto recorder = make_recorder();
  for (int round = 0; round < 3; ++round) {
    const Tensors in = blocks.inputs(round);
    const Tensor expected = blocks.run(blocks.direct, in);
    const ops::RecordedUploads uploads;
    const auto graph = recorder->record([&] { return Tensors{blocks.run(blocks.direct, in)}; });
    CHECK(at::equal(graph->replay()[0], expected));
  }
}

TEST_CASE("The memory of graphs goes back with them", "[gpu][graphs]") {
  if (test::device().is_cpu()) return;  // nobody reserves there
  const at::NoGradGuard no_grad;
  const bool is_w8a8 = GENERATE(false, true);  // products share codes of rows
  Blocks blocks(test::device(), is_w8a8, is_w8a8);
  GraphRunner graphs(blocks.direct);
  const auto reserved = [] {
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::accelerator::getDeviceStats(test::device().index()).reserved_bytes[all].current;
  };
  int64_t before = 0;
  for (int round = 0; round < 4; ++round) {
    graphs.begin(options());
    for (int step = 0; step < 3; ++step) blocks.run(graphs, blocks.inputs(step));
    CHECK(graphs.stats().recorded == kBlocks);
    graphs.end();
    if (round > 1) CHECK(reserved() == before);
    before = reserved();
  }
}

}  // namespace atelier
