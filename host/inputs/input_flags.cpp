#include "host/inputs/input_flags.h"

#include <algorithm>

#include "host/inputs/parse.h"

namespace atelier::inputs {

using flags::FlagKind;
using flags::FlagSpec;

std::vector<FlagSpec> flags_of_inputs(std::span<const InputSpec> inputs, InputUse use,
                                      std::span<const FlagSpec> taken) {
  std::vector<FlagSpec> flags;
  for (const InputSpec& input : inputs) {
    if (input.use != use && input.use != InputUse::kBoth && use != InputUse::kBoth) continue;
    if (std::ranges::find(taken, input.name, &FlagSpec::name) != taken.end()) continue;
    FlagSpec& flag = flags.emplace_back();
    flag.name = std::string(input.name);
    flag.help = std::string(input.help);
    if (input.variants != "*") flag.help += " (" + std::string(input.variants) + ")";
    if (input.kind == InputKind::kInteger) flag.kind = FlagKind::kInteger;
    if (input.kind == InputKind::kReal) flag.kind = FlagKind::kReal;
    if (input.kind == InputKind::kFlag) flag.kind = FlagKind::kFlag;
    flag.repeated = is_list(input);
    flag.choices.assign(input.choices.begin(), input.choices.end());
    if (is_file(input.kind)) flag.value_name = "FILE";
    if (flag.repeated && flag.kind == FlagKind::kInteger) flag.kind = FlagKind::kIntegers;
    if (flag.repeated && flag.kind == FlagKind::kReal) flag.kind = FlagKind::kReals;
  }
  return flags;
}

}  // namespace atelier::inputs
