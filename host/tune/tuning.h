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

// How such a process ended.
struct End {
  std::optional<int> status;  // a wait status; nullopt: it was stopped
  double stopped_after_s = 0.0;
  bool is_time_over = false;  // nothing more is to be proven
};

// Proves `ops` elsewhere and gives `on_line` every line that is told.
using ProveElsewhere = std::function<End(
    std::span<const std::string> ops, const std::function<void(const std::string& line)>& on_line)>;

// Verdicts of `ops`, in order, without those that stay unknown. `told` is called with each as soon
// as there is one. Where a process ends, another one goes on behind the operator at which it did,
// which is then wrong, until time is over.
KernelTable tune(std::span<const std::string> ops, const ProveElsewhere& prove,
                 const std::function<void(const Verdict&)>& told);

}  // namespace atelier::tune
