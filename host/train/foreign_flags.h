// Flags of other programs' command lines, and what becomes of each here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::train {

enum class Fate {
  kRenamed,  // `text` is the flag's name here; the value stays
  kFixed,    // `text` is what stands for it here, "--dtype bfloat16"
  kIdle,     // `text` says why it is not needed
  kLost,     // the same, but the run is another one without it
  kRead,     // its value decides, see foreign_line.cpp; `text` says what to use
};

struct ForeignFlag {
  std::string_view name;
  bool has_value;  // one, or several up to the next flag
  Fate fate;
  std::string_view text;
};

std::span<const ForeignFlag> launcher_flags();  // of accelerate launch, torchrun and deepspeed
std::span<const ForeignFlag> kohya_flags();     // of kohya's trainers
std::span<const ForeignFlag> trainer_flags();   // of others, and of DiffSynth-Studio's past

// null: it is none of them.
const ForeignFlag* find_foreign_flag(std::span<const ForeignFlag> flags, std::string_view name);

// All of them, as atelier train answers them one by one.
std::vector<flags::OtherFlag> other_train_flags();

// A line for each given flag that has no effect, and a problem for each whose effect would be
// missed: those of DiffSynth-Studio that are flags here, too.
std::vector<std::string> note_foreign_flags(const flags::ParsedFlags& flags,
                                            report::Problems& problems);

// Names of these flags.
bool is_idle_flag(std::string_view name);

}  // namespace atelier::train
