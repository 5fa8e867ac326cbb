#include "host/flags/table.h"

namespace atelier::flags {

std::string Range::text() const {
  std::string text(1, takes_low ? '[' : '(');
  text.append(report::number_text(low)).append(", ").append(report::number_text(high));
  text.push_back(takes_high ? ']' : ')');
  return text;
}

Table& Table::group(std::string name) {
  group_ = std::move(name);
  return *this;
}

Table& Table::add(FlagSpec spec, Set set, Range range) {
  spec.group = group_;
  rows_.push_back({std::move(spec), std::move(set), range});
  return *this;
}

Table& Table::add(std::vector<FlagSpec> specs) {
  for (FlagSpec& spec : specs) add(std::move(spec));
  return *this;
}

Table& Table::text(std::string name, std::string& value, std::string help, std::string value_name) {
  return add({.name = name, .help = help, .preset = value, .value_name = value_name},
             [&value, name](const ParsedFlags& flags) { value = flags.text(name); });
}

Table& Table::word(std::string name, std::string& value, std::vector<std::string> choices,
                   std::string help) {
  return add({.name = name, .help = help, .preset = value, .choices = choices},
             [&value, name](const ParsedFlags& flags) { value = flags.text(name); });
}

Table& Table::list(std::string name, std::vector<std::string>& value, std::string help) {
  std::string preset;
  for (const std::string& part : value) preset += (preset.empty() ? "" : ",") + part;
  return add({.name = name, .kind = FlagKind::kList, .help = help, .preset = preset},
             [&value, name](const ParsedFlags& flags) { value = flags.list(name); });
}

Table& Table::integers(std::string name, std::vector<int64_t>& value, std::string help,
                       Range range) {
  FlagSpec spec = {.name = name, .kind = FlagKind::kIntegers, .help = std::move(help)};
  for (const int64_t number : value)
    spec.preset = (spec.preset ? *spec.preset + "," : "") + report::number_text(number);
  return add(
      std::move(spec), [&value, name](const ParsedFlags& flags) { value = flags.integers(name); },
      range);
}

Table& Table::seed(std::string name, uint64_t& value, std::string help, Range range) {
  return add(
      {.name = name, .kind = FlagKind::kSeed, .help = help, .preset = report::number_text(value)},
      [&value, name](const ParsedFlags& flags) {
        if (const auto seed = flags.seed(name)) value = *seed;
      },
      range);
}

Table& Table::flag(std::string name, bool& value, std::string help) {
  return add(
      {.name = name, .kind = FlagKind::kFlag, .help = help, .preset = value ? "true" : "false"},
      [&value, name](const ParsedFlags& flags) { value = flags.flag(name); });
}

Table& Table::also(std::string name, bool& value, std::string help) {
  return add({.name = name, .kind = FlagKind::kFlag, .help = help, .preset = "false"},
             [&value, name](const ParsedFlags& flags) { value = value || flags.flag(name); });
}

Table& Table::without(const std::function<bool(const FlagSpec&)>& is_left_out) {
  std::erase_if(rows_, [&](const Row& row) { return is_left_out(row.spec); });
  return *this;
}

std::vector<FlagSpec> Table::specs() const {
  std::vector<FlagSpec> specs;
  for (const Row& row : rows_) specs.push_back(row.spec);
  return specs;
}

void Table::read(const ParsedFlags& flags, report::Problems& problems) const {
  for (const Row& row : rows_) {
    const size_t before = problems.size();
    check(row, flags, problems);
    // A preset stands in for a number out of range, so that nobody tells of it again.
    const bool stands_in = problems.size() > before && row.spec.preset;
    if (row.set && !stands_in) problems.collect([&] { row.set(flags); });
  }
}

void Table::check(const Row& row, const ParsedFlags& flags, report::Problems& problems) {
  const auto& [low, high, takes_low, takes_high] = row.range;
  const std::string& name = row.spec.name;
  if (low == -kNoLimit) return;
  const auto check_value = [&](double value, const std::string& text) {
    const bool is_low = takes_low ? value < low : value <= low;
    const bool is_high = takes_high ? value > high : value >= high;
    if (!is_low && !is_high) return;
    const std::string what = flags.place(name) + ": " + text;
    if (row.spec.kind == FlagKind::kReal) {
      problems.add(what + " is outside " + row.range.text());
    } else {
      problems.add(what + (is_low ? " is less than " + report::number_text(low)
                                  : " is more than " + report::number_text(high)));
    }
  };
  if (row.spec.kind == FlagKind::kIntegers) {
    for (const int64_t number : flags.integers(name))
      check_value(static_cast<double>(number), report::number_text(number));
  } else if (const auto value = flags.find_real(name)) {
    check_value(*value, flags.text(name));
  }
}

}  // namespace atelier::flags
