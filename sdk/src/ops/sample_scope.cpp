#include "atelier/host/sample_scope.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "atelier/error.h"
#include "atelier/host/sequence_scope.h"

namespace atelier::ops {
namespace {

thread_local SampleScope* current_sample_scope = nullptr;

// The axis that samples or their rows are on: the first one that is longer than 1, or the last one
// of rows.
int64_t row_axis(const at::Tensor& x) {
  int64_t axis = 0;
  while (axis + 2 < x.dim() && x.size(axis) == 1) ++axis;
  return axis;
}

std::vector<int64_t> offsets_of(const Segments& rows) {
  std::vector<int64_t> offsets;
  for (int64_t s = 0; s <= rows.count(); ++s) offsets.push_back(rows.offset(s));
  return offsets;
}

}  // namespace

SampleScope::SampleScope(const SampleStrengths& strengths)
    : strengths_(strengths),
      outer_(std::exchange(current_sample_scope, this)),
      count_(static_cast<int64_t>(strengths.size())) {}

SampleScope::~SampleScope() {
  current_sample_scope = outer_;
}

SampleScope* SampleScope::current() {
  return current_sample_scope;
}

SampleScope::Part::Part(int64_t first, int64_t count) : scope_(current_sample_scope) {
  if (scope_ == nullptr) return;
  first_ = scope_->first_, count_ = scope_->count_;
  noted_ = std::exchange(scope_->noted_, {});
  scope_->first_ += first;
  scope_->count_ = count;
}

SampleScope::Part::~Part() {
  if (scope_ == nullptr) return;
  scope_->first_ = first_, scope_->count_ = count_;
  scope_->noted_ = std::move(noted_);
}

SampleScope::Rows::Rows(int64_t first, int64_t count, int64_t total)
    : scope_(current_sample_scope), first_(first), count_(count), total_(total) {
  if (scope_ != nullptr) outer_ = std::exchange(scope_->named_, this);
}

SampleScope::Rows::~Rows() {
  if (scope_ != nullptr) scope_->named_ = outer_;
}

double SampleScope::strength(int64_t sample, int64_t number) const {
  const auto s = static_cast<size_t>(first_ + sample);
  const auto n = static_cast<size_t>(number);
  return s < strengths_.size() && n < strengths_[s].size() ? strengths_[s][n] : 0.0;
}

bool SampleScope::is_used(int64_t number) const {
  for (int64_t sample = 0; sample < count_; ++sample)
    if (strength(sample, number) != 0) return true;
  return false;
}

void SampleScope::note(const Segments& rows) {
  if (rows.count() != count_) return;
  std::vector<int64_t> offsets = offsets_of(rows);
  if (std::ranges::find(noted_, offsets) == noted_.end()) noted_.push_back(std::move(offsets));
}

std::vector<SampleScope::Stretch> SampleScope::named_stretches(int64_t rows) const {
  std::vector<Stretch> result;
  const int64_t count = std::min(named_->count_, rows);
  for (int64_t i = 0; i < count; ++i) result.push_back({named_->first_ + i, i, 1});
  if (count < rows) result.push_back({-1, count, rows - count});
  return result;
}

std::vector<SampleScope::Stretch> SampleScope::stretches_of(const at::Tensor& x) {
  if (SequenceScope::current() != nullptr) fail(x);
  const int64_t rows = x.numel() / std::max<int64_t>(x.size(-1), 1);
  if (named_ != nullptr) {
    if (named_->total_ != count_) fail(x);
    return named_stretches(rows);
  }
  if (count_ == 1) return {{0, 0, rows}};
  if (x.dim() < 2) fail(x);
  const int64_t length = x.size(row_axis(x));
  std::vector<Stretch> result;
  std::optional<std::vector<int64_t>> found;
  if (length == count_) {
    found.emplace();
    for (int64_t s = 0; s <= count_; ++s) found->push_back(s);
  }
  for (const std::vector<int64_t>& offsets : noted_) {
    if (offsets.back() != length) continue;
    if (found && *found != offsets) fail(x);
    found = offsets;
  }
  if (!found) fail(x);
  if (length == 0) return {};
  const int64_t each = rows / length;  // of what stands behind the axis
  for (size_t s = 0; s + 1 < found->size(); ++s) {
    const int64_t begin = (*found)[s], end = (*found)[s + 1];
    if (end > begin)
      result.push_back({static_cast<int64_t>(s), begin * each, (end - begin) * each});
  }
  return result;
}

void SampleScope::fail(const at::Tensor& x) {
  is_unresolved_ = true;
  throw Error(
      ErrorCode::kInternal,
      c10::str("linear: samples have LoRAs of their own, and it is not known which rows of x"
               " of shape ",
               x.sizes(), " are which sample's"),
      "make calls of samples with the same LoRAs");
}

}  // namespace atelier::ops
