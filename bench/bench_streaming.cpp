// Passes through streamed blocks beside resident ones, and beside the least time that is possible:
// the larger one of computing and copying. The device is a simulated device whose copies take as
// long as their bytes at a rate; the rate is chosen by how long the computing takes on this
// machine. Then training steps of two components that take turns beside those of one, on a clock
// that counts nothing but computing and copies.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "atelier/nn/layers.h"

#include "memory/residency.h"

namespace {

using namespace atelier;
using memory::Place;

constexpr int64_t kBlocks = 16, kWidth = 512, kRows = 192;

constexpr double bytes_of(int64_t width) {  // of a block
  return 2.0 * 4 * static_cast<double>(width * width) * 4;
}
constexpr double kBytes = bytes_of(kWidth);

// Two products. With a clock: the time that they take, and nothing else.
struct MlpBlock : Block {
  nn::Linear up, down;
  memory::VirtualClock* clock = nullptr;
  double seconds = 0.0;

  MlpBlock(nn::Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        up(this, "up", width, 4 * width, false),
        down(this, "down", 4 * width, width, false) {
    for (nn::Linear* layer : {&up, &down})
      layer->weight->set(at::randn(layer->weight->sizes()) /
                         std::sqrt(static_cast<double>(layer->in_features())));
  }
  std::string_view kind() const override { return "mlp"; }
  Tensors forward(const Tensors& in) override {
    if (clock != nullptr) {
      clock->advance(seconds);
      return in;
    }
    return {in[0] + down.forward(at::relu(up.forward(in[0])))};
  }
};

struct Mlps {
  nn::Module root{nullptr, ""};
  std::vector<std::unique_ptr<MlpBlock>> blocks;
  at::Tensor x;

