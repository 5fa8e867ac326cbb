// Flags that are bound to variables: a row says what a flag is called, what it means, which values
// it may have, and where its value goes.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/flags/flags.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::flags {

// Which numbers a flag takes.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool takes_low = true, takes_high = true;

  std::string text() const;  // "[0, 1)"
};
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
inline constexpr Range kPositive = {0, kNoLimit, false, false};    // of parts and rates
inline constexpr Range kNotNegative = {0, kNoLimit, true, false};  // the same
inline constexpr Range kPart = {0, 1};
inline constexpr Range kPartBelowOne = {0, 1, true, false};
constexpr Range at_least(double low) {
  return {low, kNoLimit};
}
constexpr Range between(double low, double high) {
  return {low, high};
}

// Words of a flag, and what each stands for.
template <typename T>
using Choices = std::vector<std::pair<std::string_view, T>>;

// Presets are what the variables hold when a row is added. The variables outlive the table.
class Table {
 public:
  using Set = std::function<void(const ParsedFlags&)>;

  // Heading of the rows that follow.
  Table& group(std::string name);

  // A row of any kind. `set` may be empty: somebody else reads the value.
  Table& add(FlagSpec spec, Set set = {}, Range range = {});
  Table& add(std::vector<FlagSpec> specs);

  // `value_name` as in FlagSpec: "FILE", "FOLDER".
  Table& text(std::string name, std::string& value, std::string help, std::string value_name = {});
  // One of a few words.
  Table& word(std::string name, std::string& value, std::vector<std::string> choices,
              std::string help);
  Table& list(std::string name, std::vector<std::string>& value, std::string help);
  // Whole numbers; without a preset where there are none.
  Table& integers(std::string name, std::vector<int64_t>& value, std::string help,
                  Range range = {});
  Table& seed(std::string name, uint64_t& value, std::string help, Range range = {});
  Table& flag(std::string name, bool& value, std::string help);
  // A flag that turns on what another one does.
  Table& also(std::string name, bool& value, std::string help);

  // One of a few words that stand for values.
  template <typename T>
  Table& choice(std::string name, T& value, Choices<T> choices, std::string help) {
    FlagSpec spec = {.name = std::move(name), .help = std::move(help)};
    for (const auto& [word, meant] : choices) {
      spec.choices.emplace_back(word);
      if (meant == value) spec.preset = word;
    }
    return add(spec, [&value, choices, name = spec.name](const ParsedFlags& flags) {
      const std::string text = flags.text(name);
      for (const auto& [word, meant] : choices) {
        if (word == text) value = meant;
      }
    });
  }

  // A whole number, or a real one: as the variable. An optional has no preset where it is empty.
  template <typename T>
  Table& number(std::string name, T& value, std::string help, Range range = {}) {
    FlagSpec spec = {.name = std::move(name),
                     .kind = is_whole<T> ? FlagKind::kInteger : FlagKind::kReal,
                     .help = std::move(help),
                     .preset = preset_of(value)};
    return add(
        spec,
        [&value, name = spec.name](const ParsedFlags& flags) {
          if constexpr (is_whole<T>) {
            assign(value, flags.find_integer(name));
          } else {
            assign(value, flags.find_real(name));
          }
        },
        range);
  }

  // Leaves out rows: of a command that has most of another one's.
  Table& without(const std::function<bool(const FlagSpec&)>& is_left_out);

  std::vector<FlagSpec> specs() const;
  // Gives the variables the values of `flags`, of a command with specs(). Numbers out of their
  // range, and errors that the `set` of a row throws, become problems.
  void read(const ParsedFlags& flags, report::Problems& problems) const;

 private:
  struct Row {
    FlagSpec spec;
    Set set;
    Range range;
  };

  static void check(const Row& row, const ParsedFlags& flags, report::Problems& problems);

  template <typename T>
  static constexpr bool is_whole = std::integral<T> || std::same_as<T, std::optional<int64_t>>;

  template <typename T>
  static std::optional<std::string> preset_of(const T& value) {
    return report::number_text(value);
  }
  template <typename T>
  static std::optional<std::string> preset_of(const std::optional<T>& value) {
    return value ? std::optional(report::number_text(*value)) : std::nullopt;
  }

  template <typename T, typename Given>
  static void assign(T& value, const std::optional<Given>& given) {
    if constexpr (std::same_as<T, std::optional<Given>>) {
      value = given;
    } else {
      value = static_cast<T>(*given);
    }
  }

  std::vector<Row> rows_;
  std::string group_;
};

}  // namespace atelier::flags
