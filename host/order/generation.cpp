#include "host/order/generation.h"

#include <filesystem>

#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/flags/table.h"
#include "host/model/model_flags.h"
#include "host/model/stages.h"
#include "host/run/memory_timeline.h"

namespace atelier::order {
namespace {

// How several processes make each picture together.
void add_together(flags::Table& table, Processes& processes) {
  constexpr double kDay = 86'400, kMostRanks = 1024;
  table.group("Several processes")
      .flag(
          "cfg_parallel", processes.cfg_parallel,
          "two processes make each picture: one goes by the prompt, the other by the negative one")
      .number("sequence_parallel", processes.sequence,
              "processes that make each picture, with a part of the denoiser's rows each",
              flags::between(1, kMostRanks))
      .choice("dist_backend", processes.dist_backend,
              {{"auto", "auto"}, {"nccl", "nccl"}, {"gloo", "gloo"}},
              "what sends tensors of GPUs: nccl, or gloo through host memory; auto: nccl")
      .number("dist_timeout", processes.dist_timeout,
              "seconds that one exchange between processes may take before the run ends; 0: half "
              "an hour",
              flags::between(0, kDay));
}

void check_lora_dir(const std::string& folder, report::Problems& problems) {
  std::error_code failure;
  if (folder.empty() || std::filesystem::is_directory(folder, failure)) return;
  problems.add("--lora_dir: " + files::display_path(folder) + " is no folder",
               "give the folder of the LoRA files", ErrorCode::kNotFound);
}

}  // namespace

flags::Table generation_table(Generation& order, const ModelFamily* family) {
  flags::Table table;
  table.add({.name = "config",
             .help = "TOML file with these names; the command line wins",
             .value_name = "FILE"});
  table.add(model::model_flags());
  model::add_memory_flags(table, order.limits);
  table.add(family ? settings_flags(family->inputs(), family->solvers()) : settings_flags({}))
      .text("prompts_file", order.prompts_file,
            "one JSON object a line, with these flags' names as keys; - reads them from stdin",
            "FILE")
      .add(
          {.name = "truncate_captions",
           .kind = flags::FlagKind::kFlag,
           .help = "prompts of too many tokens are cut, as published pipelines do, and not refused",
           .preset = "false"})
      .add({.name = "lora",
            .help = "a LoRA, PATH or PATH:STRENGTH, and of one of several denoisers "
                    "PATH:STRENGTH@COMPONENT; a line of a prompts file names its own with "
                    "\"loras\"",
            .repeated = true,
            .value_name = "FILE"})
      .text("lora_dir", order.base.lora_dir,
            "folder of the LoRAs that lines of a prompts file name: "
            "\"loras\": [{\"name\": \"style\", \"strength\": 0.7}]",
            "FOLDER")
      .choice("lora_mode", order.lora_mode,
              {{"hot", lora::Mode::kHot}, {"merge", lora::Mode::kMerge}},
              "hot: a LoRA is part of each product, and another one comes at once; merge: it is "
              "added to the weights in float32, and steps cost what they cost without it")
      .add({.name = "cfg_batch",
            .help = "both halves of guidance in one call of the denoiser; off needs less memory",
            .preset = "on",
            .choices = {"on", "off"}},
           [&order](const flags::ParsedFlags& given) {
             if (given.is_given("cfg_batch")) order.cfg_batch = given.text("cfg_batch") == "on";
           })
      .choice("cuda_graphs", order.cuda_graphs,
              {{"auto", memory::GraphChoice::kAuto},
               {"on", memory::GraphChoice::kOn},
               {"off", memory::GraphChoice::kOff}},
              "on: a GPU gets each block of the denoiser with one launch, for more memory, which "
              "pays for small images; auto: where that is proven")
      .flag("tiled", order.is_tiled, "the VAE works in overlapping tiles, with less memory")
      .number("tile_size", order.tiles.size, "pixels")
      .number("tile_stride", order.tiles.stride, "pixels from one tile to the next");
  add_process_flags(table, order.process);
  table
      .text("report_memory", order.report_memory,
            "ends in .csv or .svg, or in neither for both: what the device and the host hold "
            "over time",
            "FILE")
      .flag("no_metadata", order.leaves_out_metadata, "images do not say how they were made")
      .flag("quiet", order.is_quiet, "no progress on stderr");
  add_together(table, order.processes);
  return table;
}

flags::CommandSpec generate_command(const ModelFamily* family) {
  Generation presets;
  flags::CommandSpec command{"generate", "Makes images from prompts."};
  command.flags = generation_table(presets, family).specs();
  command.lacks_family = family == nullptr;
  command.others = flags::compat_answers(flags::kSampler);
  if (family != nullptr && model::start_input(family->inputs()) == nullptr)
    command.others.push_back({kStartName, true, std::string(kNoStart) + ": leave it out"});
  return command;
}

void read_flags(Generation& order, const flags::Table& table, const flags::ParsedFlags& parsed,
                report::Problems& problems) {
  const auto inputs = order.family() ? order.family()->inputs() : std::span<const InputSpec>();
  order.base = settings_of(parsed, inputs, problems);
  table.read(parsed, problems);
  check_lora_dir(order.base.lora_dir, problems);
  try {
    order.base.loras = lora::parse_flags(parsed.texts("lora"));
  } catch (const Error& error) {
    problems.add(error.at("--lora"));
  }
  const size_t before = problems.size();
  model::LoadOptions load = model::load_request(parsed, problems);
  load.prepares_levels = true;
  load.cuts_texts = parsed.flag("truncate_captions");
  if (problems.size() == before) order.load = std::move(load);
}

namespace {

// The jobs of --prompts_file, or the one of the command line.
void read_jobs(Generation& order, std::span<const InputSpec> inputs, report::Problems& problems) {
  if (!order.has_prompts_file()) {
    order.jobs.emplace_back().settings = order.base;
  } else if (!order.reads_stdin()) {
    problems.collect([&] {
      order.jobs = parse_jobs(files::read_text_file(order.prompts_file), order.prompts_file,
                              order.base, inputs, problems);
    });
  }
}

}  // namespace

Generation read_generation(const Words& words, const plugins::Plugin* plugin,
                           report::Problems& problems) {
  Generation order = {.plugin = plugin};
  const ModelFamily* const family = order.family();
  const auto command = generate_command(family);
  const flags::ParsedFlags parsed = flags::parse_flags(
      command, words.command_line(), words.below(command, problems).values, problems);
  read_flags(order, generation_table(order, family), parsed, problems);
  read_jobs(order, family ? family->inputs() : std::span<const InputSpec>(), problems);
  run::check_report_path(order.report_memory, problems);
  return order;
}

}  // namespace atelier::order
