#include "memory/rank_agreement.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "atelier/host/sequence_scope.h"

namespace atelier::memory {
namespace {

// [P, n] of n numbers.
at::Tensor of_ranks(const std::vector<double>& mine) {
  const at::Tensor part = at::tensor(mine, at::kDouble);
  SequenceGroup* const group = SequenceScope::current();
  return group == nullptr ? part.unsqueeze(0) : group->gather(part);
}

std::vector<double> numbers(const at::Tensor& values) {
  const at::Tensor dense = values.contiguous();
  const auto* const begin = dense.const_data_ptr<double>();
  return {begin, begin + dense.numel()};
}

// Calls `visit` with each number of `costs` of which the highest counts.
template <typename F>
void visit_numbers(BlockCosts& costs, F&& visit) {
  const auto visit_whole = [&](int64_t& number) {
    auto value = static_cast<double>(number);
    visit(value);
    number = static_cast<int64_t>(value);
  };
  visit(costs.seconds);
  for (int64_t* bytes : {&costs.held_bytes, &costs.whole_bytes, &costs.working_bytes, &costs.runs})
    visit_whole(*bytes);
  for (OperatorCosts& op : costs.operators) {
    visit(op.seconds);
    visit_whole(op.bytes);
    double is_read = op.is_unread ? 0 : 1;
    visit(is_read);
    op.is_unread = is_read == 0;
  }
}

}  // namespace

std::vector<double> least_of_ranks(const std::vector<double>& mine) {
  return numbers(of_ranks(mine).amin(0));
}

std::vector<double> most_of_ranks(const std::vector<double>& mine) {
  return numbers(of_ranks(mine).amax(0));
}

void agree_on(const std::vector<std::shared_ptr<BlockCosts>>& costs) {
  if (SequenceScope::current() == nullptr) return;
  std::vector<double> told;
  for (const auto& block : costs)
    visit_numbers(*block, [&](double number) { told.push_back(number); });
  const std::vector<double> most = most_of_ranks(told);
  auto next = most.begin();
  for (const auto& block : costs) visit_numbers(*block, [&](double& number) { number = *next++; });
}

std::string rows_of_ranks(const Tensors& inputs) {
  SequenceGroup* const group = SequenceScope::current();
  if (group == nullptr) return "";
  std::string text;
  for (const at::Tensor& t : inputs) {
    const bool are_rows = t.defined() && t.is_cpu() && t.scalar_type() == at::kLong &&
                          t.dim() == 2 && t.size(0) == 1 + group->size();  // of shared Segments
    if (!are_rows) continue;
    const at::Tensor totals = t.select(1, -1);
    for (int64_t r = 1; r <= group->size(); ++r) text += c10::str(" ", totals[r].item<int64_t>());
  }
  return text;
}

}  // namespace atelier::memory
