// What a user asks of `atelier generate`, whole: read once from the command line, --config and a
// prompts file, and handed on as it is until the last image is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/flags/flags.h"
#include "host/flags/process_flags.h"
#include "host/flags/table.h"
#include "host/lora/registry.h"
#include "host/model/memory_limits.h"
#include "host/model/model_loader.h"
#include "host/order/jobs.h"
#include "host/order/words.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"
#include "memory/graph_runner.h"

namespace atelier::order {

// How several processes share the work: --cfg_parallel and the flags beside it.
struct Processes {
  bool cfg_parallel = false;  // two of them make the halves of guidance
  int sequence = 1;           // those that have a part of the denoiser's rows each
  std::string dist_backend = "auto";
  int dist_timeout = 0;  // seconds that one exchange between processes may take; 0: half an hour

  // How many make one picture.
  int per_picture() const { return (cfg_parallel ? 2 : 1) * sequence; }
};

// Plain data; std::optional where a plan or the model decides what the user left open.
struct Generation {
  // ---- the model
  const plugins::Plugin* plugin = nullptr;      // null: not known, which is a problem already
  std::optional<model::LoadOptions> load = {};  // nullopt: its flags are malformed, the same
  lora::Mode lora_mode = lora::Mode::kHot;
  flags::ProcessSettings process = {};

  // ---- the images
  Settings base = {};                // what jobs leave out
  std::vector<Job> jobs = {};        // those that are known
  std::string prompts_file = {};     // where jobs come from; "-": one by one from stdin
  bool is_served = false;            // they come from clients of a server, see order::Serving
  bool leaves_out_metadata = false;  // images do not say how they were made

  // ---- memory
  model::MemoryLimits limits = {};
  bool is_tiled = false;
  Tiling tiles = {};                   // of the VAE, where is_tiled
  std::optional<bool> cfg_batch = {};  // both halves of guidance in one call of the denoiser
  memory::GraphChoice cuda_graphs = memory::GraphChoice::kAuto;

  // ---- several processes, and what is told
  Processes processes = {};
  std::string report_memory = {};  // file of the memory timeline; empty: none
  bool is_quiet = false;           // no progress on stderr

  const ModelFamily* family() const { return plugin != nullptr ? plugin->family : nullptr; }
  std::optional<Tiling> tiling() const { return is_tiled ? std::optional(tiles) : std::nullopt; }
  bool has_prompts_file() const { return !prompts_file.empty(); }
  bool reads_stdin() const { return prompts_file == "-"; }
  // Whether jobs come from a file, stdin or clients; then components stay beside each other from
  // one to the next, where there is room.
  bool has_several_jobs() const { return has_prompts_file() || is_served; }
  // Whether jobs come that are not among `jobs`.
  bool has_later_jobs() const { return reads_stdin() || is_served; }
};

// The flags of `atelier generate`, with the values of `order` as presets; `family` may be null.
// Those of the model, of settings and the LoRAs are read by read_flags() alone.
flags::Table generation_table(Generation& order, const ModelFamily* family);

// Gives `order`, whose plugin is set, what the flags of a command say that has most of such a
// table, bound to `order`; no jobs. Mistakes become problems.
void read_flags(Generation& order, const flags::Table& table, const flags::ParsedFlags& parsed,
                report::Problems& problems);

// All flags of `atelier generate`; `family` may be null.
flags::CommandSpec generate_command(const ModelFamily* family);

// What the words order from the family of `plugin`; null: it is not known, which is a problem
// already. Mistakes become problems.
Generation read_generation(const Words& words, const plugins::Plugin* plugin,
                           report::Problems& problems);

}  // namespace atelier::order
