// Command-line flags: declared as a table, checked all at once, and read by name.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/report/problems.h"

namespace atelier::flags {

// kIntegers, kReals: numbers between commas. kList: what formats::parse_list() reads. kSeed: a
// whole number from 0 to 2^64 - 1, or -1.
enum class FlagKind { kText, kInteger, kIntegers, kReal, kReals, kFlag, kJson, kList, kSeed };

struct FlagSpec {
  std::string name;  // without dashes: "num_inference_steps"
  FlagKind kind = FlagKind::kText;
  std::string help;  // one line
  std::optional<std::string> preset =
      {};  // the value when the flag is not given, as it would be written
  bool required = false;
  bool repeated = false;                  // may be given several times; see ParsedFlags::texts
  std::vector<std::string> choices = {};  // kText only: the values that are allowed; empty: any
  bool by_component = false;  // also "choice,component=choice", each part of which is checked
  // What stands for the value in the help; shells complete paths where it holds FILE or FOLDER, and
  // families where it holds FAMILY. Empty: the kind's own word.
  std::string value_name = {};
  std::string group = {};  // heading in the help; flags of one group stand together
};

// A flag that other programs have: it is not taken, but answered with what to do here.
struct OtherFlag {
  std::string_view name;
  bool has_value;       // one, or several up to the next flag
  std::string use;      // "use --cfg_scale"
  std::string of = {};  // whose it is, where one program is meant: "kohya's trainers"
};

struct CommandSpec {
  std::string name;     // "inspect"
  std::string summary;  // one line
  std::vector<FlagSpec> flags = {};
  std::string positional =
      {};  // what arguments without a flag are, "FILE|DIR..."; empty: there are none
  int min_positional = 0;
  int max_positional = 1'000'000;
  std::vector<OtherFlag> others = {};
  bool lacks_family = false;  // a family would have flags of its own
};

// null: the command has none of that name.
const FlagSpec* find_flag(const CommandSpec& command, std::string_view name);

std::vector<std::string> names_of(const CommandSpec& command);

// A flag's value from elsewhere than the command line: a file, an earlier run.
struct GivenValue {
  std::string name;   // of the flag
  std::string text;   // as it would be written on the command line
  std::string place;  // names it in messages: "run.toml:3: learning_rate"
};

// The flags of one call. Getters throw Error{kInternal} for a flag that the command does not
// declare.
class ParsedFlags {
 public:
  // Whether the command declares it.
  bool has(std::string_view name) const { return values_.contains(name); }

  // The user gave it; presets do not count.
  bool is_given(std::string_view name) const;

  // Names the value in messages: "--learning_rate", or the place of its GivenValue.
  std::string place(std::string_view name) const;

  // The value of the preset where the user gave none. They throw Error{kInternal} when there is
  // neither.
  std::string text(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  nlohmann::json json(std::string_view name) const;
  // The value of a kSeed; nullopt stands for -1.
  std::optional<uint64_t> seed(std::string_view name) const;
  // Given as `--name` or `--name=true`.
  bool flag(std::string_view name) const;

  // nullopt where there is neither value nor preset.
  std::optional<std::string> find_text(std::string_view name) const;
  std::optional<int64_t> find_integer(std::string_view name) const;
  std::optional<double> find_real(std::string_view name) const;

  // Every value of a repeated flag, in order.
  std::vector<std::string> texts(std::string_view name) const;

  // The numbers of a kIntegers, as they are written.
  std::vector<int64_t> integers(std::string_view name) const;
  // The numbers of a kReals.
  std::vector<double> reals(std::string_view name) const;

  // The texts of a kList.
  std::vector<std::string> list(std::string_view name) const;

  const std::vector<std::string>& positional() const { return positional_; }

 private:
  friend class Parser;
  struct Value {
    std::vector<std::string> texts;
    bool given = false;
    std::string place = {};  // empty: the command line
  };
  const Value& value(std::string_view name) const;

  std::map<std::string, Value, std::less<>> values_;
  std::vector<std::string> positional_;
};

// Reads `--flag value` and `--flag=value`. Values may begin with a dash (`--cfg_scale -1`) unless
// they name a flag. Throws one Error{kInvalidArgument} that names every mistake: unknown flags and
// values with the nearest known one, values that do not parse, required flags that are missing.
ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments);

// Parses with values for flags that the command line leaves out: of those with one name the first
// counts. Mistakes become problems, and a flag whose value is wrong keeps its preset. The values'
// names are flags of the command.
ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments,
                        std::span<const GivenValue> below, report::Problems& problems);

// The value of one flag before the command's flags are known: --plugin brings flags of its own.
// nullopt: not given.
std::optional<std::string> peek_flag(std::span<const std::string> arguments, std::string_view name);

// True when `--help` or `-h` is among the arguments.
bool wants_help(std::span<const std::string> arguments);

// Usage, summary and the flags, in lines of at most kHelpWidth columns.
inline constexpr size_t kHelpWidth = 100;
std::string help_text(const CommandSpec& command);

// What stands behind the flag in the help: " N", " auto|cpu", "" where it takes no value.
std::string value_text(const FlagSpec& flag);

// What other programs' word for one of `choices` is here: "bfloat16" of "bf16". Empty: it is none.
std::string known_word(const std::string& text, const std::vector<std::string>& choices);

// What a text that is not among `choices` was probably meant to be. Empty: nothing.
std::string nearest_choice(const std::string& text, const std::vector<std::string>& choices);

}  // namespace atelier::flags
