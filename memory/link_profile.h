// How fast ranks exchange what they hold: what plans of several ranks are predicted with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace atelier::memory {

struct LinkProfile {
  std::string name;
  int64_t ranks_per_machine = 8;
  // From one rank to the next one: what the first byte waits for, and the rate of those behind it,
  // in one direction.
  double local_latency_seconds = 0.0, local_bytes_per_second = 0.0;
  // Rates from machine to machine, at the rate of all network cards of a machine together; a
  // rate of 0: not known, as of a profile that was measured on one machine.
  double remote_latency_seconds = 0.0, remote_bytes_per_second = 0.0;
};

// Ranks that exchange something. Machines are filled one after the other.
struct RankGroup {
  int64_t size = 1;
  // How many of the ranks of a machine are in this group; the others are in groups beside it,
  // which share the machine's cards.
  int64_t per_machine = 1;
};

// The first `size` ranks.
RankGroup nearest_ranks(const LinkProfile& links, int64_t size);
// As many ranks as there are machines: one of each.
RankGroup one_of_each_machine(int64_t machines);

// Seconds of an all-gather or reduce-scatter of `bytes`, all ranks' parts together: the parts go
// around a ring in size - 1 passes, each of which costs the latency. An all-reduce is one of each;
// an all-to-all of `bytes` on each rank is at most one.
double exchange_seconds(const LinkProfile& links, const RankGroup& group, double bytes);

// "infiniband" or "ethernet"; nullopt for another name.
std::optional<LinkProfile> known_links(std::string_view name);

// JSON as `atelier doctor --comm --json` writes it: {"name": "node7", "ranks_per_machine": 8,
// "local_latency_us": 3.4, "local_gb_per_s": 370, "remote_latency_us": 14, "remote_gb_per_s": 400,
// "collectives": […]}. The last one is not read, and those of `remote` may be absent together.
// Throws Error{kInvalidArgument} with `place` in front.
LinkProfile parse_links(std::string_view json, const std::string& place);

}  // namespace atelier::memory
