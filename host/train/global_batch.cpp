#include "host/train/global_batch.h"

#include <algorithm>
#include <string>

#include "host/parameters/exchange_plan.h"

namespace atelier::train {

using order::Training;

void share_batch(Training& config, int processes, report::Problems& problems) {
  int64_t& batches = config.order.gradient_accumulation_steps;
  const int64_t batch_size = config.order.batch_size;
  if (batch_size < 1) return;  // which is told with its flag
  int64_t samples = config.global_batch_size;
  if (samples == 0) samples = batch_size * batches * (config.resume.empty() ? processes : 1);
  if (samples % batch_size != 0)
    problems.add("--global_batch_size: " + std::to_string(samples) +
                     " samples are not made up of batches of " + std::to_string(batch_size),
                 "use a multiple of --batch_size");
  batches = std::max<int64_t>(samples / batch_size, 1);
  if (processes == 1) return;
  config.global_batch_size = static_cast<int>(samples);
  config.rewrite_toml("global_batch_size", std::to_string(samples));
}

std::vector<std::string> fit_resumed(Training& config, const distributed::Ranks& ranks) {
  std::vector<std::string> notes;
  const auto falls_back = [&](const std::string& flag, const std::string& was,
                              const std::string& now) {
    notes.push_back("--" + flag + " " + was + " of the resumed run does not divide " +
                    std::to_string(ranks.size) + " processes: --" + flag + " " + now + " is used");
  };
  std::string& group = config.shards.group;
  if (config.inherited.contains("zero_group") && !parameters::makes_whole_groups(config, ranks)) {
    falls_back("zero_group", group, "all");
    group = "all";
    config.rewrite_toml("zero_group", "\"all\"");
  }
  int& sequence = config.sequence_parallel;
  if (config.inherited.contains("sequence_parallel") && ranks.size % sequence != 0) {
    falls_back("sequence_parallel", std::to_string(sequence), "1");
    sequence = 1;
    config.rewrite_toml("sequence_parallel", "1");
  }
  return notes;
}

std::vector<std::string> fit_to_ranks(Training& config, report::Problems& problems) {
  const distributed::Ranks& ranks = config.ranks;
  std::vector<std::string> notes = fit_resumed(config, ranks);
  const int sequence = config.sequence_parallel;
  if (ranks.size % sequence != 0)
    problems.add("--sequence_parallel: " + std::to_string(sequence) +
                     " processes compute a batch, and there are " + std::to_string(ranks.size),
                 "start a multiple of " + std::to_string(sequence));
  share_batch(config, std::max(1, ranks.size / sequence), problems);
  parameters::check_shards(config, ranks, problems);
  config.model.placement.denoiser_shards = parameters::block_ranks(config, ranks);
  return notes;
}

}  // namespace atelier::train
