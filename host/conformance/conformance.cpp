#include "host/conformance/conformance.h"

#include <cstring>
#include <elf.h>

#include "host/conformance/checks.h"

namespace atelier::conformance {

namespace {

// Names that a shared library defines for others, from its dynamic symbol table.
std::vector<std::string> exported_symbols(const std::string& file) {
  std::vector<std::string> names;
  const auto at = [&]<typename T>(uint64_t offset, T& value) {
    if (offset > file.size() || sizeof(T) > file.size() - offset) return false;
    std::memcpy(&value, file.data() + offset, sizeof(T));
    return true;
  };
  Elf64_Ehdr header;
  if (!at(0, header)) return names;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section, strings;
    if (!at(header.e_shoff + i * sizeof(section), section)) return names;
    if (section.sh_type != SHT_DYNSYM) continue;
    if (!at(header.e_shoff + section.sh_link * sizeof(strings), strings)) return names;
    for (uint64_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      if (!at(section.sh_offset + offset, symbol)) return names;
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
      const uint64_t begin = strings.sh_offset + symbol.st_name;
      if (begin < file.size()) names.push_back(file.substr(begin, file.find('\0', begin) - begin));
    }
  }
  return names;
}

}  // namespace

void check_door(const plugins::Plugin& plugin, const std::function<void(const Finding&)>& report) {
  const auto add = [&](const std::string& check, const std::string& problem) {
    report({check, problem.empty(), problem});
  };
  std::string problem;
  if (plugin.file.family != plugin.family->name())
    problem = "the note says '" + plugin.file.family + "', the family '" +
              std::string(plugin.family->name()) + "'";
  if (plugin.file.version.empty()) problem = "the note has no version";
  add("door: note and family agree", problem);
  const bool is_same = plugins::open_plugin(plugin.file.path, "").family == plugin.family;
  add("door: opening again gives the same family", is_same ? "" : "another one");
  const std::vector<std::string> symbols = exported_symbols(read_file(plugin.file.path));
  problem.clear();
  if (symbols != std::vector<std::string>{"atelier_plugin"}) {
    problem = "exports " + std::to_string(symbols.size()) + " symbols:";
    for (size_t i = 0; i < symbols.size() && i < 4; ++i) problem += " " + symbols[i];
    problem += "; build it with atelier_add_plugin()";
  }
  add("door: one symbol is exported", problem);
}

void check_family(const ModelFamily& family, const std::function<void(const Finding&)>& report,
                  at::Device device) {
  Subject subject(family, report, device);
  check_declarations(subject);
  if (subject.parts.empty()) return;
  check_weights(subject);
  check_denoisers(subject);
  check_gradients(subject);
  check_controls(subject);
  check_encoders(subject);
  check_dry_runs(subject);
}

std::vector<Finding> check_family(const ModelFamily& family) {
  std::vector<Finding> findings;
  check_family(family, [&](const Finding& finding) { findings.push_back(finding); });
  return findings;
}

}  // namespace atelier::conformance
