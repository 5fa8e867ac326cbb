#include "host/parameters/host_gradients.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "atelier/error.h"

namespace atelier::parameters {

using at::Tensor;

namespace {

// Gradients that may wait on the host to be added to their sums.
constexpr int64_t kMostStagedBytes = int64_t{256} << 20;

struct SendGradients final : torch::autograd::PostAccumulateGradHook {
  explicit SendGradients(std::shared_ptr<GradientSink> to) : sink(std::move(to)) {}
  void operator()(const Tensor& leaf) override {
    if (!leaf.grad().defined()) return;  // nothing that was computed with depends on it
    sink->add(leaf.grad());
    Tensor(leaf).mutable_grad() = Tensor();
  }
  std::shared_ptr<GradientSink> sink;
};

}  // namespace

struct HostGradients::Entry {
  optim::Parameter parameter;
  size_t place;
  Part* part;
  Tensor gradient;         // the sum; undefined before the first one
  bool has_first = false;  // on its way, or there
};

struct HostGradients::Part {
  std::vector<std::unique_ptr<Entry>> entries;
  const Block* block = nullptr;
  int64_t runs = 0, arrived = 0;  // in this pass
  bool is_moved = false;
};

class HostGradients::Sink final : public GradientSink {
 public:
  Sink(HostGradients& gradients, Entry& entry) : gradients_(gradients), entry_(entry) {}
  void add(const Tensor& gradient) override { gradients_.take(entry_, gradient); }

 private:
  HostGradients& gradients_;
  Entry& entry_;
};

HostGradients::HostGradients(memory::TransferDevice& transfer)
    : transfer_(transfer),
      loss_(transfer.host_memory(sizeof(float)).view(at::kFloat).view(at::IntArrayRef())) {
  thread_ = std::thread([this] { work(); });
}

HostGradients::~HostGradients() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<GradientSink> HostGradients::add(const optim::Parameter& parameter, size_t place,
                                                 const Block* block) {
  Part*& known = part_of_[block];
  if (block == nullptr || known == nullptr) {
    known = parts_.emplace_back(std::make_unique<Part>()).get();
    known->block = block;
  }
  Part& part = *known;
  Entry& entry = *part.entries.emplace_back(std::make_unique<Entry>());
  entry = {parameter, place, &part, {}};
  return std::make_shared<Sink>(*this, entry);
}

void HostGradients::begin_pass() {
  for (const auto& part : parts_) {
    part->runs = part->block == nullptr ? 1 : 0;
    part->arrived = 0;
  }
}

void HostGradients::expect(const Block& block) {
  const auto found = part_of_.find(&block);
  if (found != part_of_.end()) ++found->second->runs;
}

void HostGradients::begin_backward(const Tensor& loss, std::optional<Move> move) {
  move_ = move;
  if (!move_) return;
  const Tensor value = loss.detach().to(at::kFloat).view(at::IntArrayRef());
  loss_arrived_ = transfer_.copy_out(value, loss_, transfer_.computed());
}

// Called on autograd's device thread.
void HostGradients::take(Entry& entry, const Tensor& gradient) {
  Part& part = *entry.part;
  if (part.is_moved)
    throw Error(ErrorCode::kInternal,
                "trained tensor " + entry.parameter.name + " gets a gradient after it was moved");
  const bool is_first = !std::exchange(entry.has_first, true);
  const Tensor to = buffer(entry);
  if (!is_first) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return staged_bytes_ <= kMostStagedBytes || failure_; });
    staged_bytes_ += static_cast<int64_t>(to.nbytes());
  }
  const Tensor from = gradient.detach().to(to.scalar_type()).contiguous();
  const memory::Ticket arrival = transfer_.copy_out(from, to, transfer_.computed());
  push([this, &entry, to, arrival] {
    transfer_.wait(arrival);
    sum(entry, to);
  });
  const auto expected = part.runs * static_cast<int64_t>(part.entries.size());
  if (++part.arrived != expected) return;
  // Gradients of one block are on their way while the next one's are computed, and no more: they
  // rest on the device until then.
  if (part.block != nullptr) transfer_.wait(std::exchange(last_block_, arrival));
  if (!move_) return;
  part.is_moved = true;
  push([this, &part] { move(part); });
}

