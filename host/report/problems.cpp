#include "host/report/problems.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>

#include "formats/escape.h"

namespace atelier::report {

namespace {

constexpr size_t kMostTold = 200;

// Insertions, deletions, replacements and exchanges of neighbours between `a` and `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(table[0].begin(), table[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    table[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      table[i][j] = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1,
                              table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
    }
  }
  return table.back().back();
}

std::string lower_with_underscores(std::string_view name) {
  std::string out(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Several errors as one; caught by another collection, it falls apart again.
class Mistakes : public Error {
 public:
  Mistakes(ErrorCode code, std::string message, std::string tag, std::vector<Error> errors)
      : Error(code, std::move(message), {}, std::move(tag)), errors_(std::move(errors)) {}

  const std::vector<Error>& errors() const { return errors_; }

 private:
  std::vector<Error> errors_;
};

}  // namespace

void Problems::add(std::string problem, std::string hint, ErrorCode code) {
  add(Error(code, std::move(problem), std::move(hint)));
}

void Problems::add(const Error& error) {
  if (const auto* several = dynamic_cast<const Mistakes*>(&error)) {
    for (const Error& one : several->errors()) add(one);
  } else {
    // What two checks find is told once. Equal ones stand near each other.
    const auto begin = errors_.end() - static_cast<ptrdiff_t>(std::min(errors_.size(), kMostTold));
    if (std::none_of(begin, errors_.end(),
                     [&](const Error& other) { return other.message() == error.message(); }))
      errors_.push_back(error);
  }
}

void Problems::throw_if_any() const {
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw errors_.front();
  std::string message = std::to_string(errors_.size()) + " mistakes:";
  for (const Error& error : std::span(errors_).first(std::min(errors_.size(), kMostTold))) {
    message += "\n  " + error.message();
    if (!error.hint().empty()) message += "; " + error.hint();
  }
  if (errors_.size() > kMostTold)
    message += "\n  and " + std::to_string(errors_.size() - kMostTold) + " more";
  throw Mistakes(errors_.front().code(), message, errors_.front().tag(), errors_);
}

std::string list_names(const std::vector<std::string>& names, size_t limit) {
  std::string out;
  const size_t shown = std::min(limit, names.size());
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) out += ", ";
    out += formats::quote_and_escape(names[i]);
  }
  if (names.size() > shown) out += " and " + std::to_string(names.size() - shown) + " more";
  return out;
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
  if (given.empty() || given.size() > 256) return {};
  const std::string wanted = lower_with_underscores(given);
  std::string best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : known) {
    const size_t distance = edit_distance(wanted, lower_with_underscores(name));
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  if (!best.empty()) return best;
  // A name that was cut short: "steps" for "num_inference_steps".
  for (const std::string& name : known) {
    if (wanted.size() >= 4 && name.find(wanted) != std::string::npos) return name;
  }
  return {};
}

}  // namespace atelier::report
