#include "host/tune/kernel_table.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include <torch/headeronly/version.h>

#include "atelier/error.h"
#include "atelier/host/device_traits.h"

#include "host/device/cuda.h"
#include "host/files/content_hash.h"
#include "host/files/temporary_file.h"

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
    if (verdict.is_on()) names.push_back(verdict.op);
  }
  return names;
}

std::vector<std::string> KernelTable::missing(std::vector<std::string> names) const {
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::find(verdicts, name, &Verdict::op) != verdicts.end();
  });
  return names;
}

Proven together(const std::vector<KernelTable>& tables) {
  Proven proven = {.on = tables.front().on(), .wrong = {}};
  for (const KernelTable& table : tables) {
    const std::vector<std::string> on = table.on();
    std::erase_if(proven.on, [&](const std::string& name) { return !has(on, name); });
    for (const Verdict& verdict : table.verdicts) {
      if (!verdict.problem.empty() && !has(proven.wrong, verdict.op))
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

void use(const std::vector<std::string>& names) {
  ops::set_proven_kernels(at::kCUDA, names);
  ops::set_proven_attention(attention_of(names));
}

std::string told(const KernelTable& table) {
  std::string on, off;
  for (const Verdict& verdict : table.verdicts) {
    std::string& names = verdict.is_on() ? on : off;
    names += (names.empty() ? "" : ", ") + verdict.op;
    if (!verdict.problem.empty()) {
      names += " (" + verdict.problem + ")";
    } else if (!verdict.is_on()) {
      names += " (no faster)";
    }
  }
  if (on.empty()) return "none; not in use: " + off;
  return on + (off.empty() ? "" : "; not in use: " + off);
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
