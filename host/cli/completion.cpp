// atelier completion: scripts that make shells complete the program's commands, flags and values.
// They are made of the same tables as the help.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {
namespace {

// What may stand in one place.
struct Offer {
  std::vector<std::string> words;
  bool files = false, folders = false;
};

// One command, "train" or "lora info".
struct Completed {
  std::string name, summary;
  std::vector<flags::FlagSpec> flags;  // with those of every family
  Offer positional;
  bool has_positional = false;
};

struct Tables {
  std::vector<std::string> families;
  std::vector<Completed> commands;
};

// The words of `text` that are meant as they stand, and what the others stand for.
Offer offer_of(const std::string& text, const std::vector<std::string>& families) {
  Offer offer;
  offer.files = text.find("FILE") != std::string::npos;
  offer.folders = text.find("FOLDER") != std::string::npos;
  if (text.find("FAMILY") != std::string::npos) offer.words = families;
  std::string word;
  for (const char c : text + " ") {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      word += c;
    } else if (!word.empty()) {
      offer.words.push_back(std::exchange(word, {}));
    }
  }
  return offer;
}

Offer offer_of(const flags::FlagSpec& flag, const std::vector<std::string>& families) {
  if (flag.kind == flags::FlagKind::kFlag) return {{"true", "false"}};
  if (!flag.choices.empty()) return {flag.choices};
  return offer_of(flag.value_name, families);
}

Tables make_tables() {
  Tables tables;
  std::vector<flags::CommandSpec> specs = command_specs(nullptr);
  for (const plugins::Plugin* plugin : plugins::open_plugins("")) {
    report::Problems ignored;  // the others are completed all the same
    ignored.collect([&] {
      const auto own = command_specs(plugin->family);
      for (size_t i = 0; i < specs.size(); ++i) {
        for (const flags::FlagSpec& flag : own[i].flags) {
          const bool is_there =
              std::any_of(specs[i].flags.begin(), specs[i].flags.end(),
                          [&](const flags::FlagSpec& other) { return other.name == flag.name; });
          if (!is_there) specs[i].flags.push_back(flag);
        }
      }
      tables.families.push_back(plugin->file.family);
    });
  }
  for (flags::CommandSpec& spec : specs) {
    spec.flags.push_back(
        {.name = "help", .kind = flags::FlagKind::kFlag, .help = "lists the flags"});
    tables.commands.push_back({spec.name, spec.summary.substr(0, spec.summary.find('\n')),
                               std::move(spec.flags), offer_of(spec.positional, tables.families),
                               !spec.positional.empty()});
  }
  return tables;
}

// "lora" of "lora info"; empty for a command without others below it.
std::string group_of(const Completed& command) {
  const size_t space = command.name.find(' ');
  return space == std::string::npos ? "" : command.name.substr(0, space);
}

// Names of the commands below each group.
std::map<std::string, std::vector<const Completed*>> groups_of(const Tables& tables) {
  std::map<std::string, std::vector<const Completed*>> groups;
  for (const Completed& command : tables.commands) {
    if (const std::string group = group_of(command); !group.empty())
      groups[group].push_back(&command);
  }
  return groups;
}

std::string last_word(const std::string& name) {
  return name.substr(name.find(' ') + 1);
}

std::string join(const std::vector<std::string>& words, const char* between = " ") {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
  return out;
}

// `text` between single quotes.
std::string quoted(const std::string& text, const char* quote) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out + "'";
}

std::string command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return join(names);
}

// ---- bash ----

// What bash does to offer it: sets words, files and folders.
std::string bash_offer(const Offer& offer) {
  std::vector<std::string> parts;
  if (!offer.words.empty()) parts.push_back("words=\"" + join(offer.words) + "\"");
  if (offer.files) parts.emplace_back("files=1");
  if (offer.folders) parts.emplace_back("folders=1");
  return parts.empty() ? ":" : join(parts);
}

