#include "host/weights/weight_binding.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/files/file_reader.h"
#include "host/weights/block_numbers.h"

namespace atelier::weights {

namespace {

constexpr size_t kListed = 20;

bool matches_unused(const std::string& pattern, const std::string& name) {
  if (pattern.find('*') == std::string::npos) return match_blocks(pattern, name).has_value();
  std::string glob = pattern;
  for (size_t hole = glob.find("{}"); hole != std::string::npos; hole = glob.find("{}"))
    glob.replace(hole, 2, "*");
  return formats::glob_match(glob, name);
}

// The rows that name a tensor: those with the `from` of the first that matches.
struct TensorRows {
  std::vector<const WeightRule*> rules;
  std::vector<std::string> numbers;
};

std::optional<TensorRows> find_rows(const WeightMap& rules, const std::string& name) {
  for (const WeightRule& rule : rules) {
    if (rule.to.empty()) {
      if (!matches_unused(rule.from, name)) continue;
      return TensorRows{};
    }
    auto numbers = match_blocks(rule.from, name);
    if (!numbers) continue;
    TensorRows rows{.rules = {}, .numbers = std::move(*numbers)};
    for (const WeightRule& other : rules) {
      if (other.from == rule.from && !other.to.empty()) rows.rules.push_back(&other);
    }
    return rows;
  }
  return std::nullopt;
}

// True when the shapes are equal but for `axis`.
bool fits_beside(at::IntArrayRef a, at::IntArrayRef b, int axis) {
  if (a.size() != b.size() || axis < 0 || static_cast<size_t>(axis) >= a.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (i != static_cast<size_t>(axis) && a[i] != b[i]) return false;
  }
  return true;
}

void check_slices(const BoundWeight& bound, const TensorIndex& index,
                  std::vector<std::string>& misshaped) {
  const at::IntArrayRef weight = bound.weight->sizes();
  int64_t covered = 0;
  for (const WeightSlice& slice : bound.slices) {
    const TensorMeta& tensor = *index.find(slice.tensor);
    const bool fits = slice.axis < 0 ? at::IntArrayRef(tensor.shape) == weight
                                     : fits_beside(tensor.shape, weight, slice.axis) &&
                                           slice.tensor_start + slice.length <=
                                               tensor.shape[static_cast<size_t>(slice.axis)];
    if (!fits) {
      misshaped.push_back(
          formats::quote_and_escape(slice.tensor) + ": " + c10::str(at::IntArrayRef(tensor.shape)) +
          ", expected " + c10::str(at::IntArrayRef(weight)) +
          (slice.axis < 0 ? "" : " or a part of it along axis " + std::to_string(slice.axis)));
      return;
    }
    covered += slice.length;
  }
  if (bound.slices.size() > 1 && covered != weight[static_cast<size_t>(bound.slices.front().axis)])
    misshaped.push_back(formats::quote_and_escape(bound.slices.front().tensor) + " and " +
                        std::to_string(bound.slices.size() - 1) + " more hold " +
                        std::to_string(covered) + " of " + c10::str(at::IntArrayRef(weight)) +
                        " along axis " + std::to_string(bound.slices.front().axis));
}

void list(std::string& out, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  out += std::string("\n  ") + what + ":";
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) out += "\n    " + names[i];
  if (names.size() > kListed)
    out += "\n    and " + std::to_string(names.size() - kListed) + " more";
}

}  // namespace

void WeightBinding::throw_unless_complete(const std::string& checkpoint_name,
                                          const std::string& component) const {
  if (is_complete()) return;
  std::string message = files::display_path(checkpoint_name) + ": does not fit " + component +
                        ": " + std::to_string(missing.size()) + " tensors missing, " +
                        std::to_string(unexpected.size()) + " unexpected, " +
                        std::to_string(misshaped.size()) + " of another shape";
  list(message, "missing", missing);
  list(message, "unexpected", unexpected);
  list(message, "of another shape", misshaped);
  throw Error(ErrorCode::kInvalidArgument, message, "use a checkpoint of this architecture, whole",
              "WEIGHTS_MISMATCH");
}

namespace {

// Finds the weights of each tensor, then puts the slices of each weight in order.
class Binder {
 public:
  Binder(const WeightMap& rules, const std::string& prefix, const TensorIndex& index,
         nn::Module& module)
      : rules_(rules), prefix_(prefix), index_(index) {
    module.visit_weights([&](const std::string& path, Weight& weight) {
      place_.emplace(path, binding_.weights.size());
      binding_.weights.push_back({path, &weight, {}});
    });
    candidates_.resize(binding_.weights.size());
  }

