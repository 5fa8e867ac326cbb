// The flags of atelier generate that are no settings of an image, and where their values go.
#pragma once

#include <string>

#include "atelier/model_family.h"

#include "host/flags/memory_flags.h"
#include "host/flags/process_flags.h"
#include "host/flags/table.h"
#include "host/generate/picture_ranks.h"
#include "host/generate/tiling.h"
#include "host/lora/registry.h"
#include "memory/graph_runner.h"

namespace atelier::cli {

struct GenerateFlags {
  flags::MemoryLimits limits;
  std::string config, prompts_file, lora_dir, report_memory;
  bool truncate_captions = false, tiled = false, no_metadata = false, quiet = false;
  lora::Mode lora_mode = lora::Mode::kHot;
  bool cfg_batch = true;
  memory::GraphChoice cuda_graphs = memory::GraphChoice::kAuto;
  generate::PictureShares shares;
  std::string dist_backend = "auto";
  int dist_timeout = 0;  // seconds that one exchange between processes may take; 0: half an hour
  generate::Tiling tiling;
  flags::ProcessSettings process;
};

// All flags of the command; those of the model and of settings are read by load_request() and
// settings_of(). `family` may be null.
flags::Table generate_table(GenerateFlags& own, const ModelFamily* family);

}  // namespace atelier::cli
