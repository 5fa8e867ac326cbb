// What a training run is asked to do: flags, a TOML file of the same names, and the run that is
// resumed, in this order of precedence.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/data/dataset.h"
#include "host/data/order.h"
#include "host/distributed/ranks.h"
#include "host/flags/flags.h"
#include "host/flags/process_flags.h"
#include "host/lora/lora_writer.h"
#include "host/model/memory_limits.h"
#include "host/model/model_loader.h"
#include "host/optim/lr_schedule.h"
#include "host/optim/optimizer.h"
#include "host/order/words.h"
#include "host/report/problems.h"
#include "host/samples/timesteps.h"
#include "memory/activation_budget.h"

namespace atelier::order {

enum class Task { kSft, kDirectDistill };
// Two-stage training: encode to the cache, or train from it. kBoth does one after the other.
enum class Stage { kBoth, kDataProcess, kTrain };

struct LoraSettings {
  std::vector<std::string> base_models;  // components, "dit"; empty: no LoRA is trained
  // Names of linear layers, or ends of their paths behind a dot; empty: the family's own choice.
  std::vector<std::string> target_modules;
  int64_t rank = 32;
  std::optional<double> alpha;  // of the rank when absent
  double dropout = 0.0;
  bool use_rslora = false;         // alpha / sqrt(rank)
  double loraplus_lr_ratio = 1.0;  // learning rate of B over that of A
  std::string checkpoint;          // first values
  std::string preset_path;         // of a LoRA that is part of the frozen model (differential LoRA)
  std::string preset_model;        // its component
  lora::Format format = lora::Format::kDiffusers;
};

struct OutputSettings {
  std::string output_path = "./run";
  // The folder is that of the run that --resume names, whether or not that has a saved state.
  bool is_resumed = false;
  std::optional<int64_t> save_steps;    // in optimizer steps; absent: after each epoch
  int64_t checkpoints_total_limit = 2;  // resumable states that stay; 0: all
  int64_t weights_total_limit = 0;      // step-N and epoch-N files that stay; 0: all
  bool save_state = true;               // states to resume from, beside the weights
  std::string save_dtype = "auto";  // of the weights: auto is float32 for LoRA, else the model's
};

struct LogSettings {
  bool tensorboard = true, csv = false;
  int64_t logging_steps = 1;
  bool quiet = false;
};

struct PreviewSettings {
  std::string prompts_file;  // --sample_prompts; empty: none
  std::optional<int64_t> every_n_steps, every_n_epochs;
  bool at_first = false;
};

struct ValidationSettings {
  std::string base_path, metadata_path;  // a dataset of its own; empty: none
  std::string control_path;              // as DatasetOptions has it
  int64_t steps = 100;                   // between two validations, in optimizer steps
  int64_t timesteps = 8;                 // levels of the grid
};

// --cpu_offload and the flags beside it.
struct OffloadSettings {
  bool weights = false;     // blocks rest on the host and come when they run
  bool optimizer = false;   // trained weights too, and all of the optimizer
  int64_t least_bytes = 0;  // smaller weights that are trained stay on the device all the same
};

// How processes share out what they train: see docs/distributed.md.
struct ShardSettings {
  int stage = 0;              // of ZeRO; 0: each holds all of it
  std::string group = "all";  // ranks that have one whole: "all", "node" or their number
};

struct MemorySettings {
  model::MemoryLimits limits;
  std::string report;  // file of the timeline; empty: none is made
};

struct Training {
  const ModelFamily* family = nullptr;  // null: not known, which is a problem already
  distributed::Ranks ranks = {};        // the processes that train together, this one among them
  Task task = Task::kSft;
  Stage stage = Stage::kBoth;
  model::LoadOptions model;
  std::string resume_from_checkpoint;  // weights of one trained component
  std::string resume;  // folder of a run or of a saved state; empty: from the beginning
  // Its dataset_base_path is empty when samples come from the cache alone (sft:train).
  data::DatasetOptions dataset;
  data::OrderOptions order;  // with batch_size, accumulation, repeat; seed is `seed`
  int dataset_num_workers = 2;
  int dist_timeout = 0;  // seconds that one exchange between processes may take; 0: by the steps
  std::string dist_backend = "auto";
  std::string cache_path;  // OUTPUT_PATH/cache unless something else was given
  bool dry_run = false;    // of `atelier cache`: says what is wrong and what would be encoded
  // Samples of an optimizer step, whatever the number of processes; 0: those of one process times
  // their number. `order` has the step of all processes, see share_batch().
  int global_batch_size = 0;
  double caption_dropout_rate = 0.0;

  // "dit", "dit.transformer_blocks.0", several of them.
  std::vector<std::string> trainable_models;
  LoraSettings lora;
  uint64_t seed = 42;
  int64_t num_epochs = 1;
  std::optional<int64_t> max_train_steps;  // ends the run also within an epoch
  double learning_rate = 1e-4;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;      // 0: no clipping
  int64_t max_skipped_steps = 10;  // in a row, of gradients that are not finite, before giving up
  optim::Options optimizer;
  optim::LrSchedule lr_schedule;  // total_steps is filled in by the trainer
  samples::TimestepOptions timesteps;
  double ema_decay = 0.0;  // 0: none
  bool use_gradient_checkpointing = false;
  bool offloads_activations = false;  // what waits for the backward pass may do so on the host
  int sequence_parallel = 1;  // processes that compute each batch together, some of its rows each
  std::optional<memory::ActivationBudget> activation_budget;  // wins over the line above
  MemorySettings memory;
  OffloadSettings offload;
  ShardSettings shards;
  OutputSettings output;
  LogSettings log;
  PreviewSettings previews;
  ValidationSettings validation;
  flags::ProcessSettings process;

  // trainable_models and the component of the LoRA.
  std::vector<std::string> trained_names() const;

  // Every flag with its value as TOML of the flags' names: what --config reads. Without those that
  // say where to begin (config, resume).
  std::string effective_toml;
  // Changes the value of a flag in effective_toml. `value` is TOML.
  void rewrite_toml(std::string_view flag, std::string_view value);
  // Names of flags whose values come from the run of --resume alone.
  std::set<std::string, std::less<>> inherited;
  // Lines for the user: flags that have no effect here, and what to use.
  std::vector<std::string> notes;
};

// The flags of `command`, each with the setting that gets its value; but those whose value decides
// several settings are read by read_training(). `config` outlives the table, and holds the presets.
flags::Table config_table(Training& config, const ModelFamily* family, std::string_view command);

// Every flag of `atelier train`, in groups; with a family, its names stand in the help and its
// optional texts among the others. The name "cache" adds --dry_run.
flags::CommandSpec train_command(const ModelFamily* family, std::string name = "train");

// Flags, --config and, below both, the configuration in the run of --resume. Everything that can be
// known without model and dataset is checked; mistakes become problems that name the flag, or the
// file and line. Flags of DiffSynth-Studio that mean nothing here are answered with what to use.
// `command` is a name of train_command(); with "cache" the stage is kDataProcess. `family` is null
// where it is not known, which is a problem already: the rest is checked.
Training read_training(const Words& words, const ModelFamily* family, report::Problems& problems,
                       std::string_view command = "train");

// Parses where the files that it names need not be there: of a dataset, of what an earlier run
// wrote.
Training parse_settings(std::span<const std::string> arguments, const ModelFamily* family,
                        report::Problems& problems, std::string_view command = "train");

}  // namespace atelier::order
