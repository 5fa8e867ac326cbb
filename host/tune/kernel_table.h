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

  // Names of those that run by default, and how many could; none of rate_proofs().
  std::vector<std::string> on() const;
  size_t choices() const;
  // Null where there is no verdict of it.
  const Verdict* find(std::string_view op) const;
  // Names, of these, that there is no verdict of.
  std::vector<std::string> missing(std::vector<std::string> names) const;
};

// One line: which run by default, which do not and why; and how fast rate_proofs() found one way
// of two, in percent of the other one.
std::string summary_of(const KernelTable& table);

// What tables of several kinds of GPU say together.
struct Proven {
  std::vector<std::string> on;     // with each of the kinds
  std::vector<std::string> wrong;  // with one of them, or it has none
};
Proven together(const std::vector<KernelTable>& tables);

// Without those that are wrong.
std::vector<std::string> right_of(std::vector<std::string> named,
                                  const std::vector<std::string>& wrong);

// What the processes of a run tell each other of their choice, where each may have other tables;
// `named` as in flags::KernelChoice. And what all of them take: the choice of the first one without
// what is wrong with another.
std::string choice_text(const std::optional<std::vector<std::string>>& named,
                        const std::vector<std::string>& wrong);
std::optional<std::vector<std::string>> agreed_choice(const std::vector<std::string>& texts);

// Both times, where products of a kind of codes were measured to take longer than those in
// bfloat16: "w8a8_fp8: 1.9 ms beside 1.4 ms in bfloat16". Empty: they do not, or it is not known.
// `product`: kFp8Products or kInt8Products.
std::string slow_products(const KernelTable& table, std::string_view product);

// The rate of copies of pinned memory in one direction, as it was measured on a GPU of this
// machine; 0: it was not.
double copy_bytes_per_second(at::Device device);

// From now on these run by default on GPUs, and no others. Before other threads run operators.
void use(const std::vector<std::string>& names);

// $XDG_CACHE_HOME/atelier, or ~/.cache/atelier; empty where neither variable is set.
std::string cache_folder();

// The file of a kind's table below `folder`.
std::string table_path(const std::string& folder, const GpuKind& kind);

// nullopt where there is none for just this kind, or a damaged one.
std::optional<KernelTable> read_table(const std::string& folder, const GpuKind& kind);
// Tables of all kinds; nullopt where one is missing.
std::optional<std::vector<KernelTable>> read_tables(const std::string& folder,
                                                    const std::vector<GpuKind>& kinds);

// Where cuDNN attends, by the names of its proofs among `names`; and blocks of how many rows are
// graphs: as many as all proofs of fewer rows are among them, too.
std::vector<ops::ProvenAttention> attention_of(const std::vector<std::string>& names);
int64_t graph_rows_of(const std::vector<std::string>& names);

// Makes the folder where there is none. Throws Error{kEnvironment} where write_table() could not
// write there.
void make_writable(const std::string& folder, const GpuKind& kind);

// Whole, or as it was. Throws Error{kEnvironment} naming the file.
void write_table(const std::string& folder, const GpuKind& kind, const KernelTable& table);

}  // namespace atelier::tune
