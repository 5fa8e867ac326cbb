// One number in, a plan out: how a run fits into the memory of a device, and how long it takes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory/device_profile.h"
#include "memory/residency.h"

namespace atelier::memory {

// A component whose weights rest in one kind of storage. Bytes.
struct StoredComponent {
  std::string storage = "plain";
  std::vector<int64_t> blocks = {};  // of each block's weights, in running order
  // Parts of these that are drawn once, before passes run: where some blocks are streamed, these of
  // all blocks rest elsewhere and do not come with their block. Empty: none.
  std::vector<int64_t> once = {};
  // Parts of these that are kept on the device while their block rests elsewhere, beside its slot.
  // Empty: none.
  std::vector<int64_t> kept = {};
  // Seconds in which the parts of each of these come from all ranks, where blocks are divided.
  // Empty: as long as a copy takes.
  std::vector<double> gathers = {};
  int64_t outside = 0;  // of blocks: always on the device
};

struct PlannedComponent {
  std::string name;
  // How its weights may be stored; of equally fast choices the first is taken.
  std::vector<StoredComponent> storages = {};
  bool may_stream = false;
  // Where blocks of several such components are streamed, those of one are on the device at a time,
  // and all blocks rest elsewhere, see ResidencyGroup.
  bool takes_turns = false;
  // Among how many processes each block is divided, see ResidencyPlan. Where it is more than one,
  // all blocks come, and parts of them rest on the device or on the host.
  int shards = 1;
  // How many processes of a machine have what rests on the host together; each counts its share.
  int host_sharers = 1;
  // What the user said; the planner chooses the rest.
  std::optional<int64_t> resident = std::nullopt;  // blocks
  std::optional<Place> others = std::nullopt;      // kHost or kDisk
};

// One way to do the work of a phase. Times are of one pass.
struct Strategy {
  std::string name = {};     // "batch of 2"; empty where there is one way only
  std::string why = {};      // in the plan's table
  int64_t device_bytes = 0;  // most that is held beside weights
  int64_t host_bytes = 0;
  double seconds = 0.0;           // outside of blocks
  double repeats = 1.0;           // how often the blocks run in one pass
  bool needs_all_blocks = false;  // nothing streams: a plain backward pass needs the weights
  // Seconds of each block of a component that runs in this phase.
  std::map<std::string, std::vector<double>> forward = {};
  // Seconds in the backward pass, with recomputation; empty: there is no backward pass.
  std::map<std::string, std::vector<double>> backward = {};
  // Seconds in which what the backward pass of each block leaves is sent to other ranks, behind
  // that block and in front of parts of blocks that could not come earlier; absent: nothing is.
  std::map<std::string, std::vector<double>> sends = {};
  // Repeats that send: the last ones. They end when everything has been sent.
  double sending_repeats = 0.0;
  // Seconds in which what each block needs in its first forward pass comes from other ranks, one
  // block behind the other from the beginning of the first of `repeats` on; absent: it is there.
  std::map<std::string, std::vector<double>> awaits = {};
  // The part of all passes that a component runs in, drawn anew for each; absent: it runs in all.
  std::map<std::string, double> shares = {};
};

// A part of a run. Components that are named in it are on the device, or stream to it.
struct PlannedPhase {
  std::string name;  // "encode"
  std::vector<std::string> components = {};
  std::vector<Strategy> strategies = {};  // at least one; of equally fast ones the first
  double passes = 1.0;
};

struct PlannedRun {
  std::vector<PlannedComponent> components;
  std::vector<PlannedPhase> phases;
  // The prefetch of every component, see ResidencyPlan; nullopt: the planner chooses one.
  std::optional<int64_t> prefetch = std::nullopt;
};

struct PlanLimits {
  int64_t device_bytes = INT64_MAX;
  int64_t host_bytes = INT64_MAX;
};

struct ComponentChoice {
  std::string name, storage;
  int64_t num_blocks = 0, resident = 0;
  Place others = Place::kHost;  // kDevice only of parts
  int shards = 1;               // see PlannedComponent
  int64_t prefetch = 2;
  int64_t device_bytes = 0;  // with slots of streamed blocks
  int64_t host_bytes = 0;
};

struct PhaseChoice {
  std::string name;
  size_t strategy = 0;
  int64_t device_bytes = 0, host_bytes = 0;  // at most, with everything that is there
  double passes = 1.0;
  double seconds = 0.0;            // of one pass
  double waited_seconds = 0.0;     // of these, for copies
  double exchanged_seconds = 0.0;  // and for other ranks: what the pass would be shorter without
};

struct MemoryPlan {
  std::vector<ComponentChoice> components;
  std::vector<PhaseChoice> phases;
  int64_t device_bytes = 0;  // at most, with the profile's reserve
  int64_t host_bytes = 0;
  double seconds = 0.0;   // of the run
  int64_t num_tried = 0;  // combinations that were looked at to find it

  const ComponentChoice& component(std::string_view name) const;
  const PhaseChoice* phase(std::string_view name) const;  // null: there is none
};

// The fastest plan within the limits; of equally fast ones that which leaves more blocks where they
// are, then the smaller one. nullopt: none fits. A larger limit never gives a slower plan.
std::optional<MemoryPlan> plan_memory(const PlannedRun& run, const PlanLimits& limits,
                                      const DeviceProfile& profile);

// The fastest of the plans that take the fewest bytes of the device, whatever the device has.
std::optional<MemoryPlan> smallest_plan(const PlannedRun& run, int64_t host_bytes,
                                        const DeviceProfile& profile);

// One point of what time costs in memory: the fastest plan of each of `count` limits, the largest
// with which the plan still changes. Limits that nothing fits into are left out.
struct CurvePoint {
  int64_t limit_bytes = 0;
  MemoryPlan plan;
};
std::vector<CurvePoint> plan_curve(const PlannedRun& run, int64_t host_bytes,
                                   const DeviceProfile& profile, int64_t count = 24);

}  // namespace atelier::memory
