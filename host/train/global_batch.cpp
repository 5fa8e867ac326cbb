#include "host/train/global_batch.h"

#include <algorithm>
#include <string>

namespace atelier::train {

namespace {

// Writes the number into the configuration that the run keeps.
void keep(std::string& toml, int64_t samples) {
  const std::string name = "global_batch_size = ";
  const size_t begin = toml.find("\n" + name);
  if (begin == std::string::npos) return;  // mistakes were found: nothing is kept
  const size_t value = begin + 1 + name.size();
  toml.replace(value, toml.find('\n', value) - value, std::to_string(samples));
}

}  // namespace

void share_batch(Config& config, int processes, report::Problems& problems) {
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
  keep(config.effective_toml, samples);
}

}  // namespace atelier::train
