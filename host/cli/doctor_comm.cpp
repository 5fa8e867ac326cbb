#include "host/cli/doctor_comm.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "host/cli/ranks.h"
#include "host/device/cuda.h"
#include "host/distributed/group.h"
#include "host/distributed/link_meter.h"

namespace atelier::cli {
namespace {

using distributed::Group;
using distributed::MeasuredExchange;
using distributed::MeasuredLinks;

void print_json(const MeasuredLinks& found) {
  const memory::LinkProfile& links = found.links;
  nlohmann::ordered_json out = {{"name", links.name},
                                {"ranks_per_machine", links.ranks_per_machine},
                                {"local_latency_us", links.local_latency_seconds * 1e6},
                                {"local_gb_per_s", links.local_bytes_per_second / 1e9}};
  if (links.remote_bytes_per_second > 0) {
    out["remote_latency_us"] = links.remote_latency_seconds * 1e6;
    out["remote_gb_per_s"] = links.remote_bytes_per_second / 1e9;
  }
  for (const MeasuredExchange& exchange : found.exchanges)
    out["collectives"].push_back({{"name", exchange.name},
                                  {"among", exchange.among},
                                  {"latency_us", exchange.latency_seconds * 1e6},
                                  {"gb_per_s", exchange.bytes_per_second / 1e9}});
  std::puts(out.dump(2).c_str());
}

void print_table(const MeasuredLinks& found, const std::string& device) {
  std::printf("%s, tensors on %s\n\n%-15s %-20s %13s %11s\n", found.links.name.c_str(),
              device.c_str(), "exchange", "among", "latency (us)", "rate (GB/s)");
  for (const MeasuredExchange& exchange : found.exchanges)
    std::printf("%-15s %-20s %13.1f %11.3f\n", exchange.name.c_str(), exchange.among.c_str(),
                exchange.latency_seconds * 1e6, exchange.bytes_per_second / 1e9);
  std::puts(
      "\nAn exchange of W ranks takes (W - 1) latencies and (W - 1) / W of its bytes at the rate, "
      "an all-reduce twice that.\natelier plan train --ranks N --network FILE reads what --json "
      "prints.");
}

}  // namespace

int doctor_comm(const std::string& backend, bool as_json) {
  const distributed::Ranks ranks = distributed::find_ranks(distributed::process_environment());
  if (ranks.is_alone())
    throw Error(ErrorCode::kInvalidArgument,
                "--comm measures what several processes exchange, and this one is alone",
                "atelier launch --nproc_per_node 2 -- doctor --comm");
  std::string name = device::open_cuda().device_count > 0 ? "cuda" : "cpu";
  choose_gpu(name, ranks);
  const distributed::GroupOptions options = {.gpu = gpu_of_nccl(name, backend)};
  const at::Device device = options.gpu ? device::choose(name) : at::Device(at::kCPU);
  return distributed::run_with_others(ranks, options, [&](Group& group) {
    compare_ranks(group, program_identity());
    const MeasuredLinks found = distributed::measure_links(group, device);
    group.part();
    if (!group.is_first()) return 0;
    as_json ? print_json(found) : print_table(found, device.str());
    return 0;
  });
}

}  // namespace atelier::cli
