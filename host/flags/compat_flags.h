// Flags, settings and variables of other programs, and what becomes of each here: one table.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::flags {

// Whose a name is. Several of them are joined with |.
enum CompatOrigin : unsigned {
  kLauncher = 1 << 0,         // command lines of accelerate launch, torchrun and deepspeed
  kKohya = 1 << 1,            // kohya's trainers
  kTrainer = 1 << 2,          // other trainers, and DiffSynth-Studio's past
  kSampler = 1 << 3,          // programs that make images
  kStudio = 1 << 4,           // DiffSynth-Studio's trainers; atelier train takes these flags
  kDataset = 1 << 5,          // dataset files of kohya's trainers
  kVariable = 1 << 6,         // the environment
  kAccelerate = 1 << 7,       // accelerate's files
  kDeepSpeedPlugin = 1 << 8,  // their part deepspeed_config
  kFsdp = 1 << 9,             // their part fsdp_config
  kDeepSpeed = 1 << 10,       // DeepSpeed's files
  kZero = 1 << 11,            // their part zero_optimization
};

enum class CompatFate {
  kRenamed,  // `text` is the flag's name here, empty where it is called the same; the value stays
  kLaunch,   // the same, of atelier launch
  kFixed,    // `text` is what stands for it here, "dtype bfloat16"
  kIdle,     // `text` says why it is not needed
  kQuiet,    // the same, and nothing is said of it where a file has it
  kLost,     // `text` says what is missed: the run is another one without it
  kModel,    // a file of the model; `text` says what to use
  kRead,     // its value decides, in foreign/ or launcher_file.cpp; `text` says what to use
};

// A row of the table.
struct CompatRow {
  unsigned origins;
  // Between spaces. "=" stands behind one with a value, or with several up to the next flag, and a
  // star stands for any end of a variable's name.
  std::string_view names;
  CompatFate fate;
  std::string_view text = {};
  std::string_view harmless = {};  // values between spaces that say what is done here anyway
  std::string_view use = {};       // of kStudio: the flag that does it here; empty: none
};

// One name of a row.
struct CompatFlag : CompatRow {
  std::string_view name;
  bool has_value = false;

  // Its name here, of kRenamed and kLaunch.
  std::string name_here() const { return std::string(text.empty() ? name : text); }
  // What stands for it here, of kFixed: a flag and its value, "true" of one that stands alone.
  std::pair<std::string, std::string> fixed() const;
  bool is_harmless(std::string_view value) const;
};

// null: there is none of that name and of these origins.
const CompatFlag* find_compat_flag(std::string_view name, unsigned origins);

// Flags of these origins as a command answers them one by one.
std::vector<OtherFlag> compat_answers(unsigned origins);

// What to use for a value of kohya's trainers that a flag does not take here, though it is called
// the same there. Empty: nothing is known of it.
std::string_view use_of_value(std::string_view flag, std::string_view value);

// A flag of kStudio as a command takes it.
FlagSpec compat_spec(std::string_view name);
// All of them, but for those that stand in the help beside the flags that they go with.
std::vector<FlagSpec> compat_specs();

// A line for each given flag of kStudio that has no effect, and a problem for each whose effect
// would be missed.
std::vector<std::string> note_compat_flags(const ParsedFlags& flags, report::Problems& problems);

// A line for each variable of the environment that would change another program and is not read
// here, with what to use.
std::vector<std::string> note_compat_variables();

}  // namespace atelier::flags