  WeightBinding bind() {
    for (const auto& [name, meta] : index_.tensors()) take_tensor(name, meta);
    for (size_t i = 0; i < binding_.weights.size(); ++i) {
      join_slices(i);
      check_whole(binding_.weights[i]);
    }
    // A cut tensor is missing once, not once for each of its weights.
    std::set<std::string> seen;
    std::erase_if(binding_.missing,
                  [&](const std::string& name) { return !seen.insert(name).second; });
    return std::move(binding_);
  }

 private:
  struct Candidate {
    size_t row;  // in the table: the order in which tensors are joined
    WeightSlice slice;
  };

  void take_tensor(const std::string& name, const TensorMeta& meta) {
    const std::string quoted = formats::quote_and_escape(name);
    const auto rows =
        name.starts_with(prefix_) ? find_rows(rules_, name.substr(prefix_.size())) : std::nullopt;
    if (!rows) {
      binding_.unexpected.push_back(quoted);
    } else if (rows->rules.empty()) {
      binding_.unused.push_back(name);
    } else if (const auto cut = cut_tensor(name, meta, *rows); !cut) {
      binding_.unexpected.push_back(quoted);  // the component has fewer blocks or another layout
    } else if (const WeightRule& first = *rows->rules.front();
               rows->rules.size() > 1 && has_axis(first.axis, meta.shape) &&
               *cut != meta.shape[static_cast<size_t>(first.axis)]) {
      binding_.misshaped.push_back(quoted + ": " + c10::str(at::IntArrayRef(meta.shape)) +
                                   ", expected " + std::to_string(*cut) + " along axis " +
                                   std::to_string(first.axis));
    }
  }

  static bool has_axis(int axis, at::IntArrayRef sizes) {
    return axis >= 0 && static_cast<size_t>(axis) < sizes.size();
  }

  // Makes a candidate of each row's weight. Returns the length of all that a tensor is cut into;
  // nullopt where a weight is not there.
  std::optional<int64_t> cut_tensor(const std::string& name, const TensorMeta& meta,
                                    const TensorRows& rows) {
    int64_t start = 0;
    for (const WeightRule* rule : rows.rules) {
      const auto it = place_.find(fill_blocks(rule->to, rows.numbers));
      if (it == place_.end()) return std::nullopt;
      WeightSlice slice{name, rule->axis, 0, 0, 0};
      const at::IntArrayRef sizes = binding_.weights[it->second].weight->sizes();
      if (rows.rules.size() > 1 && has_axis(rule->axis, sizes)) {
        slice.tensor_start = start;
        slice.length = sizes[static_cast<size_t>(rule->axis)];
        start += slice.length;
      } else if (has_axis(rule->axis, meta.shape)) {
        slice.length = meta.shape[static_cast<size_t>(rule->axis)];
      }
      candidates_[it->second].push_back({static_cast<size_t>(rule - rules_.data()), slice});
    }
    return start;
  }

  void join_slices(size_t index) {
    std::ranges::sort(candidates_[index], {}, &Candidate::row);
    int64_t start = 0;
    for (Candidate& candidate : candidates_[index]) {
      candidate.slice.weight_start = start;
      start += candidate.slice.length;
      binding_.weights[index].slices.push_back(std::move(candidate.slice));
    }
  }

  // Every row that names this weight must have brought its tensor.
  void check_whole(const BoundWeight& bound) {
    bool has_row = false, is_whole = true;
    for (const WeightRule& rule : rules_) {
      if (rule.to.empty()) continue;
      const auto numbers = match_blocks(rule.to, bound.path);
      if (!numbers) continue;
      has_row = true;
      const std::string name = prefix_ + fill_blocks(rule.from, *numbers);
      if (std::ranges::find(bound.slices, name, &WeightSlice::tensor) != bound.slices.end())
        continue;
      is_whole = false;
      binding_.missing.push_back(formats::quote_and_escape(name));
    }
    if (!has_row)
      binding_.missing.push_back("weight " + formats::quote_and_escape(bound.path) +
                                 ", which has no row");
    if (has_row && is_whole) check_slices(bound, index_, binding_.misshaped);
  }

  const WeightMap& rules_;
  const std::string& prefix_;
  const TensorIndex& index_;
  WeightBinding binding_;
  std::map<std::string, size_t> place_;  // of a weight in binding_.weights
  std::vector<std::vector<Candidate>> candidates_;
};

}  // namespace

WeightBinding bind_weights(const WeightMap& rules, const std::string& prefix,
                           const TensorIndex& index, nn::Module& module) {
  return Binder(rules, prefix, index, module).bind();
}

int64_t count_known_tensors(const WeightMap& rules, const std::string& prefix,
                            const TensorIndex& index) {
  int64_t count = 0;
  for (const auto& [name, meta] : index.tensors()) {
    if (name.starts_with(prefix) && find_rows(rules, name.substr(prefix.size()))) ++count;
  }
  return count;
}

}  // namespace atelier::weights