  explicit Mlps(int64_t width = kWidth) {
    at::manual_seed(1);
    for (int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(std::make_unique<MlpBlock>(&root, "blocks." + std::to_string(i), width));
    x = at::randn({kRows, width});
  }
  std::vector<Block*> all() const {
    std::vector<Block*> result;
    for (const auto& block : blocks) result.push_back(block.get());
    return result;
  }
  void run(BlockRunner& runner) const {
    Tensors values = {x};
    for (const auto& block : blocks) values = runner.run(*block, values);
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Case {
  double copying;  // of all blocks, in units of the computing
  int64_t resident, prefetch;
  Place place;
};

// Seconds of a pass when computing takes what it should and nothing else happens.
double scheduled(const Case& of, double computing) {
  Mlps net;
  const auto clock = std::make_shared<memory::VirtualClock>();
  for (auto& block : net.blocks) {
    block->clock = clock.get();
    block->seconds = computing / kBlocks;
  }
  const double rate = kBytes * kBlocks / (of.copying * computing);
  const auto transfer = memory::make_simulated_device({.bytes_per_second = rate, .clock = clock});
  memory::Residency residency(
      net.all(), memory::spread_residents(kBlocks, of.resident, Place::kHost, of.prefetch),
      *transfer);
  DirectRunner direct;
  memory::StreamingRunner runner(direct, {&residency});
  for (int i = 0; i < 2; ++i) net.run(runner);
  constexpr int kPasses = 10;
  const double start = clock->now();
  for (int i = 0; i < kPasses; ++i) net.run(runner);
  return (clock->now() - start) / kPasses;
}

// A backward pass computes a block again and its gradients: with the forward pass four times its
// computing, which takes a second in a step of all blocks.
constexpr double kForward = 1.0 / (4 * kBlocks), kBackward = 3 * kForward;

enum class Experts { kOne, kTwo, kTwoUntold };

// Mean seconds of a step. `copying`: of all blocks, in units of a step's computing. Each step is of
// one of two components, as likely as the other, or always of the same.
double seconds_of_step(Experts experts, double copying, int64_t resident) {
  constexpr int kSteps = 100;
  constexpr int64_t kSmall = 16;  // no byte counts but in units of the rate
  const auto clock = std::make_shared<memory::VirtualClock>();
  const auto transfer = memory::make_simulated_device(
      {.bytes_per_second = bytes_of(kSmall) * kBlocks / copying, .clock = clock});
  const auto turns = std::make_shared<memory::ResidencyGroup>();
  const Mlps nets[2] = {Mlps(kSmall), Mlps(kSmall)};
  std::vector<std::unique_ptr<memory::Residency>> residencies;
  for (const Mlps& net : nets) {
    auto plan = memory::spread_residents(kBlocks, resident, Place::kHost, /*prefetch=*/2);
    if (experts != Experts::kOne) memory::take_turns(plan, turns, Place::kHost);
    residencies.push_back(std::make_unique<memory::Residency>(net.all(), plan, *transfer));
    for (const auto& block : net.blocks) block->clock = clock.get();
  }
  DirectRunner direct;
  memory::StreamingRunner runner(direct, {residencies[0].get(), residencies[1].get()});
  const auto run = [&](MlpBlock& block, double seconds) {
    block.seconds = seconds;
    runner.run(block, {});
  };
  std::mt19937 dice(1);
  const auto draw = [&] { return experts == Experts::kOne ? 0U : dice() % 2; };
  double start = 0.0;
  auto next = draw();
  for (int step = -4; step < kSteps; ++step) {  // the first ones learn the order
    if (step == 0) start = clock->now();
    const Mlps& net = nets[next];
    for (const auto& block : net.blocks) run(*block, kForward);
    next = draw();
    if (experts == Experts::kTwo) residencies[next]->expect();
    for (auto block = net.blocks.rbegin(); block != net.blocks.rend(); ++block)
      run(**block, kBackward);
  }
  return (clock->now() - start) / kSteps;
}

void print_turns() {
  std::printf(
      "\n| copying all, of a step's computing | resident | one | two | of one | two, not told "
      "ahead | of one |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const double copying : {0.1, 0.25, 0.5, 0.75, 1.0, 2.0}) {
    for (const int64_t resident : {int64_t{0}, kBlocks / 2, kBlocks - 1}) {
      const double one = seconds_of_step(Experts::kOne, copying, resident),
                   two = seconds_of_step(Experts::kTwo, copying, resident),
                   untold = seconds_of_step(Experts::kTwoUntold, copying, resident);
      std::printf("| %.2f | %ld of %ld | %.3f s | %.3f s | %.2f | %.3f s | %.2f |\n", copying,
                  static_cast<long>(resident), static_cast<long>(kBlocks), one, two, two / one,
                  untold, untold / one);
    }
  }
}

double seconds_of(const Mlps& net, BlockRunner& runner) {
  const double start = now();
  net.run(runner);
  return now() - start;
}

// Streamed and resident passes take turns: the machine may do other work.
void row(const Case& of, int passes) {
  Mlps net, plain;
  DirectRunner direct;
  double computing = 1e30;
  for (int i = 0; i < 4; ++i) computing = std::min(computing, seconds_of(plain, direct));
  const double rate = kBytes * kBlocks / (of.copying * computing);
  const double copying = kBytes * static_cast<double>(kBlocks - of.resident) / rate;
  const auto transfer = memory::make_simulated_device({.bytes_per_second = rate});
  memory::Residency residency(
      net.all(), memory::spread_residents(kBlocks, of.resident, of.place, of.prefetch), *transfer);
  memory::StreamingRunner runner(direct, {&residency});
  std::vector<double> resident, streamed, floors, ratios, waits;
  for (int i = -1; i < passes; ++i) {
    const double alone = seconds_of(plain, direct);
    net.run(runner);  // not counted: what arrived while the other one computed is a present
    const double waited = residency.stats().waited_seconds;
    const double both = seconds_of(net, runner);
    if (i < 0) continue;  // learns the order
    const double floor = std::max(alone, copying);
    resident.push_back(alone);
    streamed.push_back(both);
    floors.push_back(floor);
    ratios.push_back(both / floor);
    waits.push_back(residency.stats().waited_seconds - waited);
  }
  std::printf(
      "| %.1f | %ld of %ld | %ld | %s | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.2f | %.0f ms | "
      "%.2f |\n",
      of.copying, static_cast<long>(of.resident), static_cast<long>(kBlocks),
      static_cast<long>(of.prefetch), of.place == Place::kHost ? "host" : "disk",
      1e3 * median(resident), 1e3 * copying, 1e3 * median(floors), 1e3 * median(streamed),
      median(ratios), 1e3 * median(waits), scheduled(of, computing) / std::max(computing, copying));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 1 ? std::max(0, std::atoi(argv[1])) : 9;
  at::set_num_threads(1);  // the copies have a thread of their own
  const at::NoGradGuard no_grad;
  print_turns();
  if (passes == 0) return 0;
  std::printf("\n%ld blocks of %.1f MiB, %ld rows, median of %d passes\n\n",
              static_cast<long>(kBlocks), kBytes / (1 << 20), static_cast<long>(kRows), passes);
  std::printf(
      "| copying all, of computing | resident | prefetch | others | resident pass | copies | floor "
      "| "
      "streamed pass | of the floor | waited | scheduled, of the floor |\n"
      "| ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Place place : {Place::kHost, Place::kDisk}) {
    for (const double copying : {0.5, 1.0, 2.0}) {
      for (const int64_t resident : {int64_t{0}, kBlocks / 2}) {
        for (const int64_t prefetch : {1, 2}) {
          if (place == Place::kDisk && (prefetch == 1 || resident != 0)) continue;
          row({copying, resident, prefetch, place}, passes);
        }
      }
    }
  }
  return 0;
}
