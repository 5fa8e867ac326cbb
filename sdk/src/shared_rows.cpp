#include "atelier/shared_rows.h"

#include <algorithm>
#include <atomic>

#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"
#include "atelier/host/sequence_scope.h"

#include "ops/autograd_support.h"
#include "ops/shared_attention.h"

namespace atelier {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<SequenceGroup*> current_group = nullptr;

int64_t overlap(int64_t begin, int64_t end, int64_t other_begin, int64_t other_end) {
  return std::max<int64_t>(0, std::min(end, other_end) - std::max(begin, other_begin));
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& own, const Tensor& rows,
                        int64_t begin) {
    ctx->saved_data["begin"] = begin;
    ctx->saved_data["length"] = own.size(0);
    return ops::gather_rows(own, Segments::from_tensor(rows));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0].narrow(0, ctx->saved_data["begin"].toInt(), ctx->saved_data["length"].toInt()),
            Tensor(), Tensor()};
  }
};

}  // namespace

SequenceGroup::~SequenceGroup() = default;
SharesRows::~SharesRows() = default;

SequenceScope::SequenceScope(SequenceGroup& group) {
  if (current_group.exchange(&group) != nullptr)
    throw Error(ErrorCode::kInternal, "rows are shared out already");
}

SequenceScope::~SequenceScope() {
  current_group = nullptr;
}

SequenceGroup* SequenceScope::current() {
  return current_group;
}

// Each rank has a stretch of all rows, which may begin and end inside of a sample.
SharedRows::SharedRows(const Segments& all) : all_(all), own_(all) {
  const SequenceGroup* const group = SequenceScope::current();
  if (group == nullptr) return;
  const int64_t P = group->size(), S = all.count();
  Tensor offsets = at::zeros({P, S + 1}, at::kLong);
  auto table = offsets.accessor<int64_t, 2>();
  for (int64_t r = 0; r < P; ++r) {
    const int64_t begin = all.total() * r / P, end = all.total() * (r + 1) / P;
    for (int64_t s = 0; s < S; ++s) {
      const int64_t length = overlap(begin, end, all.offset(s), all.offset(s + 1));
      table[r][s + 1] = table[r][s] + length;
      if (r == group->rank()) ranges_.push_back({{std::max(begin, all.offset(s)), length}});
    }
  }
  own_ = Segments::shared(offsets, group->rank());
}

std::vector<SharedRows::Range> SharedRows::merged() const {
  std::vector<Range> result;
  for (const auto& of_sample : ranges_) {
    for (const Range& range : of_sample) {
      if (range.length == 0) continue;
      if (!result.empty() && result.back().begin + result.back().length == range.begin) {
        result.back().length += range.length;
      } else {
        result.push_back(range);
      }
    }
  }
  return result;
}

Tensor SharedRows::take(const Tensor& all) const {
  if (!own_.is_shared()) return all;
  if (all.size(0) != all_.total()) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("a tensor of shape ", all.sizes(), " has not the ", all_.total(),
                         " rows that are shared out"));
  }
  const std::vector<Range> ranges = merged();
  if (ranges.empty()) return all.narrow(0, 0, 0);
  std::vector<Tensor> parts;
  for (const Range& range : ranges) parts.push_back(all.narrow(0, range.begin, range.length));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

Segments SharedRows::cut(const Segments& stretches) const {
  if (!own_.is_shared()) return stretches;
  const std::vector<Range> ranges = merged();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < stretches.count(); ++i) {
    int64_t length = 0;
    for (const Range& range : ranges)
      length += overlap(range.begin, range.begin + range.length, stretches.offset(i),
                        stretches.offset(i + 1));
    lengths.push_back(length);
  }
  return Segments(lengths);
}

Tensor SharedRows::gather(const Tensor& own) const {
  if (!own_.is_shared()) return own;
  const bool is_joined =
      std::ranges::any_of(ranges_, [](const auto& of) { return of.size() != 1; });
  if (is_joined)
    throw Error(ErrorCode::kInternal, "joined rows are not gathered", "split them first");
  if (!ops::needs_graph({own})) return ops::gather_rows(own, own_);
  const std::vector<Range> ranges = merged();
  return GatherRows::apply(own, own_.tensor(), ranges.empty() ? 0 : ranges.front().begin);
}

SharedRows join(const SharedRows& a, const SharedRows& b) {
  SharedRows result(join(a.all_, b.all_), join(a.own_, b.own_));
  for (size_t s = 0; s < a.ranges_.size(); ++s) {
    auto& ranges = result.ranges_.emplace_back();
    const auto at = static_cast<int64_t>(s);
    for (const auto& [begin, length] : a.ranges_[s])
      ranges.push_back({begin + b.all_.offset(at), length});
    for (const auto& [begin, length] : b.ranges_[s])
      ranges.push_back({begin + a.all_.offset(at + 1), length});
  }
  return result;
}

}  // namespace atelier
