// Proofs in a process of their own, which may crash or hang on a kernel: that kernel is then not
// used, and the others are proven without it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "host/tune/kernel_table.h"

namespace atelier::tune {

// The line by which such a process tells what it begins; what it found it tells by verdict_line().
std::string begin_line(std::string_view op);

// Proves `ops` elsewhere and gives `on_line` every line that is told. Returns a wait status;
// nullopt: it was stopped after so many seconds.
using ProveElsewhere =
    std::function<std::optional<int>(std::span<const std::string> ops, double seconds,
                                     const std::function<void(const std::string& line)>& on_line)>;

// Verdicts of all of `ops`, in order. `told` is called with each as soon as it is known. Each
// has `seconds`; where a process ends, another one goes on behind the operator at which it did.
KernelTable tune(std::span<const std::string> ops, double seconds, const ProveElsewhere& prove,
                 const std::function<void(const Verdict&)>& told);

}  // namespace atelier::tune
