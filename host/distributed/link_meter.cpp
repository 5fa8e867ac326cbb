#include "host/distributed/link_meter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unistd.h>

#include <ATen/ATen.h>

#include "host/distributed/meeting.h"
#include "memory/clock.h"

namespace atelier::distributed {
namespace {

using at::Tensor;

constexpr int kSamples = 9;
constexpr int64_t kSmall = 16;  // numbers of each rank's part

// The ranks of each machine.
std::vector<std::vector<int>> machines_of(Group& group) {
  std::map<std::string, size_t> places;
  std::vector<std::vector<int>> machines;
  const std::vector<std::string> hosts = group.gather_texts(host_name());
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto [place, is_new] =
        places.try_emplace(hosts[static_cast<size_t>(rank)], machines.size());
    if (is_new) machines.emplace_back();
    machines[place->second].push_back(rank);
  }
  return machines;
}

// Seconds of the median round; all ranks begin each together.
double median_seconds(Group& group, const Tensor& result, const std::function<Ticket()>& begin) {
  const Tensor meeting = at::zeros({1}, result.options());
  std::vector<double> seconds;
  for (int round = 0; round <= kSamples; ++round) {
    group.all_reduce(meeting).wait();
    (void)meeting.item();
    const double start = memory::seconds_now();
    begin().wait();
    (void)result.view(-1)[0].item();  // a GPU is waited for
    if (round > 0) seconds.push_back(memory::seconds_now() - start);
  }
  std::ranges::nth_element(seconds, seconds.begin() + kSamples / 2);
  return seconds[kSamples / 2];
}

// One kind of exchange, of parts of `count` numbers.
struct Kind {
  const char* name;
  double passes;  // around the ring
  double (*seconds)(Group& group, const at::TensorOptions& options, int64_t count);
};

constexpr Kind kKinds[] = {
    {"all-reduce", 2,
     [](Group& group, const at::TensorOptions& options, int64_t count) {
       const Tensor whole = at::zeros({group.size() * count}, options);
       return median_seconds(group, whole, [&] { return group.all_reduce(whole); });
     }},
    {"all-gather", 1,
     [](Group& group, const at::TensorOptions& options, int64_t count) {
       const Tensor whole = at::zeros({group.size() * count}, options);
       const Tensor part = at::zeros({count}, options);
       return median_seconds(group, whole, [&] { return group.all_gather(whole, part); });
     }},
    {"reduce-scatter", 1,
     [](Group& group, const at::TensorOptions& options, int64_t count) {
       const Tensor whole = at::zeros({group.size() * count}, options);
       const Tensor part = at::zeros({count}, options);
       return median_seconds(group, part, [&] { return group.reduce_scatter(part, whole); });
     }},
    {"all-to-all", 1,
     [](Group& group, const at::TensorOptions& options, int64_t count) {
       const Tensor in = at::zeros({group.size() * count}, options), out = at::zeros_like(in);
       return median_seconds(group, out, [&] { return group.all_to_all(out, in); });
     }},
};

// Small exchanges tell the latency, and what large ones take longer the rate.
std::vector<MeasuredExchange> measure(Group& group, at::Device device, const std::string& among) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  const int64_t large =
      (device.is_cpu() ? int64_t{8} << 20 : int64_t{256} << 20) / 4 / group.size();
  const double others = group.size() - 1;
  std::vector<MeasuredExchange> measured;
  for (const Kind& kind : kKinds) {
    const double few = kind.seconds(group, options, kSmall);
    const double many = kind.seconds(group, options, large);
    const double bytes = kind.passes * others * 4.0 * static_cast<double>(large - kSmall);
    measured.push_back(
        {kind.name, among, few / (kind.passes * others), bytes / std::max(many - few, 1e-9)});
  }
  return measured;
}

double slowest_latency(const std::vector<MeasuredExchange>& exchanges) {
  return std::ranges::max(exchanges, {}, &MeasuredExchange::latency_seconds).latency_seconds;
}
double slowest_rate(const std::vector<MeasuredExchange>& exchanges) {
  return std::ranges::min(exchanges, {}, &MeasuredExchange::bytes_per_second).bytes_per_second;
}

}  // namespace

MeasuredLinks measure_links(Group& group, at::Device device) {
  const std::vector<std::vector<int>> machines = machines_of(group);
  const size_t per_machine = std::ranges::max(machines, {}, &std::vector<int>::size).size();
  MeasuredLinks found;
  memory::LinkProfile& links = found.links;
  links.name = std::to_string(group.size()) + " ranks on " + std::to_string(machines.size()) +
               (machines.size() == 1 ? " machine" : " machines");
  links.ranks_per_machine = static_cast<int64_t>(per_machine);
  const std::vector<MeasuredExchange> all = measure(group, device, "all ranks");
  if (machines.size() == 1) {
    links.local_latency_seconds = slowest_latency(all);
    links.local_bytes_per_second = slowest_rate(all);
  } else {
    const double passes = group.size() - 1;
    const auto crossings = static_cast<double>(machines.size() - 1);
    double local_passes = 0.0;
    links.local_latency_seconds = links.remote_latency_seconds = slowest_latency(all);
    links.local_bytes_per_second = links.remote_bytes_per_second = slowest_rate(all);
    const bool has_local = std::ranges::all_of(
        machines, [](const std::vector<int>& ranks) { return ranks.size() > 1; });
    if (has_local) {
      const std::shared_ptr<Group> local = group.among(machines, "one machine");
      found.exchanges = measure(*local, device, "ranks of a machine");
      links.local_latency_seconds = slowest_latency(found.exchanges);
      links.local_bytes_per_second = slowest_rate(found.exchanges);
      local_passes = passes - crossings;
    }
    // Passes around the ring of all ranks are of both kinds.
    links.remote_latency_seconds = std::max(
        links.local_latency_seconds,
        (passes * slowest_latency(all) - local_passes * links.local_latency_seconds) / crossings);
  }
  found.exchanges.insert(found.exchanges.end(), all.begin(), all.end());
  return found;
}

}  // namespace atelier::distributed
