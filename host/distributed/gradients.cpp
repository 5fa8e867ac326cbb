#include "host/distributed/gradients.h"

#include <deque>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace atelier::distributed {

using at::Tensor;

namespace {

constexpr int64_t kBucketBytes = int64_t{25} << 20;
constexpr size_t kUnderWay = 4;  // buckets

// Gradients of one dtype, one behind the other.
class Bucket {
 public:
  // Takes the first of `leaves` that fit, at least one, and begins to send.
  Bucket(Group& group, std::span<const Tensor>& leaves) {
    const at::ScalarType dtype = leaves.front().scalar_type();
    int64_t count = 0;
    const auto fits = [&](const Tensor& leaf) {
      const int64_t bytes = (count + leaf.numel()) * static_cast<int64_t>(leaf.element_size());
      return leaves_.empty() || (leaf.scalar_type() == dtype && bytes <= kBucketBytes);
    };
    while (!leaves.empty() && fits(leaves.front())) {
      count += leaves.front().numel();
      leaves_.push_back(leaves.front());
      leaves = leaves.subspan(1);
    }
    values_ = at::empty({count}, at::TensorOptions(at::kCPU).dtype(dtype));
    for_each([](const Tensor& leaf, const Tensor& part) {
      if (leaf.grad().defined()) {
        part.copy_(leaf.grad());
      } else {
        part.zero_();
      }
    });
    sent_ = group.all_reduce(values_);
  }

  // The leaves get the sums.
  void finish() {
    sent_.wait();
    for_each([](const Tensor& leaf, const Tensor& part) {
      Tensor& grad = Tensor(leaf).mutable_grad();
      if (!grad.defined()) grad = at::empty_like(leaf);
      grad.copy_(part);
    });
  }

 private:
  template <typename F>
  void for_each(F&& call) {
    int64_t begin = 0;
    for (const Tensor& leaf : leaves_) {
      call(leaf, values_.narrow(0, begin, leaf.numel()).view(leaf.sizes()));
      begin += leaf.numel();
    }
  }

  std::vector<Tensor> leaves_;
  Tensor values_;
  Ticket sent_;
};

}  // namespace

Tensor sum_gradients(Group& group, std::span<const Tensor> leaves, const Tensor& loss) {
  const at::NoGradGuard no_grad;
  // The loss, and how many ranks have each gradient.
  const Tensor counts = at::empty({std::ssize(leaves) + 1}, at::kDouble);
  auto* const values = counts.mutable_data_ptr<double>();
  values[0] = loss.item<double>();
  for (size_t i = 0; i < leaves.size(); ++i) values[i + 1] = leaves[i].grad().defined() ? 1 : 0;
  group.all_reduce(counts).wait();
  std::vector<Tensor> summed;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (values[i + 1] > 0) summed.push_back(leaves[i]);
  }
  std::deque<Bucket> under_way;
  for (std::span<const Tensor> rest = summed; !rest.empty();) {
    if (under_way.size() == kUnderWay) {
      under_way.front().finish();
      under_way.pop_front();
    }
    under_way.emplace_back(group, rest);
  }
  for (Bucket& bucket : under_way) bucket.finish();
  return at::full_like(loss, values[0]);
}

}  // namespace atelier::distributed
