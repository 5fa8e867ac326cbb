// Training steps on devices that are as asynchronous as a GPU.
#include <algorithm>
#include <functional>
#include <set>

#include <ATen/ATen.h>

#include "host/optim/ema.h"
#include "run_workshop.h"
#include "support/queued_device.h"
#include "support/tensors.h"
#include "ways_to_train.h"

namespace atelier::train {
namespace {

using test::QueuedDevices;
using test::RunWorkshop;
using test::StepBench;
using test::toy_step;
using test::TrainToy;
using test::Wait;
using test::Way;

const std::vector<std::string> kNone = {};
constexpr int64_t kSteps = 4;

// What steps may wait for once those that measure are over.
std::set<Wait> waits_of(const Way& way) {
  if (way.optimizes_on_host) return {Wait::kEvent, Wait::kCopy};
  return way.moves_activations ? std::set{Wait::kEvent} : std::set<Wait>();
}

struct Trained {
  NamedTensors values;
  std::string waits;  // that a step ought not to have
};

// What some steps on `device` make of the toy model.
Trained train(const Way& way, const std::string& device, const QueuedDevices* devices = nullptr) {
  TrainToy toy;
  way.choose(toy);
  toy.open(device, "float32", devices != nullptr ? way.placement : model::Placement());
  StepBench bench(toy);
  Trained result;
  for (int64_t i = 0; i < kSteps; ++i) {
    const StepData data = toy_step(3, 2, 100 + 10 * static_cast<int>(i));
    const size_t before = devices != nullptr ? devices->waits().size() : 0;
    const StepResult step = bench.step.run(data, i);
    if (devices != nullptr) {
      const auto waits = devices->waits();
      for (size_t k = before; k < waits.size(); ++k) {
        if (i >= way.learns && !waits_of(way).contains(waits[k].kind))
          result.waits += c10::str("step ", i, ": ", waits[k].what, '\n');
      }
    }
    CHECK(std::isfinite(step.loss.item<float>()));
  }
  for (const auto& [name, value] : bench.values()) result.values.emplace(name, value.cpu());
  return result;
}

// Kernels sum up in different orders, and the optimizer divides by what is small.
bool is_near(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  return std::ranges::all_of(a, [&](const auto& entry) {
    const auto found = b.find(entry.first);
    return found != b.end() && test::error(entry.second, found->second) < 1e-3;
  });
}

}  // namespace

TEST_CASE("A step on a device waits for nothing until its loss is read", "[queued]") {
  for (const Way& way : test::ways_to_train()) {
    NamedTensors want;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(way.name, seed);
      const QueuedDevices devices({.seed = seed, .closed = {0}});
      const Trained trained = train(way, "queued:1", &devices);
      CHECK(trained.waits.empty());
      CHECK(devices.faults() == kNone);
      CHECK(devices.opened() == std::set{1});
      if (want.empty()) {
        want = trained.values;
        CHECK(is_near(want, train(way, "cpu").values));
      }
      CHECK(test::same(trained.values, want));
    }
  }
}

TEST_CASE("A run on the second device uses no other, from any thread", "[queued]") {
  NamedTensors want;
  for (const bool is_on_host : {false, true}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      CAPTURE(is_on_host, seed);
      RunWorkshop shop;
      shop.config.offload.optimizer = is_on_host;
      if (want.empty()) {
        REQUIRE(shop.train("cpu") == 0);
        want = shop.state_of("cpu");
      }
      const QueuedDevices devices({.seed = seed, .closed = {0, 2}});
      shop.device = "queued:1";
      REQUIRE(shop.train("run") == 0);
      CHECK(devices.faults() == kNone);
      CHECK(devices.opened() == std::set{1});
      CHECK(is_near(shop.state_of("run"), want));
    }
  }
}

TEST_CASE("Averages of values on a device rest on the host, and so do those of none", "[queued]") {
  const QueuedDevices devices({.closed = {0}});
  const auto transfer = memory::make_transfer_device(test::queued_device(1));
  std::vector<optim::Group> groups(1);
  for (const int64_t count : {3, 0})  // the second one lies on other ranks
    groups[0].parameters.push_back(
        {.name = std::to_string(count),
         .leaf = at::ones({count}, at::TensorOptions(test::queued_device(1)))});
  optim::Ema ema(groups, 0.5, transfer.get(), {});
  groups[0].parameters[0].leaf.mul_(3);
  ema.read();
  ema.release();
  groups[0].parameters[0].leaf.zero_();
  ema.update("");
  // The first average moves by nine tenths.
  CHECK(test::error(ema.state().at("3"), at::full({3}, 2.8)) < 1e-6);
  CHECK(devices.faults() == kNone);
}

}  // namespace atelier::train
