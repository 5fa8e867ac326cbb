// What was proven on the GPUs of this machine, kept in the user's cache folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atelier/host/attention_rules.h"

#include "host/tune/kernel_proofs.h"

namespace atelier::tune {

// What a table holds for: the GPUs, the driver, LibTorch, and the file with the kernels. Another
// value of any of them is another table.
struct Machine {
  struct Gpu {
    std::string name;
    int capability = 0;  // 90 is 9.0
  };
  std::vector<Gpu> gpus;
  std::string driver, libtorch, kernels;
};

// This one; without GPUs where none can be used.
Machine this_machine();

// A verdict as one line of JSON, and back; nullopt for another line.
std::string verdict_line(const Verdict& verdict);
std::optional<Verdict> read_verdict(std::string_view line);

struct KernelTable {
  std::vector<Verdict> verdicts;

  // The operators whose kernels run by default.
  std::vector<std::string> on() const;
};

// Where cuDNN attends by default, by what was proven on these GPUs.
std::vector<ops::ProvenAttention> attention_of(const KernelTable& table, const Machine& machine);

// One line: which run by default, which do not and why.
std::string told(const KernelTable& table);

// $XDG_CACHE_HOME/atelier, or ~/.cache/atelier; empty where neither variable is set.
std::string cache_folder();

// The file of a machine's table below `folder`.
std::string table_path(const std::string& folder, const Machine& machine);

// nullopt where there is none for just this machine, or a damaged one.
std::optional<KernelTable> read_table(const std::string& folder, const Machine& machine);

// Makes the folder where there is none. Throws Error{kEnvironment} where write_table() could not
// write there.
void make_writable(const std::string& folder, const Machine& machine);

// Whole, or as it was. Throws Error{kEnvironment} naming the file.
void write_table(const std::string& folder, const Machine& machine, const KernelTable& table);

}  // namespace atelier::tune
