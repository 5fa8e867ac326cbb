#include "host/distributed/gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "atelier/error.h"

namespace atelier::distributed {

using at::Tensor;

namespace {

constexpr size_t kMarks = 32;  // leaves that one number tells of; a double holds it

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

// Leaves lie in buckets in the order in which a backward pass reaches them, the last leaf first:
//
//   buckets       [ leaf 9, 8, 7 ] [ 6, 5 ] [ 4 … 0 ]
//   awaited_          0                1        5          gradients that are expected and not here
//   next_                              ^                   the bucket to send next
//
// arrive() counts a gradient; buckets leave in their order as soon as none is awaited, so every
// rank makes the same exchanges in the same order, and at most kBucketsUnderWay are under way.
// send() packs a bucket, begins its exchange and puts it into `under_way_`; settle() waits for the
// oldest and take() makes the leaves' gradients of it. A step in which other leaves have gradients
// than in the last one of its kind sends what was expected (zeros where nothing came), tells all
// ranks what there is (tell()), and sends the rest behind it (finish()).
GradientSums::GradientSums(Group& group, std::vector<Tensor> leaves, FlatLayout layout, Sends sends)
    : group_(group),
      leaves_(std::move(leaves)),
      layout_(std::move(layout)),
      sends_(std::move(sends)) {
  for (size_t place = 0; place < leaves_.size(); ++place) {
    if (leaves_[place].requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(leaves_[place],
                                                     std::make_unique<Hook>(*this, place));
  }
}

GradientSums::GradientSums(Group& group, std::vector<Tensor> leaves, bool keeps_memory)
    : GradientSums(group, leaves, FlatLayout(leaves, /*parts=*/1),
                   Sends{.keeps_memory = keeps_memory}) {}

GradientSums::~GradientSums() {
  for (const Tensor& leaf : leaves_) {
    if (leaf.requires_grad()) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

void GradientSums::open(const std::string& kind, int64_t passes) {
  is_open_ = true;
  is_sending_ = false;
  passes_left_ = sends_.each_pass ? passes : 1;
  kind_ = kind;
  const auto [known, is_first] = expected_by_.try_emplace(kind);
  if (is_first) {
    for (size_t place = 0; place < leaves_.size(); ++place)
      known->second.push_back(sends_.expects && sends_.expects(place, kind) ? 1 : 0);
  }
  expected_ = known->second;
  has_.assign(leaves_.size(), 0);
  clear();
  begin_sending();
}

void GradientSums::begin_sending() {
  has_come_.assign(leaves_.size(), 0);
  next_ = 0;
  awaited_.clear();
  for (const FlatLayout::Bucket& bucket : layout_.buckets())
    awaited_.push_back(static_cast<size_t>(std::ranges::count_if(
        bucket.places,
        [&](const FlatLayout::Place& place) { return expected_[place.tensor] != 0; })));
}

void GradientSums::begin_pass(bool is_last) {
  is_sending_ = is_last || sends_.each_pass;
}

void GradientSums::end_pass() {
  if (sends_.each_pass) send_pass();
}

void GradientSums::arrive(size_t place) {
  if (!is_sending_ || expected_[place] == 0) return;
  if (std::exchange(has_come_[place], 1) != 0)
    throw Error(ErrorCode::kInternal, "a leaf gets two gradients in one backward pass");
  --awaited_[layout_.bucket_of(place)];
  while (next_ < awaited_.size() && awaited_[next_] == 0) send_next();
}

// What the tensors of a bucket are one after the other, those that are undefined as zeros.
Tensor GradientSums::pack(const FlatLayout::Bucket& bucket, const std::vector<Tensor>& gradients) {
  if (std::ranges::none_of(gradients, &Tensor::defined))
    return at::zeros({bucket.count}, bucket.options);
  Tensor values = at::empty({bucket.count}, bucket.options);
  std::vector<Tensor> parts;
  const auto add_zeros = [&](int64_t count) {
    if (count > 0) parts.push_back(at::zeros({count}, bucket.options));
  };
  int64_t end = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    add_zeros(bucket.places[i].begin - end);
    parts.push_back(gradients[i].reshape(-1));
    end = bucket.places[i].begin + gradients[i].numel();
  }
  add_zeros(bucket.count - end);
  return at::cat_out(values, parts);
}

// Sends what the chosen leaves of the bucket have, and zeros where the others are. Returns whether
// there are any.
template <typename Chosen>
bool GradientSums::send(size_t index, Chosen&& is_chosen) {
  const FlatLayout::Bucket& bucket = layout_.buckets()[index];
  Sending sending = {.bucket = index};
  for (const FlatLayout::Place& place : bucket.places)
    if (is_chosen(place.tensor)) sending.places.push_back(place);
  if (sending.places.empty()) return false;
  settle(kBucketsUnderWay - 1);
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const auto& [place, begin] : bucket.places) {
    Tensor& gradient = gradients.emplace_back();
    if (!is_chosen(place)) continue;
    Tensor& grad = Tensor(leaves_[place]).mutable_grad();
    gradient = grad;
    if (grad.defined()) has_[place] = 1;
    if (sends_.takes_all) grad.reset();
  }
  sending.values = pack(bucket, gradients);
  gradients.clear();
  sending.host = group_.sends(sending.values.device()) ? sending.values : sending.values.cpu();
  exchange(sending);
  under_way_.push_back(std::move(sending));
  return true;
}

void GradientSums::exchange(Sending& sending) {
  sending.sent = group_.all_reduce(sending.host);
}

// Gradients are parts of their bucket from then on, unless they keep their memory.
void GradientSums::take(Sending& sending) {
  if (!sending.values.is_same(sending.host)) {
    sending.values.copy_(sending.host);
    let_go(sending.host);
  }
  for (const auto& [place, begin] : sending.places) {
    const Tensor& leaf = leaves_[place];
    const Tensor sum = sending.values.narrow(0, begin, leaf.numel()).view(leaf.sizes());
    Tensor& gradient = Tensor(leaf).mutable_grad();
    if (!sends_.keeps_memory) {
      gradient = sum;
    } else if (gradient.defined()) {
      gradient.copy_(sum);
    } else {
      gradient = sum.clone();
    }
  }
}

void GradientSums::send_next() {
  send(next_, [&](size_t place) { return expected_[place] != 0; });
  ++next_;
}

// What is left of the pass that sends.
void GradientSums::send_pass() {
  is_sending_ = false;
  while (next_ < awaited_.size()) send_next();
  if (--passes_left_ > 0) begin_sending();
}

// Until no more than `left` buckets are under way.
void GradientSums::settle(size_t left) {
  const at::NoGradGuard no_grad;
  while (under_way_.size() > left) {
    std::exchange(under_way_.front().sent, {}).wait();
    take(under_way_.front());
    under_way_.pop_front();
  }
}

int64_t GradientSums::bytes_under_way() const {
  int64_t bytes = 0;
  for (const Sending& sending : under_way_) {
    for (const Tensor& tensor : {sending.host, sending.part})
      bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  return bytes;
}

void GradientSums::send_rest() {
  while (passes_left_ > 0) send_pass();
}

// One exchange for all of it.
Tensor GradientSums::tell(const Tensor& loss, const std::vector<double>& words) {
  std::vector<double> mine = words;
  const std::vector<Group*> groups = compared();
  for (const Group* group : groups) {
    const auto made = group->made();
    mine.insert(mine.end(), made.begin(), made.end());
  }
  mine.push_back(loss.defined() ? loss.item<double>() : 0.0);
  const int64_t marks = std::ssize(mine);
  append_marks(mine);
  const Tensor all = at::empty({group_.size(), std::ssize(mine)}, at::kDouble);
  group_.all_gather(all, at::tensor(mine, at::kDouble)).wait();
  int64_t first = std::ssize(words);
  for (Group* group : groups) group->compare(all.narrow(1, std::exchange(first, first + 3), 3));
  loss_ = 0;
  has_anywhere_.assign(leaves_.size(), 0);
  for (const Tensor& told : all.unbind()) {
    const auto* const values = told.const_data_ptr<double>();
    loss_ += values[first];
    read_marks(values + marks);
  }
  return all.narrow(1, 0, std::ssize(words));
}

// One bit for each leaf that this rank has a gradient of.
void GradientSums::append_marks(std::vector<double>& values) const {
  for (size_t begin = 0; begin < leaves_.size(); begin += kMarks) {
    uint32_t marks = 0;
    for (size_t place = begin; place < std::min(begin + kMarks, leaves_.size()); ++place) {
      const bool has = expected_[place] != 0 ? has_[place] != 0 : leaves_[place].grad().defined();
      marks |= uint32_t{has} << (place - begin);
    }
    values.push_back(marks);
  }
}

void GradientSums::read_marks(const double* values) {
  for (size_t place = 0; place < leaves_.size(); ++place) {
    const auto marks = static_cast<uint32_t>(values[place / kMarks]);
    has_anywhere_[place] |= static_cast<char>(marks >> (place % kMarks) & 1);
  }
}

Tensor GradientSums::finish() {
  is_open_ = false;
  bool has_late = false;
  for (size_t bucket = 0; bucket < awaited_.size(); ++bucket)
    has_late |= send(
        bucket, [&](size_t place) { return expected_[place] == 0 && has_anywhere_[place] != 0; });
  settle(0);
  for (size_t place = 0; place < leaves_.size(); ++place) {
    if (has_anywhere_[place] == 0) Tensor(leaves_[place]).mutable_grad() = Tensor();
  }
  expected_ = has_anywhere_;
  expected_by_[kind_] = expected_;
  complete(has_late);
  return at::full({}, loss_, at::kFloat);
}

void GradientSums::complete(bool has_late) {
  if (has_late) group_.compare();
}

void GradientSums::give_up() {
  if (!std::exchange(is_open_, false)) return;
  send_rest();
  settle(0);
}

ShardedGradients::ShardedGradients(Group& world, ShardGroups groups, std::vector<Tensor> leaves,
                                   FlatLayout layout, Options options)
    : GradientSums(world, std::move(leaves), std::move(layout),
                   {.each_pass = options.each_pass,
                    .takes_all = true,
                    .expects = std::move(options.expects)}),
      groups_(std::move(groups)),
      on_host_(options.on_host) {}

void ShardedGradients::clear() {
  parts_.assign(layout_.buckets().size(), Tensor());
}

void ShardedGradients::exchange(Sending& sending) {
  sending.part = at::empty({sending.host.numel() / layout_.parts()}, sending.host.options());
  sending.sent = groups_.shards->reduce_scatter(sending.part, sending.host);
  sending.values.reset();
}

void ShardedGradients::take(Sending& sending) {
  const at::Device device = layout_.buckets()[sending.bucket].options.device();
  let_go(sending.host);
  add_to_sum(parts_[sending.bucket], sending.part, device, on_host_);
}

void ShardedGradients::complete(bool has_late) {
  if (groups_.replicas) {
    for (const Tensor& part : parts_) {
      if (!part.defined()) continue;
      exchange_through_host(*groups_.replicas, part,
                            [&](const Tensor& sent) { groups_.replicas->all_reduce(sent).wait(); });
    }
    groups_.replicas->compare();
  }
  if (has_late) groups_.shards->compare();
}

int64_t ShardedGradients::sum_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& part : parts_)
    bytes += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return bytes;
}

Tensor ShardedGradients::piece(size_t place) const {
  if (!has_gradient(place)) return {};
  const FlatLayout::Extent extent = layout_.extent(place, groups_.shards->rank());
  return parts_[layout_.bucket_of(place)].narrow(0, extent.at, extent.count);
}

}  // namespace atelier::distributed
