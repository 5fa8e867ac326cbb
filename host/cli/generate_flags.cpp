#include "host/cli/generate_flags.h"

#include "host/cli/commands.h"
#include "host/flags/compat_flags.h"
#include "host/generate/settings.h"
#include "host/model/model_flags.h"
#include "host/model/stages.h"

namespace atelier::cli {

namespace {

// How several processes make each picture together.
void add_together(flags::Table& table, GenerateFlags& f) {
  constexpr double kDay = 86'400, kMostRanks = 1024;
  table.group("Several processes")
      .flag(
          "cfg_parallel", f.shares.cfg_parallel,
          "two processes make each picture: one goes by the prompt, the other by the negative one")
      .number("sequence_parallel", f.shares.sequence,
              "processes that make each picture, with a part of the denoiser's rows each",
              flags::between(1, kMostRanks))
      .choice("dist_backend", f.dist_backend,
              {{"auto", "auto"}, {"nccl", "nccl"}, {"gloo", "gloo"}},
              "what sends tensors of GPUs: nccl, or gloo through host memory; auto: nccl")
      .number("dist_timeout", f.dist_timeout,
              "seconds that one exchange between processes may take before the run ends; 0: half "
              "an hour",
              flags::between(0, kDay));
}

}  // namespace

flags::Table generate_table(GenerateFlags& f, const ModelFamily* family) {
  flags::Table table;
  table.text("config", f.config, "TOML file with these names; the command line wins", "FILE");
  table.add(model::model_flags());
  add_memory_flags(table, f.limits);
  table.add(generate::settings_flags(family ? family->inputs() : std::span<const InputSpec>()))
      .text("prompts_file", f.prompts_file,
            "one JSON object a line, with these flags' names as keys; - reads them from stdin",
            "FILE")
      .flag("truncate_captions", f.truncate_captions,
            "prompts of too many tokens are cut, as published pipelines do, and not refused")
      .add({.name = "lora",
            .help = "a LoRA, PATH or PATH:STRENGTH, and of one of several denoisers "
                    "PATH:STRENGTH@COMPONENT; a line of a prompts file names its own with "
                    "\"loras\"",
            .repeated = true,
            .value_name = "FILE"})
      .text("lora_dir", f.lora_dir,
            "folder of the LoRAs that lines of a prompts file name: "
            "\"loras\": [{\"name\": \"style\", \"strength\": 0.7}]",
            "FOLDER")
      .choice("lora_mode", f.lora_mode, {{"hot", lora::Mode::kHot}, {"merge", lora::Mode::kMerge}},
              "hot: a LoRA is part of each product, and another one comes at once; merge: it is "
              "added to the weights in float32, and steps cost what they cost without it")
      .choice("cfg_batch", f.cfg_batch, {{"on", true}, {"off", false}},
              "both halves of guidance in one call of the denoiser; off needs less memory")
      .choice("cuda_graphs", f.cuda_graphs,
              {{"auto", memory::GraphChoice::kAuto},
               {"on", memory::GraphChoice::kOn},
               {"off", memory::GraphChoice::kOff}},
              "on: a GPU gets each block of the denoiser with one launch, for more memory, which "
              "pays for small images; auto: where that is proven")
      .flag("tiled", f.tiled, "the VAE works in overlapping tiles, with less memory")
      .number("tile_size", f.tiling.size, "pixels")
      .number("tile_stride", f.tiling.stride, "pixels from one tile to the next");
  add_process_flags(table, f.process);
  table
      .text("report_memory", f.report_memory,
            "ends in .csv or .svg, or in neither for both: what the device and the host hold "
            "over time",
            "FILE")
      .flag("no_metadata", f.no_metadata, "images do not say how they were made")
      .flag("quiet", f.quiet, "no progress on stderr");
  add_together(table, f);
  return table;
}

flags::CommandSpec generate_command(const ModelFamily* family) {
  GenerateFlags presets;
  flags::CommandSpec command{"generate", "Makes images from prompts."};
  command.flags = generate_table(presets, family).specs();
  command.lacks_family = family == nullptr;
  command.others = flags::compat_answers(flags::kSampler);
  if (family != nullptr && model::start_input(family->inputs()) == nullptr)
    command.others.push_back(
        {generate::kStartName, true, std::string(generate::kNoStart) + ": leave it out"});
  return command;
}

}  // namespace atelier::cli
