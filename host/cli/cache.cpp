// atelier cache: encodes the samples of a training run ahead of it, or says what that would do.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "host/check/training.h"
#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/process.h"
#include "host/cli/ranks.h"
#include "host/data/order.h"
#include "host/files/file_reader.h"
#include "host/progress/progress.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/run/stop.h"
#include "host/samples/samples.h"

namespace atelier::cli {
namespace {

using distributed::Group;
using progress::Progress;
using report::bytes_text;
using samples::Samples;
using train::PreparedRun;

long long number(int64_t value) {
  return value;
}

void print_report(const PreparedRun& run, const Samples& samples) {
  const data::Order order(samples.shapes(), run.config.order);
  const Samples::Bytes missing = samples.missing_bytes(*run.model);
  std::printf("%-12s %zu\n", "items", samples.size());
  for (const data::BucketCount& bucket : run.dataset->buckets()) {
    const MediaTarget& target = bucket.target;
    std::string size = report::size_text(target.height, target.width);
    if (target.frames > 1) size += "x" + std::to_string(target.frames);
    std::printf("  %-10s %lld\n", size.c_str(), number(bucket.items));
  }
  std::printf("%-12s %lld an epoch, batches of %lld\n", "steps", number(order.steps_per_epoch()),
              number(run.config.order.batch_size));
  for (const Samples::Count& count : samples.counts())
    std::printf("%-12s %lld different, %lld to encode\n", count.what.c_str(), number(count.entries),
                number(count.missing));
  const auto bytes = static_cast<int64_t>(missing.images + missing.texts.value_or(0));
  std::printf("%-12s %s, about %s%s to write\n", "cache",
              files::display_path(run.config.cache_path).c_str(), bytes_text(bytes).c_str(),
              missing.texts ? "" : " and the texts");
}

void print_result(const PreparedRun& run, const Samples& samples,
                  const std::vector<Samples::Count>& before) {
  nlohmann::ordered_json line = {{"cache", run.config.cache_path}, {"items", samples.size()}};
  for (const Samples::Count& count : before) line[count.what] = count.entries;
  for (const Samples::Count& count : before) line["encoded_" + count.what] = count.missing;
  line["fingerprint"] = samples.fingerprint();
  std::puts(
      report::printable_json(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .c_str());
}

// One of the processes that encode together, which may be the only one.
int encode(Group& group, order::Training order, report::Problems& problems) {
  progress::Options shown = progress::stderr_options(order.log.quiet);
  if (!group.is_first()) shown.quiet = true;
  Progress progress(shown);
  agree_on_kernels(group, order);
  PreparedRun run = prepare_together(
      group, [&] { return check::open_encoding(std::move(order), progress, problems); });
  require_same_run(group, run);
  share_host_memory(group, run);
  const std::string& folder = run.config.cache_path;
  Samples samples = train::open_samples(run, run.dataset, folder);
  if (run.config.dry_run) {
    if (group.is_first()) print_report(run, samples);
    return 0;
  }
  run::StopSignals::begin();
  const std::vector<Samples::Count> before = samples.counts();
  if (!train::fill_samples(run, samples, run.dataset, folder, progress,
                           group.size() > 1 ? &group : nullptr)) {
    progress.warn("stopped; what is encoded stays, and the same command goes on from there");
    return run::StopSignals::exit_code(run::StopSignals::requested().value_or(SIGTERM));
  }
  if (group.is_first()) print_result(run, samples, before);
  return 0;
}

}  // namespace

int run_cache(std::span<const std::string> arguments) {
  if (flags::wants_help(arguments)) return print_help(cache_command(family_for_help(arguments)));
  report::Problems problems;
  order::Training order = read_training(arguments, "cache", /*computes=*/true, problems);
  const run::StopSignals signals(run::StopSignals::Kind::kAllFromBegin);
  const distributed::Ranks ranks = distributed::find_ranks(distributed::process_environment());
  choose_gpu(order.model.device, ranks);
  const distributed::GroupOptions options = {.exchange = std::chrono::seconds(order.dist_timeout)};
  return distributed::run_with_others(ranks, options, [&](Group& group) {
    const int code = encode(group, std::move(order), problems);
    run::StopSignals::ignore_until_exit();
    group.part();
    return code;
  });
}

}  // namespace atelier::cli
