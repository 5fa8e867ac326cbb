// What --help prints.
#include <algorithm>

#include "formats/utf8.h"
#include "host/flags/flags.h"
#include "host/flags/short_names.h"

namespace atelier::flags {
namespace {

constexpr size_t kMostFlagColumns = 36;  // longer flags have their help on the next line

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size(); at += formats::decode_utf8(text, at).length) ++columns;
  return columns;
}

// `text` behind `line`, in lines of at most kHelpWidth columns that are cut at spaces and behind
// `|`; those after the first stand at `indent`.
std::string wrap(std::string line, std::string_view text, size_t indent) {
  std::string out;
  while (!text.empty()) {
    size_t end = std::min(text.find_first_of(" |"), text.size());
    if (end < text.size() && text[end] == '|') ++end;
    const std::string_view word = text.substr(0, end);
    if (columns_of(line) + columns_of(word) > kHelpWidth && line.size() > indent) {
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = std::string(indent, ' ');
    }
    line += word;
    text.remove_prefix(end);
    if (!text.starts_with(' ')) continue;
    line += ' ';
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return out + line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string help_of(const FlagSpec& flag) {
  std::string text = flag.help;
  if (const std::string name = short_name(flag.name); !name.empty()) text += " (or " + name + ")";
  if (flag.required) text += " (required)";
  if (flag.repeated) text += " (may be repeated)";
  if (flag.preset && !flag.preset->empty()) text += " [" + *flag.preset + "]";
  return text;
}

}  // namespace

std::string value_text(const FlagSpec& flag) {
  if (!flag.value_name.empty()) return " " + flag.value_name;
  switch (flag.kind) {
    case FlagKind::kInteger:
    case FlagKind::kSeed:
      return " N";
    case FlagKind::kIntegers:
      return " N,N";
    case FlagKind::kReal:
      return " X";
    case FlagKind::kReals:
      return " X,X";
    case FlagKind::kJson:
      return " JSON";
    case FlagKind::kList:
      return " A,B";
    case FlagKind::kFlag:
      return "";
    case FlagKind::kText:
      break;
  }
  if (flag.choices.empty()) return " TEXT";
  std::string out = " ";
  for (const std::string& choice : flag.choices) out += (out.size() > 1 ? "|" : "") + choice;
  return out;
}

std::string help_text(const CommandSpec& command) {
  std::string out = wrap("",
                         "atelier " + command.name +
                             (command.positional.empty() ? "" : " " + command.positional) +
                             (command.flags.empty() ? "" : " [flags]"),
                         2);
  for (size_t begin = 0; begin <= command.summary.size();) {
    const size_t end = std::min(command.summary.find('\n', begin), command.summary.size());
    out += wrap("", std::string_view(command.summary).substr(begin, end - begin), 0);
    begin = end + 1;
  }
  size_t width = 0;
  for (const FlagSpec& flag : command.flags)
    width = std::max(width, flag.name.size() + value_text(flag).size());
  const size_t indent = std::min(width, kMostFlagColumns) + 6;
  std::string group;
  for (const FlagSpec& flag : command.flags) {
    if (flag.group != group) out += "\n" + (group = flag.group) + "\n";
    std::string line = "  --" + flag.name + value_text(flag);
    if (line.size() + 2 > indent) {
      out += wrap("", line, /*indent=*/6);
      line.clear();
    }
    line.resize(indent, ' ');
    out += wrap(line, help_of(flag), indent);
  }
  return out;
}

}  // namespace atelier::flags
