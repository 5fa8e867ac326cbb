#include "host/data/order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "atelier/error.h"

#include "host/random/counter.h"

namespace atelier::data {
namespace {

// The items of an epoch, batch after batch: each of batch_size, the last one maybe smaller.
using Epoch = std::vector<uint32_t>;

void require_at_least_one(int64_t value, const char* flag) {
  if (value >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--" + std::string(flag) + ": " + std::to_string(value) + " is below 1");
}

int64_t divide_up(int64_t value, int64_t by) {
  return value / by + (value % by != 0);
}

// Numbers 0, 1, … in place of the given ones, in the order in which these are met.
std::vector<uint32_t> count_shapes(std::span<const int64_t> given, size_t& count) {
  std::unordered_map<int64_t, uint32_t> numbers;
  std::vector<uint32_t> shapes;
  shapes.reserve(given.size());
  for (const int64_t shape : given) {
    shapes.push_back(numbers.emplace(shape, static_cast<uint32_t>(numbers.size())).first->second);
  }
  count = numbers.size();
  return shapes;
}

// Items of one shape that wait for their batch to fill.
struct Queue {
  std::vector<uint32_t> items;
  uint64_t since = 0;  // when the first of them came
};

}  // namespace

struct Order::State {
  std::vector<uint32_t> shapes;  // of each item, from 0
  size_t num_shapes = 0;
  OrderOptions options;
  int64_t samples_per_epoch = 0, steps_per_epoch = 0;

  std::mutex mutex;
  // Those asked for last, the very last one first.
  std::array<std::pair<int64_t, std::shared_ptr<const Epoch>>, 2> planned;

  std::vector<uint32_t> permutation(uint32_t pass) const;
  Epoch plan(int64_t number) const;
  std::shared_ptr<const Epoch> epoch(int64_t number);
};

// Fisher and Yates.
std::vector<uint32_t> Order::State::permutation(uint32_t pass) const {
  const uint64_t seed = random::stream_seed(options.seed, random::Stream::kOrder);
  std::vector<uint32_t> items(shapes.size());
  std::iota(items.begin(), items.end(), 0u);
  for (uint32_t i = static_cast<uint32_t>(items.size()) - 1; i > 0; --i) {
    std::swap(items[i], items[random::below(uint64_t{i} + 1, seed, i, pass)]);
  }
  return items;
}

Epoch Order::State::plan(int64_t number) const {
  const auto batch_size = static_cast<size_t>(options.batch_size);
  Epoch epoch;
  epoch.reserve(static_cast<size_t>(samples_per_epoch));
  std::vector<Queue> queues(num_shapes);
  uint64_t now = 0;
  for (int64_t repeat = 0; repeat < options.dataset_repeat; ++repeat) {
    const int64_t pass = number * options.dataset_repeat + repeat;
    for (const uint32_t item : permutation(static_cast<uint32_t>(pass))) {
      Queue& queue = queues[shapes[item]];
      if (queue.items.empty()) queue.since = now;
      ++now;
      queue.items.push_back(item);
      if (queue.items.size() < batch_size) continue;
      epoch.insert(epoch.end(), queue.items.begin(), queue.items.end());
      queue.items.clear();
    }
  }
  // What is left, shape by shape: the one that waits longest first, so that this order, too, is
  // another one in each epoch.
  std::erase_if(queues, [](const Queue& queue) { return queue.items.empty(); });
  std::sort(queues.begin(), queues.end(),
            [](const Queue& a, const Queue& b) { return a.since < b.since; });
  for (const Queue& queue : queues) {
    epoch.insert(epoch.end(), queue.items.begin(), queue.items.end());
  }
  return epoch;
}

std::shared_ptr<const Epoch> Order::State::epoch(int64_t number) {
  const std::lock_guard lock(mutex);
  if (planned[0].second && planned[0].first == number) return planned[0].second;
  std::swap(planned[0], planned[1]);
  if (!planned[0].second || planned[0].first != number) {
    planned[0] = {number, nullptr};  // frees the old one before the new one is made
    planned[0].second = std::make_shared<const Epoch>(plan(number));
  }
  return planned[0].second;
}

Order::Order(std::span<const int64_t> shapes, const OrderOptions& options)
    : state_(std::make_shared<State>()) {
  require_at_least_one(options.batch_size, "batch_size");
  require_at_least_one(options.gradient_accumulation_steps, "gradient_accumulation_steps");
  require_at_least_one(options.dataset_repeat, "dataset_repeat");
  if (shapes.empty()) throw Error(ErrorCode::kInvalidArgument, "the dataset has no items");
  const int64_t limit = std::numeric_limits<uint32_t>::max();
  const auto items = static_cast<int64_t>(shapes.size());
  if (items > limit / options.dataset_repeat) {
    throw Error(ErrorCode::kInvalidArgument,
                "--dataset_repeat: " + std::to_string(options.dataset_repeat) + " times " +
                    std::to_string(items) + " items are too many for one epoch",
                "repeat the dataset less often and raise --num_epochs");
  }
  state_->shapes = count_shapes(shapes, state_->num_shapes);
  state_->options = options;
  state_->samples_per_epoch = items * options.dataset_repeat;
  const int64_t batches = divide_up(state_->samples_per_epoch, options.batch_size);
  state_->steps_per_epoch = divide_up(batches, options.gradient_accumulation_steps);
}

int64_t Order::steps_per_epoch() const {
  return state_->steps_per_epoch;
}

StepPlan Order::step(int64_t step) const {
  const OrderOptions& options = state_->options;
  const int64_t in_epoch = step % state_->steps_per_epoch;
  StepPlan plan;
  plan.epoch = step / state_->steps_per_epoch;
  plan.is_last_of_epoch = in_epoch + 1 == state_->steps_per_epoch;
  const std::shared_ptr<const Epoch> epoch = state_->epoch(plan.epoch);
  const int64_t first_batch = in_epoch * options.gradient_accumulation_steps;
  for (int64_t i = 0; i < options.gradient_accumulation_steps; ++i) {
    const int64_t begin = (first_batch + i) * options.batch_size;
    if (begin >= state_->samples_per_epoch) break;
    const int64_t end = std::min(begin + options.batch_size, state_->samples_per_epoch);
    for (int64_t at = begin; at < end; ++at) {
      const uint32_t item = (*epoch)[static_cast<size_t>(at)];
      const bool is_new =
          at == begin || state_->shapes[item] != state_->shapes[plan.batches.back().back().item];
      if (is_new) plan.batches.emplace_back();
      plan.batches.back().push_back({item, static_cast<uint32_t>(plan.samples++)});
    }
  }
  return plan;
}

}  // namespace atelier::data
