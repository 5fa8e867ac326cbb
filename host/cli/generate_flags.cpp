// The flags of atelier generate.
#include <iterator>

#include "host/cli/commands.h"
#include "host/cli/plan.h"
#include "host/generate/settings.h"
#include "host/model/model_flags.h"
#include "host/model/stages.h"

namespace atelier::cli {
namespace {

const std::string kFused = "operators are fused as they are built: leave it out";

// What diffusers, DiffSynth-Studio, kohya's and other programs call settings of a picture.
const flags::OtherFlag kOthers[] = {
    {"guidance_scale", true, "use --cfg_scale"},
    {"true_cfg_scale", true, "use --cfg_scale"},
    {"cfg", true, "use --cfg_scale"},
    {"cfg_trunc_ratio", true, "use --cfg_trunc"},
    {"cfg_normalization", true, "use --cfg_renorm row"},
    {"num_images_per_prompt", true, "use --num_images"},
    {"generator", true, "use --seed"},
    {"image", true, "use --input_image"},
    {"strength", true, "use --denoising_strength"},
    {"shift", true, "use --flow_shift"},
    {"max_sequence_length", true, "the family's own limit holds: leave it out"},
    {"torch_dtype", true, "use --dtype"},
    {"precision", true, "use --dtype"},
    {"mixed_precision", true, "use --dtype"},
    {"use_bf16", false, "use --dtype bfloat16"},
    {"bf16", false, "use --dtype bfloat16"},
    {"fp16", false, "use --dtype float16"},
    {"fp8", false, "use --storage dit=fp8"},
    {"torch_compile", false, kFused},
    {"compile", false, kFused},
    {"pretrained_model_name_or_path", true, "use --model_paths"},
    {"model", true, "use --model_paths"},
    {"ckpt", true, "use --model_paths"},
    {"lora_path", true, "use --lora PATH:STRENGTH"},
    {"lora_weights", true, "use --lora PATH:STRENGTH"},
    {"lora_scale", true, "use --lora PATH:STRENGTH"},
    {"cpu_offload", false, "use --vram, or --offload dit=host"},
    {"enable_model_cpu_offload", false, "use --vram, or --offload dit=host"},
    {"blocks_to_swap", true, "use --vram, or --offload dit=host"},
    {"vram_limit", true, "use --vram"},
    {"vae_tiling", false, "use --tiled"},
    {"output_path", true, "use --output"},
    {"output_dir", true, "use --output"},
    {"save_path", true, "use --output"},
    {"from_file", true, "use --prompts_file"},
    {"lr", true, "a learning rate is a matter of training: leave it out"},
    {"learning_rate", true, "a learning rate is a matter of training: leave it out"},
};

}  // namespace

flags::CommandSpec generate_command(const ModelFamily* family) {
  flags::CommandSpec command{"generate", "Makes pictures from prompts."};
  command.flags = model::model_flags();
  const auto add = [&](std::vector<flags::FlagSpec> flags) {
    command.flags.insert(command.flags.end(), flags.begin(), flags.end());
  };
  add(memory_flags());
  add(generate::settings_flags(family ? family->inputs() : std::span<const InputSpec>()));
  add({
      {.name = "prompts_file",
       .help = "one JSON object a line, with these flags' names as keys; - reads them from stdin",
       .value_name = "FILE"},
      {.name = "truncate_captions",
       .kind = flags::FlagKind::kFlag,
       .help = "prompts of too many tokens are cut, as published pipelines do, and not refused",
       .preset = "false"},
      {.name = "lora",
       .help =
           "a LoRA, PATH or PATH:STRENGTH, and of one of several denoisers "
           "PATH:STRENGTH:component=NAME; a line of a prompts file names its own with \"loras\"",
       .repeated = true,
       .value_name = "FILE"},
      {.name = "lora_dir",
       .help = "folder of the LoRAs that lines of a prompts file name: "
               "\"loras\": [{\"name\": \"style\", \"strength\": 0.7}]",
       .preset = "",
       .value_name = "FOLDER"},
      {.name = "lora_mode",
       .help = "hot: a LoRA is part of each product, and another one comes at once; merge: it is "
               "added to the weights in float32, and steps cost what they cost without it",
       .preset = "hot",
       .choices = {"hot", "merge"}},
      {.name = "cfg_batch",
       .help = "both halves of guidance in one call of the denoiser; off needs less memory",
       .preset = "on",
       .choices = {"on", "off"}},
      {.name = "tiled",
       .kind = flags::FlagKind::kFlag,
       .help = "the VAE works in overlapping tiles, with less memory",
       .preset = "false"},
      {.name = "tile_size", .kind = flags::FlagKind::kInteger, .help = "pixels", .preset = "256"},
      {.name = "tile_stride",
       .kind = flags::FlagKind::kInteger,
       .help = "pixels from one tile to the next",
       .preset = "192"},
      {.name = "attention",
       .help = "forces one implementation of attention",
       .preset = "auto",
       .choices = {"auto", "flash", "efficient", "cudnn", "math"}},
      {.name = "kernels",
       .help = "composed: plain LibTorch operators in place of fused ones",
       .preset = "auto",
       .choices = {"auto", "composed"}},
      {.name = "threads",
       .kind = flags::FlagKind::kInteger,
       .help = "of the CPU; 0: one for each core",
       .preset = "0"},
      {.name = "report_memory",
       .help = "ends in .csv or .svg, or in neither for both: what the device and the host hold "
               "over time",
       .preset = "",
       .value_name = "FILE"},
      {.name = "no_metadata",
       .kind = flags::FlagKind::kFlag,
       .help = "pictures do not say how they were made",
       .preset = "false"},
      {.name = "quiet",
       .kind = flags::FlagKind::kFlag,
       .help = "no progress on stderr",
       .preset = "false"},
  });
  command.lacks_family = family == nullptr;
  command.others = {std::begin(kOthers), std::end(kOthers)};
  if (family != nullptr && model::start_input(family->inputs()) == nullptr)
    command.others.push_back(
        {generate::kStartName, true, std::string(generate::kNoStart) + ": leave it out"});
  return command;
}

}  // namespace atelier::cli
