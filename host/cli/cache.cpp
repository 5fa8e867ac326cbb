// atelier cache: encodes the samples of a training run ahead of it, or says what that would do.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/process_flags.h"
#include "host/data/dataset.h"
#include "host/data/order.h"
#include "host/files/file_reader.h"
#include "host/model/model_loader.h"
#include "host/plan/size_guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/stop.h"
#include "host/train/config.h"
#include "host/train/row_check.h"
#include "host/train/samples.h"

namespace atelier::cli {
namespace {

using model::LoadedModel;
using progress::Progress;
using report::format_bytes;
using train::Config;
using train::Samples;

// Everything that is known before a weight is read.
struct Request {
  Config config;
  std::unique_ptr<LoadedModel> model;
  std::shared_ptr<const data::Dataset> dataset;
};

// Throws one error with all that is wrong.
Request check_request(std::span<const std::string> arguments) {
  report::Problems problems;
  Request request;
  Config& config = request.config;
  const plugins::Plugin* const plugin = choose_train_family(arguments, problems);
  config = train::parse_config(arguments, plugin ? plugin->family : nullptr, problems, "cache");
  Progress progress(progress::stderr_options(config.log.quiet));
  for (const std::string& note : config.notes) progress.note("note: " + note);
  apply_process_flags(config.process.attention, config.process.kernels, config.process.threads,
                      problems);
  if (plugin == nullptr) problems.throw_if_any();
  const ModelFamily& family = *plugin->family;
  for (const ComponentSpec& component : family.components()) {
    if (component.phases.encode) config.model.components.emplace_back(component.name);
  }
  problems.collect([&] {
    request.model = LoadedModel::open(family, config.model);
    for (const std::string& note : request.model->notes()) progress.note("note: " + note);
  });
  const LatentSpec spec = request.model ? request.model->model().latent_spec()
                                        : LoadedModel::open_empty(family)->model().latent_spec();
  std::optional<generate::TextLengths> lengths;
  data::RowCheck check;
  if (request.model) {
    lengths.emplace(request.model->model(), family.name(), config.model.cuts_texts);
    check = train::row_check(config, family, *lengths, /*is_learnt=*/true);
  }
  problems.collect([&] {
    request.dataset = std::make_shared<const data::Dataset>(
        data::Dataset::open(config.dataset, family.inputs(), spec, problems, check));
    for (const std::string& warning : request.dataset->warnings())
      progress.warn("warning: " + warning);
    if (const size_t rows = request.dataset->items().size(); rows > 0)
      data::Order::check(rows, config.order);
  });
  if (request.model && request.dataset) {
    problems.collect([&] {
      plan::SizeGuard(*request.model, config.model,
                      {.vram = config.memory.vram, .host_memory = config.memory.host_memory})
          .check(*request.dataset, problems);
    });
  }
  problems.throw_if_any();
  if (const std::string note = lengths->note(); !note.empty()) progress.note("note: " + note);
  return request;
}

Samples open_samples(const Request& request) {
  const Config& config = request.config;
  return Samples::of_dataset(request.dataset, *request.model,
                             train::cached_parts(request.model->family(), config.trained_names()),
                             config.cache_path, config.caption_dropout_rate > 0);
}

long long number(int64_t value) {
  return value;
}

void print_report(const Request& request, const Samples& samples) {
  const data::Order order(samples.shapes(), request.config.order);
  const Samples::Counts counts = samples.counts();
  const Samples::Bytes missing = samples.missing_bytes(*request.model);
  std::printf("%-12s %zu\n", "items", samples.size());
  for (const data::BucketCount& bucket : request.dataset->buckets())
    std::printf("  %-10s %lld\n",
                (std::to_string(bucket.width) + "x" + std::to_string(bucket.height)).c_str(),
                number(bucket.items));
  std::printf("%-12s %lld an epoch, batches of %lld\n", "steps", number(order.steps_per_epoch()),
              number(request.config.order.batch_size));
  std::printf("%-12s %lld different, %lld to encode\n", "texts", number(counts.texts),
              number(counts.missing_texts));
  std::printf("%-12s %lld different, %lld to encode\n", "pictures", number(counts.pictures),
              number(counts.missing_pictures));
  const auto bytes = static_cast<uint64_t>(missing.pictures + missing.texts.value_or(0));
  std::printf("%-12s %s, about %s%s to write\n", "cache",
              files::display_path(request.config.cache_path).c_str(), format_bytes(bytes).c_str(),
              missing.texts ? "" : " and the texts");
}

void print_result(const Request& request, const Samples& samples, const Samples::Counts& before) {
  const nlohmann::ordered_json line = {
      {"cache", request.config.cache_path},
      {"items", samples.size()},
      {"texts", before.texts},
      {"pictures", before.pictures},
      {"encoded_texts", before.missing_texts},
      {"encoded_pictures", before.missing_pictures},
      {"fingerprint", samples.fingerprint()},
  };
  std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace

int run_cache(std::span<const std::string> arguments) {
  if (flags::wants_help(arguments)) {
    std::fputs(flags::help_text(cache_command(family_for_help(arguments))).c_str(), stdout);
    return 0;
  }
  const Request request = check_request(arguments);
  Samples samples = open_samples(request);
  if (request.config.dry_run) {
    print_report(request, samples);
    return 0;
  }
  const run::StopSignals signals;
  Progress progress(progress::stderr_options(request.config.log.quiet));
  const Samples::Counts before = samples.counts();
  if (!samples.fill(*request.model, request.config.dataset_num_workers, progress,
                    [] { return run::StopSignals::requested().has_value(); })) {
    progress.warn("stopped; what is encoded stays, and the same command goes on from there");
    return run::StopSignals::exit_code(run::StopSignals::requested().value());
  }
  print_result(request, samples, before);
  return 0;
}

}  // namespace atelier::cli