std::string bash_command(const Completed& command, const std::vector<std::string>& families) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> by_offer;
  for (const flags::FlagSpec& flag : command.flags) {
    names.push_back("--" + flag.name);
    if (flag.kind != flags::FlagKind::kFlag)
      by_offer[bash_offer(offer_of(flag, families))].push_back("--" + flag.name);
  }
  std::string out = "    '" + command.name + "')\n      flags=\"" + join(names) + "\"\n";
  out += "      case $previous in\n";
  for (const auto& [offer, flags] : by_offer)
    out += "        " + join(flags, "|") + ") " + offer + " ;;\n";
  return out + "        *) flag= ; " + bash_offer(command.positional) + " ;;\n      esac ;;\n";
}

std::string bash_script(const Tables& tables) {
  std::string out = R"(# Completion of atelier in bash, made by `atelier completion bash`.
_atelier() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[1]} flags= words= files= folders= flag=1
  COMPREPLY=()
  # --flag=value is three words.
  if [[ $word == = ]]; then
    word=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W ")" +
                    command_names() + R"( --help --version" -- "$word"))
    return
  fi
)";
  for (const auto& [group, below] : groups_of(tables)) {
    std::vector<std::string> names;
    for (const Completed* command : below) names.push_back(last_word(command->name));
    out += "  if [[ $command == " + group + " ]]; then\n    if ((COMP_CWORD == 2)); then\n" +
           "      COMPREPLY=($(compgen -W \"" + join(names) + " --help\" -- \"$word\"))\n" +
           "      return\n    fi\n    command+=\" ${COMP_WORDS[2]}\"\n  fi\n";
  }
  out += "  case $command in\n";
  for (const Completed& command : tables.commands) out += bash_command(command, tables.families);
  out += R"(    *) return ;;
  esac
  if [[ -z $flag && $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
    return
  fi
  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ -n $files || -n $folders ]]; then
    compopt -o filenames 2> /dev/null
    local path
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(
      if [[ -n $files ]]; then compgen -f -- "$word"; else compgen -d -- "$word"; fi)
  elif [[ -z $flag && -z $words ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  fi
}
complete -F _atelier atelier
)";
  return out;
}

// ---- zsh ----

// A text in a specification of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const Offer& offer) {
  if (offer.files && !offer.words.empty()) return "{compadd -- " + join(offer.words) + "; _files}";
  if (offer.files) return "_files";
  if (offer.folders) return "_files -/";
  return offer.words.empty() ? " " : "(" + join(offer.words) + ")";
}

std::string zsh_command(const Completed& command, const std::vector<std::string>& families) {
  std::string out = "    '" + command.name + "')\n      _arguments";
  for (const flags::FlagSpec& flag : command.flags) {
    const bool is_bare = flag.kind == flags::FlagKind::kFlag;
    std::string spec = (flag.repeated ? "*--" : "--") + flag.name + (is_bare ? "" : "=") + "[" +
                       zsh_text(flag.help) + "]";
    if (!is_bare) spec += ":value:" + zsh_action(offer_of(flag, families));
    out += " \\\n        " + quoted(spec, "'\\''");
  }
  if (command.has_positional)
    out += " \\\n        " + quoted("*:argument:" + zsh_action(command.positional), "'\\''");
  return out + " ;;\n";
}

std::string zsh_script(const Tables& tables) {
  std::string out =
      "#compdef atelier\n# Completion of atelier in zsh, made by `atelier completion zsh`.\n"
      "_atelier() {\n  local command=$words[2]\n  local -a names\n  if ((CURRENT == 2)); then\n"
      "    names=(";
  for (const Command& command : commands())
    out += "\n      " + quoted(std::string(command.name) + ":" + zsh_text(command.help), "'\\''");
  out += ")\n    _describe command names\n    return\n  fi\n";
  for (const auto& [group, below] : groups_of(tables)) {
    out += "  if [[ $command == " + group + " ]]; then\n    if ((CURRENT == 3)); then\n" +
           "      names=(";
    for (const Completed* command : below)
      out += "\n        " +
             quoted(last_word(command->name) + ":" + zsh_text(command->summary), "'\\''");
    out +=
        ")\n      _describe command names\n      return\n    fi\n"
        "    command=\"$command $words[3]\"\n    shift words\n    ((CURRENT--))\n  fi\n";
  }
  out += "  shift words\n  ((CURRENT--))\n  case $command in\n";
  for (const Completed& command : tables.commands) out += zsh_command(command, tables.families);
  return out +
         "  esac\n}\nif [[ $funcstack[1] == _atelier ]]; then\n  _atelier \"$@\"\nelse\n"
         "  compdef _atelier atelier\nfi\n";
}

