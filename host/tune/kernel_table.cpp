#include "host/tune/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>

#include "atelier/error.h"
#include "atelier/host/device_traits.h"

#include "host/device/cuda.h"
#include "host/files/content_hash.h"
#include "host/files/temporary_file.h"
#include "host/report/text.h"
#include "memory/graph_runner.h"

namespace atelier::tune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json facts_of(const GpuKind& kind) {
  return {{"gpu", kind.name},
          {"capability", kind.capability},
          {"driver", kind.driver},
          {"libtorch", kind.libtorch},
          {"kernels", kind.kernels}};
}

json json_of(const Verdict& verdict) {
  return {{"op", verdict.op},
          {"problem", verdict.problem},
          {"composed_ms", verdict.composed_ms},
          {"fused_ms", verdict.fused_ms},
          {"is_unknown", verdict.is_unknown}};
}

std::optional<Verdict> verdict_of(const json& entry) {
  try {
    return Verdict{.op = entry.at("op").get<std::string>(),
                   .problem = entry.at("problem").get<std::string>(),
                   .is_unknown = entry.at("is_unknown").get<bool>(),
                   .composed_ms = entry.at("composed_ms").get<double>(),
                   .fused_ms = entry.at("fused_ms").get<double>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_rate(std::string_view op) {
  const auto rates = rate_proofs();
  return std::ranges::find(rates, op, &KernelProof::op) != rates.end();
}

std::string text_of(const json& content, int indent) {
  return content.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace

std::vector<GpuKind> kinds_here() {
  const device::CudaStatus& status = device::open_cuda();
  std::vector<GpuKind> kinds;
  for (int i = 0; status.usable && i < status.device_count; ++i) {
    const device::GpuFacts facts = device::gpu_facts(i);
    const bool is_known = std::ranges::any_of(kinds, [&](const GpuKind& kind) {
      return kind.name == facts.name && kind.capability == facts.capability;
    });
    if (!is_known)
      kinds.push_back({facts.name, facts.capability, status.driver, TORCH_VERSION,
                       device::backend_identity(), i});
  }
  return kinds;
}

std::string verdict_line(const Verdict& verdict) {
  return text_of(json_of(verdict), -1);
}

std::optional<Verdict> read_verdict(std::string_view line) {
  const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
  return verdict_of(entry);
}

std::vector<std::string> KernelTable::on() const {
  std::vector<std::string> names;
  for (const Verdict& verdict : verdicts) {
    if (verdict.is_on() && !is_rate(verdict.op)) names.push_back(verdict.op);
  }
  return names;
}

size_t KernelTable::choices() const {
  return static_cast<size_t>(
      std::ranges::count_if(verdicts, [](const Verdict& verdict) { return !is_rate(verdict.op); }));
}

const Verdict* KernelTable::find(std::string_view op) const {
  const auto found = std::ranges::find(verdicts, op, &Verdict::op);
  return found == verdicts.end() ? nullptr : &*found;
}

std::vector<std::string> KernelTable::missing(std::vector<std::string> names) const {
  std::erase_if(names, [&](const std::string& name) { return find(name) != nullptr; });
  return names;
}

Proven together(const std::vector<KernelTable>& tables) {
  Proven proven = {.on = tables.front().on(), .wrong = {}};
  for (const KernelTable& table : tables) {
    const std::vector<std::string> on = table.on();
    std::erase_if(proven.on, [&](const std::string& name) { return !has(on, name); });
    for (const Verdict& verdict : table.verdicts) {
      if (!verdict.problem.empty() && !is_rate(verdict.op) && !has(proven.wrong, verdict.op))
        proven.wrong.push_back(verdict.op);
    }
  }
  return proven;
}

std::vector<std::string> right_of(std::vector<std::string> named,
                                  const std::vector<std::string>& wrong) {
  std::erase_if(named, [&](const std::string& name) { return has(wrong, name); });
  return named;
}

std::string choice_text(const std::optional<std::vector<std::string>>& named,
                        const std::vector<std::string>& wrong) {
  return text_of({{"named", named ? json(*named) : json()}, {"wrong", wrong}}, -1);
}

std::optional<std::vector<std::string>> agreed_choice(const std::vector<std::string>& texts) {
  const json first = json::parse(texts.front()).at("named");
  if (first.is_null()) return std::nullopt;
  auto named = first.get<std::vector<std::string>>();
  for (const std::string& text : texts)
    named =
        right_of(std::move(named), json::parse(text).at("wrong").get<std::vector<std::string>>());
  return named;
}

std::vector<ops::ProvenAttention> attention_of(const std::vector<std::string>& names) {
  constexpr int kNewest = std::numeric_limits<int>::max();
  std::vector<ops::ProvenAttention> proven;
  for (const AttentionProof& attention : attention_proofs()) {
    if (has(names, attention.proof.op))
      proven.push_back(
          {ops::AttentionKernel::kCudnn, 0, kNewest, attention.head_dim, attention.is_uniform});
  }
  return proven;
}

int64_t graph_rows_of(const std::vector<std::string>& names) {
  int64_t rows = 0;
  for (const GraphProof& graphs : graph_proofs()) {
    if (!has(names, graphs.proof.op)) break;
    rows = graphs.rows;
  }
  return rows;
}

void use(const std::vector<std::string>& names) {
  ops::set_proven_kernels(at::kCUDA, names);
  ops::set_proven_attention(attention_of(names));
  memory::set_proven_graph_rows(graph_rows_of(names));
}

std::string slow_products(const KernelTable& table, std::string_view product) {
  const Verdict* const products = table.find(product);
  if (products == nullptr || !products->problem.empty()) return {};
  if (products->fused_ms < products->composed_ms) return {};
  return c10::str(product, ": ", report::number_text(products->fused_ms), " ms beside ",
                  report::number_text(products->composed_ms), " ms in bfloat16");
}

double copy_bytes_per_second(at::Device device) {
  if (!device.is_cuda()) return 0;
  const device::GpuFacts facts = device::gpu_facts(device.index());
  for (const GpuKind& kind : kinds_here()) {
    if (kind.name != facts.name || kind.capability != facts.capability) continue;
    const auto table = read_table(cache_folder(), kind);
    const Verdict* const copies = table ? table->find(kPinnedCopies) : nullptr;
    if (copies != nullptr && copies->problem.empty())
      return static_cast<double>(copied_bytes()) / (copies->fused_ms * 1e-3);
  }
  return 0;
}

std::string summary_of(const KernelTable& table) {
  std::string on, off, rates;
  for (const Verdict& verdict : table.verdicts) {
    if (is_rate(verdict.op)) {
      if (verdict.problem.empty())
        rates += (rates.empty() ? "; measured: " : ", ") + verdict.op + " " +
                 report::number_text(std::round(100 * verdict.composed_ms / verdict.fused_ms)) +
                 " %";
      continue;
    }
    std::string& names = verdict.is_on() ? on : off;
    names += (names.empty() ? "" : ", ") + verdict.op;
    if (!verdict.problem.empty()) {
      names += " (" + verdict.problem + ")";
    } else if (!verdict.is_on()) {
      names += " (no faster)";
    }
  }
  return (on.empty() ? "none" : on) + (off.empty() ? "" : "; not in use: " + off) + rates;
}

std::string cache_folder() {
  const char* const cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/atelier";
  const char* const home = getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/atelier" : "";
}

std::string table_path(const std::string& folder, const GpuKind& kind) {
  const std::string facts = files::ContentHash().add(text_of(facts_of(kind), -1)).hex();
  return (fs::path(folder) / ("kernels-" + facts + ".json")).string();
}

std::optional<KernelTable> read_table(const std::string& folder, const GpuKind& kind) {
  if (folder.empty()) return std::nullopt;
  std::ifstream file(table_path(folder, kind));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const json content = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || content.value("of", json()) != facts_of(kind)) return std::nullopt;
  KernelTable table;
  for (const json& entry : content.value("operators", json::array({nullptr}))) {
    const std::optional<Verdict> verdict = verdict_of(entry);
    if (!verdict) return std::nullopt;
    table.verdicts.push_back(*verdict);
  }
  return table;
}

std::optional<std::vector<KernelTable>> read_tables(const std::string& folder,
                                                    const std::vector<GpuKind>& kinds) {
  std::vector<KernelTable> tables;
  for (const GpuKind& kind : kinds) {
    std::optional<KernelTable> table = read_table(folder, kind);
    if (!table) return std::nullopt;
    tables.push_back(std::move(*table));
  }
  return tables;
}

void make_writable(const std::string& folder, const GpuKind& kind) {
  if (folder.empty())
    throw Error(ErrorCode::kEnvironment, "there is no folder to remember in what is found",
                "set HOME or XDG_CACHE_HOME");
  std::error_code failure;
  fs::create_directories(folder, failure);
  const files::TemporaryFile file(table_path(folder, kind));  // goes again
}

void write_table(const std::string& folder, const GpuKind& kind, const KernelTable& table) {
  json operators = json::array();
  for (const Verdict& verdict : table.verdicts) operators.push_back(json_of(verdict));
  const std::string text = text_of({{"of", facts_of(kind)}, {"operators", operators}}, 2) + "\n";
  files::TemporaryFile file(table_path(folder, kind));
  file.write(text.data(), text.size());
  file.place();
}

}  // namespace atelier::tune
