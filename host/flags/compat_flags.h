// Flags of other programs' command lines, and what becomes of each here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::flags {

// Whose a flag is. Several of them are joined with |.
enum CompatOrigin : unsigned {
  kLauncher = 1,  // accelerate launch, torchrun and deepspeed
  kKohya = 2,     // kohya's trainers
  kTrainer = 4,   // other trainers, and DiffSynth-Studio's past
  kSampler = 8,   // programs that make images
  kStudio = 16,   // DiffSynth-Studio's trainers; atelier train takes these flags
};

enum class CompatFate {
  kRenamed,  // `text` is the flag's name here; the value stays
  kFixed,    // `text` is what stands for it here, "--dtype bfloat16"
  kIdle,     // `text` says why it is not needed
  kLost,     // the same, but the run is another one without it
  kModel,    // a file of the model; `text` says what to use
  kRead,     // its value decides, see foreign/compat_line.cpp; `text` says what to use
};

struct CompatFlag {
  std::string_view name;
  unsigned origins;
  bool has_value;  // one, or several up to the next flag
  CompatFate fate;
  std::string_view text;
  std::string_view help = {};  // of kStudio: behind "no effect: " or "refused: "
  std::string_view use = {};   // of kStudio: the flag that does it here; empty: none
};

// null: there is none of that name and of these origins.
const CompatFlag* find_compat_flag(std::string_view name, unsigned origins);

// Flags of these origins as a command answers them one by one.
std::vector<OtherFlag> compat_answers(unsigned origins);

// A flag of kStudio as a command takes it.
FlagSpec compat_spec(std::string_view name);
// All of them, but for those that stand in the help beside the flags that they go with.
std::vector<FlagSpec> compat_specs();

// A line for each given flag of kStudio that has no effect, and a problem for each whose effect
// would be missed.
std::vector<std::string> note_compat_flags(const ParsedFlags& flags, report::Problems& problems);

}  // namespace atelier::flags