// ---- fish ----

std::string fish_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return quoted(escaped, "\\'");
}

std::string fish_offer(const Offer& offer) {
  std::string words = join(offer.words);
  if (offer.folders && !offer.files)
    words += std::string(words.empty() ? "" : " ") + "(__fish_complete_directories)";
  return words.empty() ? "" : " -a " + fish_text(words);
}

std::string fish_command(const Completed& command, const std::vector<std::string>& families) {
  const std::string at = "complete -c atelier -n '__atelier_at " + command.name + "'";
  std::string out;
  if (command.has_positional)
    out += at + (command.positional.files ? " -F" : "") + fish_offer(command.positional) + "\n";
  for (const flags::FlagSpec& flag : command.flags) {
    out += at + " -l " + flag.name;
    if (flag.kind != flags::FlagKind::kFlag) {
      const Offer offer = offer_of(flag, families);
      out += (offer.files ? " -r -F" : " -x") + fish_offer(offer);
    }
    out += " -d " + fish_text(flag.help) + "\n";
  }
  return out;
}

std::string fish_script(const Tables& tables) {
  std::string out = R"(# Completion of atelier in fish, made by `atelier completion fish`.
# Whether the line begins with these words; __atelier_is, whether it holds nothing else yet.
function __atelier_at
    set -l words (commandline -opc)
    set -l last (math (count $argv) + 1)
    test (count $words) -ge $last; and test "$words[2..$last]" = "$argv"
end
function __atelier_is
    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __atelier_at $argv
end
complete -c atelier -f
)";
  for (const Command& command : commands())
    out += "complete -c atelier -n 'test (count (commandline -opc)) -eq 1' -a " +
           std::string(command.name) + " -d " + fish_text(command.help) + "\n";
  for (const auto& [group, below] : groups_of(tables)) {
    for (const Completed* command : below)
      out += "complete -c atelier -n '__atelier_is " + group + "' -a " + last_word(command->name) +
             " -d " + fish_text(command->summary) + "\n";
  }
  for (const Completed& command : tables.commands) out += fish_command(command, tables.families);
  return out;
}

}  // namespace

flags::CommandSpec completion_command() {
  flags::CommandSpec command{
      "completion",
      "Prints a script that makes a shell complete commands, flags, values, paths "
      "and families.\nbash: source <(atelier completion bash); docs/building.md "
      "says where shells look for it."};
  command.positional = "bash|zsh|fish";
  command.min_positional = 1;
  command.max_positional = 1;
  return command;
}

int run_completion(std::span<const std::string> arguments) {
  const flags::CommandSpec command = completion_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const std::string shell = flags::parse_flags(command, arguments).positional().front();
  const std::map<std::string, std::string (*)(const Tables&)> scripts = {
      {"bash", bash_script}, {"fish", fish_script}, {"zsh", zsh_script}};
  const auto script = scripts.find(shell);
  if (script == scripts.end()) {
    std::vector<std::string> names;
    for (const auto& [name, make] : scripts) names.push_back(name);
    const std::string nearest = report::nearest_name(shell, names);
    throw Error(ErrorCode::kInvalidArgument,
                "completion: there is none for " + report::list_names({shell}) + ", only for " +
                    report::list_names(names),
                nearest.empty() ? "atelier completion bash" : "did you mean " + nearest + "?");
  }
  std::fputs(script->second(make_tables()).c_str(), stdout);
  return 0;
}

}  // namespace atelier::cli
