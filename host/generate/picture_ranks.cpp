#include "host/generate/picture_ranks.h"

#include <string>
#include <vector>

#include "host/distributed/sequence.h"
#include "host/generate/request.h"
#include "host/order/generation.h"

namespace atelier::generate {

PictureRanks form_teams(distributed::Group& world, const order::Processes& processes) {
  PictureRanks ranks;
  const int size = processes.per_picture();
  ranks.team = world.rank() / size;
  ranks.teams = world.size() / size;
  if (size == 1) return ranks;
  std::vector<std::vector<int>> teams, pairs;
  for (int first = 0; first < world.size(); first += size) {
    std::vector<int>& team = teams.emplace_back();
    for (int i = 0; i < size; ++i) team.push_back(first + i);
    // Each half is a sequence.
    for (int i = 0; i < size / 2; ++i) pairs.push_back({first + i, first + size / 2 + i});
  }
  ranks.all = world.among(teams, "pictures");
  if (processes.cfg_parallel) ranks.guidance = world.among(pairs, "guidance");
  ranks.sequence = distributed::make_sequence(world, processes.sequence);
  return ranks;
}

namespace {

// Checks processes that share no picture.
void check_processes(const distributed::Ranks& ranks, bool has_jobs, bool from_stdin,
                     report::Problems& problems) {
  if (ranks.is_alone() || has_jobs) return;
  const std::string several = std::to_string(ranks.size) + " processes";
  if (from_stdin)
    problems.add("--prompts_file -: stdin has one reader, and there are " + several,
                 "write the jobs to a file, or start one process");
  else
    problems.add(several + " would make the same picture, and write it to the same file",
                 "give several jobs with --prompts_file, share the picture out with --cfg_parallel "
                 "or --sequence_parallel, or start one process");
}

}  // namespace

void check_ranks(const order::Processes& processes, const distributed::Ranks& ranks, bool has_jobs,
                 bool from_stdin, report::Problems& problems) {
  const int size = processes.per_picture();
  if (size == 1) return check_processes(ranks, has_jobs, from_stdin, problems);
  const std::string flag = processes.sequence == 1 ? "--cfg_parallel" : "--sequence_parallel";
  const std::string start = "atelier launch --nproc_per_node ";
  if (from_stdin) {
    problems.add("--prompts_file -: stdin has one reader, and with " + flag +
                     " several processes make each picture",
                 "write the jobs to a file");
  }
  if (ranks.size % size != 0) {
    problems.add(flag + ": " + std::to_string(size) + " processes make a picture, and there " +
                     (ranks.is_alone() ? "is one" : "are " + std::to_string(ranks.size)),
                 "start a multiple of " + std::to_string(size) + ": " + start +
                     std::to_string(size) + " -- generate …");
  } else if (!has_jobs && ranks.size > size) {
    problems.add(flag + ": " + std::to_string(size) + " of " + std::to_string(ranks.size) +
                     " processes make the picture, the others have nothing to do",
                 start + std::to_string(size) + " …, or give several jobs with --prompts_file");
  }
}

void check_shares(const order::Processes& processes, const order::Settings& settings,
                  const ModelFamily& family, std::string_view variant, const order::Origin& place,
                  report::Problems& problems) {
  if (!processes.cfg_parallel) return;
  CfgScales scales;
  try {
    scales = cfg_scales_of(settings, family, variant);
  } catch (const Error&) {
    return;  // the schedule's name is wrong, which is told elsewhere
  }
  if (scales.is_guided()) return;
  problems.add(c10::str(place.of("cfg_scale"), ": ", scales.off,
                        " turns guidance off, whose halves --cfg_parallel deals out"),
               "leave --cfg_parallel out, or ask for guidance");
}

}  // namespace atelier::generate
