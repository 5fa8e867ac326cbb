// Whole command lines of other programs, said as atelier train, cache and generate.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::foreign {

// Whether the words call a launcher or a script: "accelerate launch …", "python x/train.py …", with
// or without variables in front ("CUDA_VISIBLE_DEVICES=0").
bool is_compat_line(std::span<const std::string> words);

// The family that the line is about: that of --plugin, or the one of `families` whose name stands
// in the path of the script, or begins as its file does. Empty: it cannot be told.
std::string family_of_line(std::span<const std::string> words,
                           const std::vector<std::string>& families);

struct CompatLine {
  // "CUDA_VISIBLE_DEVICES=0", "atelier", "train", "--plugin", …, or of several processes "atelier",
  // "launch", "--nproc_per_node", "8", "--", "train", …
  std::vector<std::string> command;
  std::vector<std::string> notes;  // a line for each word that is not there as it was
};

// `family`: null when it is not known. What would make another run of it, and what is wrong with
// the values, becomes problems; the command is what there is without them.
// `generate`: what atelier generate takes with the family.
CompatLine rewrite_line(std::span<const std::string> words, const ModelFamily* family,
                        const flags::CommandSpec& generate, report::Problems& problems);

// Words as a shell reads them, a flag a line.
std::string shell_text(const std::vector<std::string>& command);

}  // namespace atelier::foreign
