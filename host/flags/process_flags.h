// Flags that set up the whole process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "host/flags/table.h"

namespace atelier::flags {

// Which kernels of our own run.
struct KernelChoice {
  ops::Kernels form = ops::Kernels::kAuto;
  // Under kAuto on a GPU, what `atelier tune` calls those that run by default; nullopt: those that
  // it proved there.
  std::optional<std::vector<std::string>> named = {};
  bool operator==(const KernelChoice&) const = default;
};

// What --kernels says: "auto", "fused", "composed", "none" or names between commas.
KernelChoice parse_kernels(const std::string& text);
std::string kernels_text(const KernelChoice& kernels);

struct ProcessSettings {
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
  KernelChoice kernels = {};
  int64_t threads = 0;            // of the CPU; 0: one for each core
  bool is_deterministic = false;  // on a GPU; on the CPU everything is
  // Float32 convolutions of a GPU multiply 10 bits of mantissa; nullopt: they do.
  std::optional<bool> tf32;
};

// --attention, --kernels, --tf32, --deterministic and --threads.
void add_process_flags(Table& table, ProcessSettings& settings);

// Sets up the process. A number of threads that is out of its range is passed over.
void apply(const ProcessSettings& settings);

}  // namespace atelier::flags
