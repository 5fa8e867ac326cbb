#include "memory/link_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

namespace atelier::memory {

RankGroup nearest_ranks(const LinkProfile& links, int64_t size) {
  return {size, std::min(size, links.ranks_per_machine)};
}

RankGroup one_of_each_machine(int64_t machines) {
  return {machines, 1};
}

double exchange_seconds(const LinkProfile& links, const RankGroup& group, double bytes) {
  if (group.size <= 1) return 0.0;
  const auto size = static_cast<double>(group.size);
  const int64_t machines = (group.size + group.per_machine - 1) / group.per_machine;
  const double latency = static_cast<double>(group.size - machines) * links.local_latency_seconds +
                         static_cast<double>(machines - 1) * links.remote_latency_seconds;
  double rate = links.local_bytes_per_second;
  if (machines > 1) {
    const double part =
        static_cast<double>(group.per_machine) / static_cast<double>(links.ranks_per_machine);
    const double cards = links.remote_bytes_per_second * std::min(1.0, part);
    rate = group.per_machine > 1 ? std::min(rate, cards) : cards;
  }
  return latency + (size - 1) / size * bytes / rate;
}

// Published by NCCL 2.28, the constants with which it predicts its own rings (src/graph/tuning.cc
// and topo.h): hwLat of a ring in its Simple protocol is 3.4 us by NVLink, 5.7 us by PCIe and 14 us
// by network; SM90_NVLINK_BW is 20.6 GB/s of each of an H100's 18 links; PCIe 4.0 x16 has 24 GB/s.
// Network cards are those of NVIDIA's DGX H100, 8 of 400 Gb/s, and one of 100 Gb/s.
std::optional<LinkProfile> known_links(std::string_view name) {
  if (name == "infiniband") return LinkProfile{"infiniband", 8, 3.4e-6, 18 * 20.6e9, 14e-6, 400e9};
  if (name == "ethernet") return LinkProfile{"ethernet", 8, 5.7e-6, 24e9, 14e-6, 12.5e9};
  return std::nullopt;
}

LinkProfile parse_links(std::string_view json, const std::string& place) {
  const auto wrong = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, place + ": " + what,
                 "let it be written: atelier launch -- doctor --comm --json > " + place);
  };
  const nlohmann::json values = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object()) throw wrong("no JSON object");
  LinkProfile links{.name = "measured"};
  std::map<std::string, double> numbers = {{"ranks_per_machine", 0},
                                           {"local_latency_us", 0},
                                           {"local_gb_per_s", 0},
                                           {"remote_latency_us", 0},
                                           {"remote_gb_per_s", 0}};
  for (const auto& [key, value] : values.items()) {
    if (key == "collectives") continue;
    if (key == "name" && value.is_string()) {
      links.name = value.get<std::string>();
      continue;
    }
    const auto known = numbers.find(key);
    if (known == numbers.end()) throw wrong("\"" + key + "\" is not known");
    if (!value.is_number() || value.get<double>() <= 0)
      throw wrong("\"" + key + "\" is no number above 0");
    known->second = value.get<double>();
  }
  const bool has_remote =
      values.contains("remote_latency_us") || values.contains("remote_gb_per_s");
  for (const auto& [key, number] : numbers) {
    if (number == 0 && (has_remote || !key.starts_with("remote_")))
      throw wrong("\"" + key + "\" is missing");
  }
  if (numbers["ranks_per_machine"] > 1024) throw wrong("\"ranks_per_machine\" is above 1024");
  links.ranks_per_machine = static_cast<int64_t>(numbers["ranks_per_machine"]);
  if (links.ranks_per_machine < 1) throw wrong("\"ranks_per_machine\" is no whole number");
  links.local_latency_seconds = numbers["local_latency_us"] * 1e-6;
  links.local_bytes_per_second = numbers["local_gb_per_s"] * 1e9;
  links.remote_latency_seconds = numbers["remote_latency_us"] * 1e-6;
  links.remote_bytes_per_second = numbers["remote_gb_per_s"] * 1e9;
  return links;
}

}  // namespace atelier::memory
