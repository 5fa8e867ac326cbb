// Two ranks of a run, each on a device of its own that is as asynchronous as a GPU. Each case is
// run by itself in two processes, which trainer_test.py starts.
#include <ATen/ATen.h>

#include "host/distributed/group.h"
#include "host/distributed/sequence.h"
#include "run_workshop.h"
#include "support/queued_device.h"
#include "support/tensors.h"

namespace atelier::train {
namespace {

using distributed::Group;
using test::queued_device;
using test::QueuedDevices;
using test::RunWorkshop;

const std::vector<std::string> kNone = {};

// Trains on the device of the rank's number, beside a rank 0 that does so alone on the CPU.
void check_ranks(const std::function<void(RunWorkshop& shop)>& choose, int sequence_ranks = 1) {
  const auto group = Group::meet(distributed::find_ranks(distributed::process_environment()),
                                 {.exchange = std::chrono::seconds(30)});
  REQUIRE(group->size() == 2);
  RunWorkshop shop;
  choose(shop);
  NamedTensors want;
  if (group->is_first()) {
    REQUIRE(shop.train("alone") == 0);
    want = shop.newest("alone").load("trained.safetensors");
  }
  const auto rank = static_cast<int>(group->rank());
  shop.device = c10::str("queued:", rank);
  std::shared_ptr<SequenceGroup> sequence;
  if (sequence_ranks > 1) {
    sequence = distributed::make_sequence(*group, sequence_ranks);
    shop.config.sequence_parallel = sequence_ranks;
  }
  std::set<int> others;
  for (int device = 0; device < test::kQueuedDevices; ++device) {
    if (device != rank) others.insert(device);
  }
  const QueuedDevices devices({.seed = 5, .closed = others});
  CHECK(shop.train("run", {}, group.get(), sequence.get()) == 0);
  CHECK(devices.faults() == kNone);
  CHECK(devices.opened() == std::set{rank});
  group->part();
  if (!group->is_first()) return;
  for (const auto& [name, value] : shop.newest("run").load("trained.safetensors"))
    CHECK(test::error(value, want.at(name)) < 1e-3);
}

}  // namespace

TEST_CASE("Each rank uses its own device, from any thread", "[ranks]") {
  check_ranks([](RunWorkshop&) {});
}

TEST_CASE("Ranks that share out gradients use their own device", "[stage2]") {
  check_ranks([](RunWorkshop& shop) {
    shop.config.shards.stage = 2;
    // Averages are read while values arrive, the own ones over equal ones: queues call that a race.
    shop.config.ema_decay = 0;
  });
}

TEST_CASE("Ranks that optimize on the host use their own device", "[host]") {
  check_ranks([](RunWorkshop& shop) { shop.config.offload.optimizer = true; });
}

TEST_CASE("Ranks that compute a batch together use their own device", "[sequence]") {
  check_ranks([](RunWorkshop&) {}, 2);
}

}  // namespace atelier::train
