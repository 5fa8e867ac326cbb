#include "host/parameters/gradient_sums.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "atelier/error.h"

namespace atelier::parameters {

using at::Tensor;
using distributed::FlatLayout;
using distributed::Group;

namespace {

constexpr size_t kMarks = 32;  // tensors that one number tells of; a double holds it

int64_t bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

// What the tensors of a bucket are one after the other, those that are undefined as zeros.
Tensor pack(const FlatLayout::Bucket& bucket, const std::vector<Tensor>& gradients) {
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
    add_zeros(bucket.positions[i].begin - end);
    parts.push_back(gradients[i].reshape(-1));
    end = bucket.positions[i].begin + gradients[i].numel();
  }
  add_zeros(bucket.count - end);
  return at::cat_out(values, parts);
}

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
// send_leaves() packs a bucket and begins its exchange, which settle() waits for, the oldest first.
// A step in which other leaves have gradients than in the last one of its kind sends what was
// expected (zeros where nothing came), tells all ranks what there is (gather_status()), and sends
// the rest behind it (finish()).
GradientSums::GradientSums(Group& world, distributed::ShardGroups groups, const ExchangePlan& plan,
                           std::vector<Tensor> leaves, Options options)
    : world_(world),
      groups_(std::move(groups)),
      plan_(plan),
      leaves_(std::move(leaves)),
      options_(std::move(options)),
      blocks_(plan.divided.layout.buckets().empty()
                  ? nullptr
                  : world.neighbours(groups_.shards->size(), "gradients of blocks")),
      whole_{plan.wholes.layout, is_shared() ? groups_.shards.get() : &world_},
      divided_{plan.divided.layout, blocks_.get()} {
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

// The groups among which a step exchanges something.
std::vector<Group*> GradientSums::groups() const {
  std::vector<Group*> groups = {&world_};
  if (is_shared()) groups.push_back(groups_.shards.get());
  if (blocks_) groups.push_back(blocks_.get());
  return groups;
}

void GradientSums::open(const std::string& denoiser, int64_t passes) {
  is_open_ = true;
  is_sending_ = false;
  passes_left_ = plan_.sends_each_pass() ? passes : 1;
  denoiser_ = denoiser;
  const auto [known, is_first] = expected_by_.try_emplace(denoiser);
  if (is_first) {
    for (size_t place = 0; place < leaves_.size(); ++place)
      known->second.push_back(plan_.mode.zero_stage > 1 && plan_.wholes.is_of(place, denoiser));
  }
  expected_ = known->second;
  whole_.has.assign(leaves_.size(), 0);
  divided_.has.assign(divided_.layout.tensors(), 0);
  whole_.sums.assign(whole_.layout.buckets().size(), Tensor());
  clear();
  begin_sending();
}

void GradientSums::clear() {
  divided_.sums.assign(divided_.layout.buckets().size(), Tensor());
  waiting_.assign(divided_.layout.buckets().size(), Tensor());
}

void GradientSums::begin_sending() {
  has_come_.assign(leaves_.size(), 0);
  next_ = 0;
  awaited_.clear();
  for (const FlatLayout::Bucket& bucket : whole_.layout.buckets())
    awaited_.push_back(static_cast<size_t>(std::ranges::count_if(
        bucket.positions,
        [&](const FlatLayout::Position& place) { return expected_[place.tensor] != 0; })));
}

void GradientSums::pass(bool is_last, const std::function<void()>& backward) {
  is_sending_ = is_last || plan_.sends_each_pass();
  backward();
  if (!is_last && plan_.sends_each_pass()) send_pass();
}

void GradientSums::arrive(size_t place) {
  if (!is_sending_ || expected_[place] == 0) return;
  if (std::exchange(has_come_[place], 1) != 0)
    throw Error(ErrorCode::kInternal, "a leaf gets two gradients in one backward pass");
  --awaited_[whole_.layout.bucket_of(place)];
  while (next_ < awaited_.size() && awaited_[next_] == 0) send_next();
}

// Sends what the chosen leaves of the bucket have, and zeros where the others are. Returns whether
// there are any. What is shared out is not kept beside what was sent.
template <typename Chosen>
bool GradientSums::send_leaves(size_t index, Chosen&& is_chosen) {
  const FlatLayout::Bucket& bucket = whole_.layout.buckets()[index];
  Sending sending = {.bucket = index};
  for (const FlatLayout::Position& place : bucket.positions)
    if (is_chosen(place.tensor)) sending.positions.push_back(place);
  if (sending.positions.empty()) return false;
  settle(whole_, kBucketsUnderWay - 1);
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const auto& [place, begin] : bucket.positions) {
    Tensor& gradient = gradients.emplace_back();
    if (!is_chosen(place)) continue;
    Tensor& grad = Tensor(leaves_[place]).mutable_grad();
    gradient = grad;
    if (grad.defined()) whole_.has[place] = 1;
    if (is_shared()) grad.reset();
  }
  sending.values = pack(bucket, gradients);
  gradients.clear();
  begin(whole_, std::move(sending));
  return true;
}

void GradientSums::send_next() {
  send_leaves(next_, [&](size_t place) { return expected_[place] != 0; });
  ++next_;
}

// What is left of the pass that sends.
void GradientSums::send_pass() {
  is_sending_ = false;
  while (next_ < awaited_.size()) send_next();
  if (--passes_left_ > 0) begin_sending();
}

void GradientSums::send_rest() {
  while (passes_left_ > 0) send_pass();
}

void GradientSums::take(size_t place, const Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const FlatLayout& layout = divided_.layout;
  const size_t index = layout.bucket_of(place);
  const FlatLayout::Bucket& bucket = layout.buckets()[index];
  Tensor& values = waiting_[index];
  if (!values.defined()) values = at::zeros({bucket.count}, bucket.options);
  divided_.has[place] = 1;
  const Tensor numbers = gradient.detach().reshape({-1});
  const int64_t length = bucket.count / layout.parts();
  for (int part = 0; part < layout.parts(); ++part) {
    const auto [begin, at, count] = layout.extent(place, part);
    if (count == 0) continue;
    values.narrow(0, part * length + at, count).copy_(numbers.narrow(0, begin, count));
  }
}

void GradientSums::send(const Block& block) {
  const at::NoGradGuard no_grad;
  const std::vector<FlatLayout::Bucket>& buckets = divided_.layout.buckets();
  if (std::ranges::find(buckets, &block, &FlatLayout::Bucket::block) == buckets.end()) return;
  settle(divided_, 0);
  for (size_t index = 0; index < buckets.size(); ++index) {
    const FlatLayout::Bucket& bucket = buckets[index];
    if (bucket.block != &block) continue;
    Tensor values = std::exchange(waiting_[index], {});
    if (!values.defined()) values = at::zeros({bucket.count}, bucket.options);
    begin(divided_, {.bucket = index, .values = std::move(values)});
  }
}

void GradientSums::begin(Lane& lane, Sending sending) {
  Group& group = *lane.group;
  sending.host = group.sends(sending.values.device()) ? sending.values : sending.values.cpu();
  if (is_shared()) {
    sending.values.reset();
    sending.part = at::empty({sending.host.numel() / group.size()}, sending.host.options());
    sending.sent = group.reduce_scatter(sending.part, sending.host);
  } else {
    sending.sent = group.all_reduce(sending.host);
  }
  lane.under_way.push_back(std::move(sending));
}

// Until no more than `left` buckets are under way.
void GradientSums::settle(Lane& lane, size_t left) {
  const at::NoGradGuard no_grad;
  while (lane.under_way.size() > left) {
    Sending sending = std::move(lane.under_way.front());
    lane.under_way.pop_front();
    sending.sent.wait();
    // Where processes leave, nothing has come, and an exchange may still read what it was given.
    if (world_.is_called_off()) continue;
    if (!is_shared()) {
      give_back(sending);
      continue;
    }
    distributed::let_go(sending.host);
    distributed::add_to_sum(lane.sums[sending.bucket], sending.part,
                            lane.layout.buckets()[sending.bucket].options.device(),
                            options_.on_host);
  }
}

// Gradients are parts of their bucket from then on; where they are on the host, somebody else keeps
// their memory, and the sums come to it.
void GradientSums::give_back(Sending& sending) {
  const Tensor& values = sending.values;
  if (!values.is_same(sending.host)) {
    values.copy_(sending.host);
    distributed::let_go(sending.host);
  }
  for (const auto& [place, begin] : sending.positions) {
    const Tensor& leaf = leaves_[place];
    const Tensor sum = values.narrow(0, begin, leaf.numel()).view(leaf.sizes());
    Tensor& gradient = Tensor(leaf).mutable_grad();
    if (!plan_.wholes_on_host) {
      gradient = sum;
    } else if (gradient.defined()) {
      gradient.copy_(sum);
    } else {
      gradient = sum.clone();
    }
  }
}

// One exchange for all of it.
Tensor GradientSums::gather_status(const Tensor& loss, const std::vector<double>& numbers) {
  std::vector<double> mine = numbers;
  for (const Group* group : groups()) {
    const auto made = group->made();
    mine.insert(mine.end(), made.begin(), made.end());
  }
  mine.push_back(loss.defined() ? loss.item<double>() : 0.0);
  const int64_t marks = std::ssize(mine);
  append_marks(mine);
  const Tensor all = at::empty({world_.size(), std::ssize(mine)}, at::kDouble);
  world_.all_gather(all, at::tensor(mine, at::kDouble)).wait();
  int64_t first = std::ssize(numbers);
  for (Group* group : groups()) group->compare(all.narrow(1, std::exchange(first, first + 3), 3));
  loss_ = 0;
  whole_.has_anywhere.assign(leaves_.size(), 0);
  divided_.has_anywhere.assign(divided_.layout.tensors(), 0);
  for (const Tensor& told : all.unbind()) {
    const auto* const values = told.const_data_ptr<double>();
    loss_ += values[first];
    read_marks(values + marks);
  }
  return all.narrow(1, 0, std::ssize(numbers));
}

// One bit for each tensor that this rank has a gradient of, leaves first.
void GradientSums::append_marks(std::vector<double>& values) const {
  std::vector<char> has = whole_.has;
  for (size_t place = 0; place < has.size(); ++place)
    if (expected_[place] == 0) has[place] = leaves_[place].grad().defined();
  has.insert(has.end(), divided_.has.begin(), divided_.has.end());
  for (size_t begin = 0; begin < has.size(); begin += kMarks) {
    uint32_t marks = 0;
    for (size_t place = begin; place < std::min(begin + kMarks, has.size()); ++place)
      marks |= uint32_t{has[place] != 0} << (place - begin);
    values.push_back(marks);
  }
}

void GradientSums::read_marks(const double* values) {
  size_t place = 0;
  for (Lane* lane : {&whole_, &divided_}) {
    for (char& has : lane->has_anywhere) {
      const auto marks = static_cast<uint32_t>(values[place / kMarks]);
      has |= static_cast<char>(marks >> (place % kMarks) & 1);
      ++place;
    }
  }
}

Tensor GradientSums::finish() {
  const at::NoGradGuard no_grad;
  is_open_ = false;
  bool has_late = false;
  for (size_t bucket = 0; bucket < awaited_.size(); ++bucket)
    has_late |= send_leaves(bucket, [&](size_t place) {
      return expected_[place] == 0 && whole_.has_anywhere[place] != 0;
    });
  settle(whole_, 0);
  settle(divided_, 0);
  for (size_t place = 0; place < leaves_.size(); ++place) {
    if (whole_.has_anywhere[place] == 0) Tensor(leaves_[place]).mutable_grad() = Tensor();
  }
  expected_by_[denoiser_] = expected_ = whole_.has_anywhere;
  if (groups_.replicas) {
    add_groups(whole_);
    add_groups(divided_);
    groups_.replicas->compare();
  }
  if (has_late) whole_.group->compare();
  return at::full({}, loss_, at::kFloat);
}

// Adds up shards of sums over the groups that each have all of them.
void GradientSums::add_groups(Lane& lane) {
  const std::vector<FlatLayout::Bucket>& buckets = lane.layout.buckets();
  for (size_t index = 0; index < buckets.size(); ++index) {
    const FlatLayout::Bucket& bucket = buckets[index];
    if (std::ranges::none_of(bucket.positions, [&](const FlatLayout::Position& place) {
          return lane.has_anywhere[place.tensor] != 0;
        }))
      continue;
    Tensor& sum = lane.sums[index];
    if (!sum.defined()) {  // it came in another group alone
      Tensor nothing = at::zeros({bucket.count / lane.layout.parts()}, bucket.options);
      distributed::add_to_sum(sum, nothing, bucket.options.device(), options_.on_host);
    }
    distributed::exchange_through_host(*groups_.replicas, sum, [&](const Tensor& sent) {
      groups_.replicas->all_reduce(sent).wait();
    });
  }
}

Tensor GradientSums::shard(const Lane& lane, size_t place) const {
  if (lane.has_anywhere[place] == 0) return {};
  const FlatLayout::Extent extent = lane.layout.extent(place, lane.group->rank());
  return lane.sums[lane.layout.bucket_of(place)].narrow(0, extent.at, extent.count);
}

void GradientSums::give_up() {
  settle(divided_, 0);
  if (!std::exchange(is_open_, false)) return;
  send_rest();
  settle(whole_, 0);
}

int64_t GradientSums::sum_bytes() const {
  int64_t bytes = 0;
  for (const Lane* lane : {&whole_, &divided_}) {
    for (const Tensor& sum : lane->sums) bytes += bytes_of(sum);
  }
  return bytes;
}

int64_t GradientSums::bytes_under_way() const {
  int64_t bytes = 0;
  for (const Tensor& values : waiting_) bytes += bytes_of(values);
  for (const Lane* lane : {&whole_, &divided_}) {
    for (const Sending& sending : lane->under_way)
      bytes += bytes_of(sending.host) + bytes_of(sending.part);
  }
  return bytes;
}

}  // namespace atelier::parameters
