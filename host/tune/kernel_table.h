// What was proven on a kind of GPU, kept in the user's cache folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atelier/host/attention_rules.h"

#include "host/tune/kernel_proofs.h"

namespace atelier::tune {

// What a table holds for: a kind of GPU, the driver, LibTorch, and the file with the kernels.
// Another value of any of them is another table.
struct GpuKind {
  std::string name;
  int capability = 0;  // 90 is 9.0
  std::string driver, libtorch, kernels;
  int index = 0;  // the first GPU that is one here, which no table is about
};

// Kinds of the GPUs that this process sees; none where none can be used.
std::vector<GpuKind> kinds_here();

// A verdict as one line of JSON, and back; nullopt for another line.
std::string verdict_line(const Verdict& verdict);
std::optional<Verdict> read_verdict(std::string_view line);

struct KernelTable {
  std::vector<Verdict> verdicts;

  // The operators whose kernels run by default.
  std::vector<std::string> on() const;
};

// One line: which run by default, which do not and why.
std::string told(const KernelTable& table);

// $XDG_CACHE_HOME/atelier, or ~/.cache/atelier; empty where neither variable is set.
std::string cache_folder();

// The file of a kind's table below `folder`.
std::string table_path(const std::string& folder, const GpuKind& kind);

// nullopt where there is none for just this kind, or a damaged one.
std::optional<KernelTable> read_table(const std::string& folder, const GpuKind& kind);
// Tables of all kinds; nullopt where one is missing.
std::optional<std::vector<KernelTable>> read_tables(const std::string& folder,
                                                    const std::vector<GpuKind>& kinds);

// Operators whose kernels run by default, as they do on each of the kinds.
std::vector<std::string> on_all(const std::vector<KernelTable>& tables);
// Where cuDNN attends by default; `tables` are those of `kinds`.
std::vector<ops::ProvenAttention> attention_of(const std::vector<KernelTable>& tables,
                                               const std::vector<GpuKind>& kinds);

// Makes the folder where there is none. Throws Error{kEnvironment} where write_table() could not
// write there.
void make_writable(const std::string& folder, const GpuKind& kind);

// Whole, or as it was. Throws Error{kEnvironment} naming the file.
void write_table(const std::string& folder, const GpuKind& kind, const KernelTable& table);

}  // namespace atelier::tune