void HostGradients::sum(Entry& entry, const Tensor& arrived) {
  if (!entry.gradient.defined()) {
    entry.gradient = arrived;
    Tensor(entry.parameter.leaf).mutable_grad() = arrived;
    return;
  }
  entry.gradient.add_(arrived);
  give_back(arrived);
  {
    const std::lock_guard lock(mutex_);
    staged_bytes_ -= static_cast<int64_t>(arrived.nbytes());
  }
  changed_.notify_all();
}

void HostGradients::move(Part& part) {
  std::vector<Tensor> gradients;
  std::vector<size_t> places;
  for (const auto& entry : part.entries) {
    gradients.push_back(entry->gradient);
    places.push_back(entry->place);
  }
  transfer_.wait(loss_arrived_);
  bool is_finite = std::isfinite(loss_.item<float>());
  const std::vector<Tensor> norms = optim::gradient_norms(gradients);
  for (size_t i = 0; i < norms.size(); ++i) {
    norms_[part.entries[i]->parameter.name] = norms[i];
    is_finite = is_finite && std::isfinite(norms[i].item<float>());
  }
  if (is_finite) {
    has_moved_ = true;
    move_->optimizer->step_part(places, move_->lr, at::ones({}), at::zeros({}));
  }
  for (const auto& entry : part.entries) drop(*entry);
}

void HostGradients::drop(Entry& entry) {
  entry.has_first = false;
  if (!entry.gradient.defined()) return;
  Tensor(entry.parameter.leaf).mutable_grad() = Tensor();
  give_back(std::exchange(entry.gradient, {}));
}

void HostGradients::finish() {
  wait_until_idle();
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool HostGradients::give_up() {
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
  }
  wait_until_idle();
  return has_moved_;
}

void HostGradients::clear() {
  give_up();
  for (const auto& part : parts_) {
    for (const auto& entry : part->entries) drop(*entry);
    part->is_moved = false;
  }
  const std::lock_guard lock(mutex_);
  failure_ = nullptr;
  staged_bytes_ = 0;
  norms_.clear();
  has_moved_ = false;
  move_.reset();
}

// A buffer of the entry's shape; sizes recur from block to block, so buffers are used again.
Tensor HostGradients::buffer(const Entry& entry) {
  const Tensor& leaf = entry.parameter.leaf;
  const auto bytes = static_cast<int64_t>(leaf.nbytes());
  Tensor memory;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(bytes); found != free_.end()) {
      memory = found->second;
      free_.erase(found);
    }
  }
  if (!memory.defined()) memory = transfer_.host_memory(bytes);
  return memory.view(leaf.scalar_type()).view(leaf.sizes());
}

int64_t HostGradients::buffer_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = staged_bytes_;
  for (const auto& [size, buffer] : free_) bytes += size;
  return bytes;
}

void HostGradients::give_back(const Tensor& buffer) {
  const std::lock_guard lock(mutex_);
  free_.emplace(static_cast<int64_t>(buffer.nbytes()), buffer.view({-1}).view(at::kByte));
}

void HostGradients::push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;  // what is missing must not be moved by
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void HostGradients::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !is_busy_; });
}

void HostGradients::work() {
  const memory::HostScope host;
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      is_busy_ = true;
      lock.unlock();
      try {
        job();
        lock.lock();
      } catch (...) {
        lock.lock();
        failure_ = std::current_exception();
        jobs_.clear();
      }
    }
    is_busy_ = false;
    changed_.notify_all();
  }
}

void send_gradients(const Tensor& leaf, std::shared_ptr<GradientSink> sink) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf,
                                                 std::make_unique<SendGradients>(std::move(sink)));
}

void keep_gradients(const Tensor& leaf) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
}

}  // namespace atelier::parameters
