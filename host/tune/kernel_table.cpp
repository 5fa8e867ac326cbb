#include "host/tune/kernel_table.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include <torch/headeronly/version.h>

#include "atelier/error.h"

#include "host/device/cuda.h"
#include "host/files/temporary_file.h"

namespace atelier::tune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json facts_of(const Machine& machine) {
  json gpus = json::array();
  for (const Machine::Gpu& gpu : machine.gpus)
    gpus.push_back({{"name", gpu.name}, {"capability", gpu.capability}});
  return {{"gpus", gpus},
          {"driver", machine.driver},
          {"libtorch", machine.libtorch},
          {"kernels", machine.kernels}};
}

json json_of(const Verdict& verdict) {
  return {{"op", verdict.op},
          {"problem", verdict.problem},
          {"composed_ms", verdict.composed_ms},
          {"fused_ms", verdict.fused_ms}};
}

std::optional<Verdict> verdict_of(const json& entry) {
  try {
    return Verdict{entry.at("op").get<std::string>(), entry.at("problem").get<std::string>(),
                   entry.at("composed_ms").get<double>(), entry.at("fused_ms").get<double>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string text_of(const json& content, int indent) {
  return content.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

// FNV-1a, as a file's name.
std::string name_of(const std::string& text) {
  uint64_t value = 14695981039346656037u;
  for (const char letter : text)
    value = (value ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  std::string name;
  for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[value >> shift & 15];
  return name;
}

}  // namespace

Machine this_machine() {
  const device::CudaStatus& status = device::open_cuda();
  Machine machine;
  machine.driver = status.driver, machine.libtorch = TORCH_VERSION;
  if (!status.usable) return machine;
  for (int i = 0; i < status.device_count; ++i) {
    const device::GpuFacts facts = device::gpu_facts(i);
    machine.gpus.push_back({facts.name, facts.capability});
  }
  machine.kernels = device::backend_identity();
  return machine;
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

std::vector<ops::ProvenAttention> attention_of(const KernelTable& table, const Machine& machine) {
  const std::vector<std::string> on = table.on();
  std::vector<ops::ProvenAttention> proven;
  for (const AttentionProof& attention : attention_proofs()) {
    if (std::ranges::find(on, attention.proof.op) == on.end()) continue;
    for (const Machine::Gpu& gpu : machine.gpus)
      proven.push_back({ops::AttentionKernel::kCudnn, gpu.capability, gpu.capability,
                        attention.head_dim, attention.is_uniform});
  }
  return proven;
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

std::string table_path(const std::string& folder, const Machine& machine) {
  return folder + "/kernels-" + name_of(facts_of(machine).dump()) + ".json";
}

std::optional<KernelTable> read_table(const std::string& folder, const Machine& machine) {
  std::ifstream file(table_path(folder, machine));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const json content = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || content.value("machine", json()) != facts_of(machine))
    return std::nullopt;
  KernelTable table;
  for (const json& entry : content.value("operators", json::array({nullptr}))) {
    const std::optional<Verdict> verdict = verdict_of(entry);
    if (!verdict) return std::nullopt;
    table.verdicts.push_back(*verdict);
  }
  return table;
}

void make_writable(const std::string& folder, const Machine& machine) {
  if (folder.empty())
    throw Error(ErrorCode::kEnvironment, "there is no folder to remember in what is found",
                "set HOME or XDG_CACHE_HOME");
  std::error_code failure;
  fs::create_directories(folder, failure);
  const files::TemporaryFile file(table_path(folder, machine));  // goes again
}

void write_table(const std::string& folder, const Machine& machine, const KernelTable& table) {
  json operators = json::array();
  for (const Verdict& verdict : table.verdicts) operators.push_back(json_of(verdict));
  const std::string text =
      text_of({{"machine", facts_of(machine)}, {"operators", operators}}, 2) + "\n";
  files::TemporaryFile file(table_path(folder, machine));
  file.write(text.data(), text.size());
  file.place();
}

}  // namespace atelier::tune
