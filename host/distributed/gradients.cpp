#include "host/distributed/gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "atelier/error.h"

#include "memory/clock.h"

namespace atelier::distributed {

using at::Tensor;

namespace {

constexpr int64_t kBucketBytes = int64_t{25} << 20;
constexpr size_t kUnderWay = 4;  // buckets

}  // namespace

// Told when the gradient of a leaf is accumulated.
class GradientSums::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSums& sums, size_t place) : sums_(sums), place_(place) {}
  void operator()(const Tensor& /*leaf*/) override { sums_.arrive(place_); }

 private:
  GradientSums& sums_;
  size_t place_;
};

// A bucket of which some leaves get the sums of what they have.
struct GradientSums::Sending {
  std::vector<std::pair<Tensor, Tensor>> parts;  // leaf, and its place in `values`
  Tensor values, host;                           // the same where leaves are in host memory
  Ticket sent;

  // When it has been sent.
  void spread() {
    if (!values.is_same(host)) values.copy_(host);
    for (const auto& [leaf, part] : parts) {
      Tensor& grad = Tensor(leaf).mutable_grad();
      if (!grad.defined()) grad = at::empty_like(leaf);
      grad.copy_(part);
    }
  }
};

GradientSums::GradientSums(Group& group, std::vector<Tensor> leaves)
    : group_(group), leaves_(std::move(leaves)), bucket_of_(leaves_.size()) {
  fill_buckets();
  for (size_t place = 0; place < leaves_.size(); ++place) {
    if (leaves_[place].requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(leaves_[place],
                                                     std::make_unique<Hook>(*this, place));
  }
}

GradientSums::~GradientSums() {
  for (const Tensor& leaf : leaves_) {
    if (leaf.requires_grad()) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

// Backward passes come to the last leaves first.
void GradientSums::fill_buckets() {
  for (size_t place = leaves_.size(); place-- > 0;) {
    const Tensor& leaf = leaves_[place];
    const auto fits = [&](const Bucket& bucket) {
      const Tensor& other = leaves_[bucket.leaves.front()];
      const int64_t bytes = (bucket.count + leaf.numel()) * static_cast<int64_t>(leaf.itemsize());
      return other.scalar_type() == leaf.scalar_type() && other.device() == leaf.device() &&
             bytes <= kBucketBytes;
    };
    if (buckets_.empty() || !fits(buckets_.back())) buckets_.emplace_back();
    buckets_.back().leaves.push_back(place);
    buckets_.back().count += leaf.numel();
    bucket_of_[place] = buckets_.size() - 1;
  }
}

void GradientSums::open(const std::string& kind) {
  is_open_ = true;
  is_last_pass_ = false;
  kind_ = kind;
  expected_ = expected_by_[kind];
  expected_.resize(leaves_.size());  // of the first step of a kind, none are
  has_come_.assign(leaves_.size(), 0);
  has_.assign(leaves_.size(), 0);
  next_ = 0;
  for (Bucket& bucket : buckets_)
    bucket.awaited = static_cast<size_t>(
        std::ranges::count_if(bucket.leaves, [&](size_t place) { return expected_[place] != 0; }));
}

void GradientSums::arrive(size_t place) {
  if (!is_last_pass_ || expected_[place] == 0) return;
  if (std::exchange(has_come_[place], 1) != 0)
    throw Error(ErrorCode::kInternal, "a leaf gets two gradients in one backward pass");
  --buckets_[bucket_of_[place]].awaited;
  while (next_ < buckets_.size() && buckets_[next_].awaited == 0) send_next();
}

// Sends what the chosen leaves of the bucket have, and zeros where the others are.
template <typename Chosen>
void GradientSums::send(const Bucket& bucket, Chosen&& is_chosen) {
  if (std::ranges::none_of(bucket.leaves, is_chosen)) return;
  settle(kUnderWay - 1);
  const at::NoGradGuard no_grad;
  Sending sending;
  const at::TensorOptions options = leaves_[bucket.leaves.front()].options();
  sending.values = at::zeros({bucket.count}, options.requires_grad(false));
  int64_t begin = 0;
  for (const size_t place : bucket.leaves) {
    const Tensor& leaf = leaves_[place];
    const Tensor part = sending.values.narrow(0, begin, leaf.numel()).view(leaf.sizes());
    begin += leaf.numel();
    if (!is_chosen(place)) continue;
    sending.parts.emplace_back(leaf, part);
    has_[place] = leaf.grad().defined() ? 1 : 0;
    if (has_[place] != 0) part.copy_(leaf.grad());
  }
  sending.host = group_.sends(sending.values.device()) ? sending.values : sending.values.cpu();
  sending.sent = group_.all_reduce(sending.host);
  under_way_.push_back(std::move(sending));
}

void GradientSums::send_next() {
  send(buckets_[next_], [&](size_t place) { return expected_[place] != 0; });
  ++next_;
}

// Until no more than `left` buckets are under way.
void GradientSums::settle(size_t left) {
  const at::NoGradGuard no_grad;
  while (under_way_.size() > left) {
    wait(under_way_.front().sent);
    under_way_.front().spread();
    under_way_.pop_front();
  }
}

void GradientSums::wait(Ticket& ticket) {
  const double begin = memory::seconds_now();
  ticket.wait();
  waited_ += memory::seconds_now() - begin;
}

void GradientSums::send_rest() {
  is_last_pass_ = false;
  while (next_ < buckets_.size()) send_next();
}

// Of the ranks that have each gradient, how many; behind them the sum of the losses.
Tensor GradientSums::count(const Tensor& loss) {
  const Tensor counts = at::empty({std::ssize(leaves_) + 1}, at::kDouble);
  auto* const values = counts.mutable_data_ptr<double>();
  for (size_t place = 0; place < leaves_.size(); ++place) {
    const bool has = expected_[place] != 0 ? has_[place] != 0 : leaves_[place].grad().defined();
    values[place] = has ? 1 : 0;
  }
  values[leaves_.size()] = loss.item<double>();
  Ticket sent = group_.all_reduce(counts);
  wait(sent);
  return counts;
}

Tensor GradientSums::finish(const Tensor& loss) {
  is_open_ = false;
  const Tensor counts = count(loss);
  const auto* const values = counts.const_data_ptr<double>();
  for (const Bucket& bucket : buckets_)
    send(bucket, [&](size_t place) { return expected_[place] == 0 && values[place] > 0; });
  settle(0);
  group_.compare();
  for (size_t place = 0; place < leaves_.size(); ++place) {
    if (values[place] == 0) Tensor(leaves_[place]).mutable_grad() = Tensor();
    expected_[place] = values[place] > 0 ? 1 : 0;
  }
  expected_by_[kind_] = expected_;
  return at::full_like(loss, values[leaves_.size()]);
}

void GradientSums::give_up() {
  if (!std::exchange(is_open_, false)) return;
  send_rest();
  settle(0);
}

}  // namespace atelier::distributed
