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

void require_at_least_one(int64_t value, const char* flag) {
  if (value >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--" + std::string(flag) + ": " + std::to_string(value) + " is less than 1");
}

int64_t divide_up(int64_t value, int64_t by) {
  return value / by + (value % by != 0);
}

// Numbers 0, 1, … in place of the given ones, in the order in which these are met.
std::vector<uint32_t> count_shapes(std::span<const int64_t> given, std::vector<int64_t>& counts) {
  std::unordered_map<int64_t, uint32_t> numbers;
  std::vector<uint32_t> shapes;
  shapes.reserve(given.size());
  for (const int64_t shape : given) {
    const auto [number, is_new] = numbers.emplace(shape, static_cast<uint32_t>(numbers.size()));
    if (is_new) counts.push_back(0);
    ++counts[number->second];
    shapes.push_back(number->second);
  }
  return shapes;
}

// Items of one shape that wait for their batch to fill.
struct Queue {
  std::vector<uint32_t> items;
  int64_t since = 0;  // which sample of the epoch the first of them is, before batches were made
};

// One pass over the dataset: the batches that fill in it, one after the other, and behind those of
// the last pass what is left.
struct Pass {
  int64_t epoch = 0;
  int64_t begin = 0;  // the first sample in the epoch's batches
  std::vector<uint32_t> items;

  bool has(int64_t of_epoch, int64_t sample) const {
    return epoch == of_epoch && sample >= begin && sample < begin + std::ssize(items);
  }
};

}  // namespace

struct Order::State {
  std::vector<uint32_t> shapes;  // of each item, from 0
  std::vector<int64_t> counts;   // items of each shape
  OrderOptions options;
  int64_t samples_per_epoch = 0, steps_per_epoch = 0;

  std::mutex mutex;
  std::array<std::shared_ptr<const Pass>, 2> planned;  // the last one first

  std::vector<uint32_t> permutation(int64_t epoch, int64_t pass) const;
  int64_t begin_of(int64_t pass) const;
  std::vector<Queue> waiting(int64_t epoch, int64_t pass) const;
  Pass plan(int64_t epoch, int64_t pass) const;
  std::shared_ptr<const Pass> pass_with(int64_t epoch, int64_t sample);
};

// Fisher and Yates.
std::vector<uint32_t> Order::State::permutation(int64_t epoch, int64_t pass) const {
  const uint64_t seed = random::stream_seed(options.seed, random::Stream::kOrder);
  const auto number = static_cast<uint32_t>(epoch * options.dataset_repeat + pass);
  std::vector<uint32_t> items(shapes.size());
  std::iota(items.begin(), items.end(), 0u);
  for (uint32_t i = static_cast<uint32_t>(items.size()) - 1; i > 0; --i) {
    std::swap(items[i], items[random::below(uint64_t{i} + 1, seed, i, number)]);
  }
  return items;
}

// Samples in the batches that are full before the pass.
int64_t Order::State::begin_of(int64_t pass) const {
  int64_t samples = 0;
  for (const int64_t count : counts) {
    samples += count * pass / options.batch_size * options.batch_size;
  }
  return samples;
}

// What waits at the beginning of the pass, by shape: the last items of the passes before it.
std::vector<Queue> Order::State::waiting(int64_t epoch, int64_t pass) const {
  std::vector<Queue> queues(counts.size());
  std::vector<int64_t> lacking(counts.size());
  int64_t lacking_in_all = 0;
  for (size_t shape = 0; shape < counts.size(); ++shape) {
    lacking[shape] = counts[shape] * pass % options.batch_size;
    lacking_in_all += lacking[shape];
  }
  while (lacking_in_all > 0) {
    --pass;
    const std::vector<uint32_t> items = permutation(epoch, pass);
    for (int64_t at = std::ssize(items) - 1; at >= 0; --at) {
      const uint32_t item = items[static_cast<size_t>(at)];
      if (lacking[shapes[item]] == 0) continue;
      --lacking[shapes[item]];
      --lacking_in_all;
      Queue& queue = queues[shapes[item]];
      queue.items.push_back(item);
      queue.since = pass * std::ssize(items) + at;
    }
  }
  for (Queue& queue : queues) std::reverse(queue.items.begin(), queue.items.end());
  return queues;
}

Pass Order::State::plan(int64_t epoch, int64_t pass) const {
  Pass planned = {epoch, begin_of(pass), {}};
  std::vector<Queue> queues = waiting(epoch, pass);
  int64_t now = pass * std::ssize(shapes);
  for (const uint32_t item : permutation(epoch, pass)) {
    Queue& queue = queues[shapes[item]];
    if (queue.items.empty()) queue.since = now;
    ++now;
    queue.items.push_back(item);
    if (std::ssize(queue.items) < options.batch_size) continue;
    planned.items.insert(planned.items.end(), queue.items.begin(), queue.items.end());
    queue.items.clear();
  }
  if (pass + 1 < options.dataset_repeat) return planned;
  // What is left, shape by shape: the one that waits longest first, so that this order, too, is
  // another one in each epoch.
  std::erase_if(queues, [](const Queue& queue) { return queue.items.empty(); });
  std::sort(queues.begin(), queues.end(),
            [](const Queue& a, const Queue& b) { return a.since < b.since; });
  for (const Queue& queue : queues) {
    planned.items.insert(planned.items.end(), queue.items.begin(), queue.items.end());
  }
  return planned;
}

// The pass that gives a sample of the epoch's batches.
std::shared_ptr<const Pass> Order::State::pass_with(int64_t epoch, int64_t sample) {
  const std::lock_guard lock(mutex);
  for (const auto& pass : planned) {
    if (pass && pass->has(epoch, sample)) return pass;
  }
  int64_t pass = 0;  // the last one that does not begin behind the sample
  for (int64_t end = options.dataset_repeat; end - pass > 1;) {
    const int64_t middle = pass + (end - pass) / 2;
    (begin_of(middle) <= sample ? pass : end) = middle;
  }
  planned[1] = std::move(planned[0]);  // frees the older one before another is made
  planned[0] = std::make_shared<const Pass>(plan(epoch, pass));
  return planned[0];
}

namespace {

// The process of each batch. Those of equal cost are dealt in turn.
std::vector<int> deal(std::span<const MicroBatch> batches, std::span<const int64_t> costs,
                      int size) {
  struct Hand {
    int64_t cost = 0, batches = 0;
  };
  std::vector<int64_t> cost_of;
  for (const MicroBatch& batch : batches) {
    int64_t& cost = cost_of.emplace_back(0);
    for (const StepSample& sample : batch) cost += costs[sample.item];
  }
  std::vector<size_t> order(batches.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cost_of[a] > cost_of[b]; });
  const int64_t most = divide_up(std::ssize(batches), size);
  std::vector<Hand> hands(static_cast<size_t>(size));
  std::vector<int> ranks(batches.size());
  for (const size_t batch : order) {
    const auto hand =
        std::min_element(hands.begin(), hands.end(), [&](const Hand& a, const Hand& b) {
          return std::pair(a.batches == most, a.cost) < std::pair(b.batches == most, b.cost);
        });
    hand->cost += cost_of[batch];
    ++hand->batches;
    ranks[batch] = static_cast<int>(hand - hands.begin());
  }
  return ranks;
}

}  // namespace

StepBatches share(StepBatches step, std::span<const int64_t> costs, int rank, int size,
                  bool in_lockstep) {
  const auto most = static_cast<size_t>(divide_up(std::ssize(step.batches), size));
  const std::vector<int> ranks = deal(step.batches, costs, size);
  std::vector<MicroBatch> batches;
  std::vector<uint32_t> numbers;
  const MicroBatch first = step.batches.front();
  for (size_t i = 0; i < step.batches.size(); ++i) {
    if (ranks[i] != rank) continue;
    batches.push_back(std::move(step.batches[i]));
    numbers.push_back(step.numbers[i]);
  }
  for (; in_lockstep && batches.size() < most; ++step.spares) {
    batches.push_back(first);
    numbers.push_back(step.numbers.front());
  }
  step.passes = static_cast<int64_t>(most);
  step.batches = std::move(batches);
  step.numbers = std::move(numbers);
  return step;
}

std::vector<std::vector<size_t>> rounds(const StepBatches& step, std::span<const int64_t> costs,
                                        int size) {
  const std::vector<int> ranks = deal(step.batches, costs, size);
  std::vector<std::vector<size_t>> rounds(
      static_cast<size_t>(divide_up(std::ssize(step.batches), size)));
  std::vector<size_t> next(static_cast<size_t>(size));
  for (size_t i = 0; i < step.batches.size(); ++i)
    rounds[next[static_cast<size_t>(ranks[i])]++].push_back(i);
  for (std::vector<size_t>& round : rounds)  // see share()
    if (std::ssize(round) < size && round.front() != 0) round.insert(round.begin(), 0);
  return rounds;
}

Order::Order(std::span<const int64_t> shapes, const OrderOptions& options)
    : state_(std::make_shared<State>()) {
  check(shapes.size(), options);
  state_->shapes = count_shapes(shapes, state_->counts);
  state_->options = options;
  state_->samples_per_epoch = std::ssize(shapes) * options.dataset_repeat;
  const int64_t batches = divide_up(state_->samples_per_epoch, options.batch_size);
  state_->steps_per_epoch = divide_up(batches, options.gradient_accumulation_steps);
}

void Order::check(size_t items, const OrderOptions& options) {
  require_at_least_one(options.batch_size, "batch_size");
  require_at_least_one(options.gradient_accumulation_steps, "gradient_accumulation_steps");
  require_at_least_one(options.dataset_repeat, "dataset_repeat");
  if (items == 0) throw Error(ErrorCode::kInvalidArgument, "the dataset has no items");
  const int64_t limit = std::numeric_limits<uint32_t>::max();
  if (static_cast<int64_t>(items) <= limit / options.dataset_repeat) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--dataset_repeat: " + std::to_string(options.dataset_repeat) + " times " +
                  std::to_string(items) + " items are too many for one epoch",
              "repeat the dataset less often and raise --num_epochs");
}

int64_t Order::steps_per_epoch() const {
  return state_->steps_per_epoch;
}

StepBatches Order::step(int64_t step) const {
  const OrderOptions& options = state_->options;
  const int64_t in_epoch = step % state_->steps_per_epoch;
  StepBatches plan;
  plan.epoch = step / state_->steps_per_epoch;
  plan.is_last_of_epoch = in_epoch + 1 == state_->steps_per_epoch;
  std::shared_ptr<const Pass> pass;
  const auto item_at = [&](int64_t sample) {
    if (!pass || !pass->has(plan.epoch, sample)) pass = state_->pass_with(plan.epoch, sample);
    return pass->items[static_cast<size_t>(sample - pass->begin)];
  };
  const int64_t first_batch = in_epoch * options.gradient_accumulation_steps;
  for (int64_t i = 0; i < options.gradient_accumulation_steps; ++i) {
    const int64_t begin = (first_batch + i) * options.batch_size;
    if (begin >= state_->samples_per_epoch) break;
    const int64_t end = std::min(begin + options.batch_size, state_->samples_per_epoch);
    for (int64_t at = begin; at < end; ++at) {
      const uint32_t item = item_at(at);
      const bool is_new =
          at == begin || state_->shapes[item] != state_->shapes[plan.batches.back().back().item];
      if (is_new) {
        plan.numbers.push_back(static_cast<uint32_t>(plan.batches.size()));
        plan.batches.emplace_back();
      }
      plan.batches.back().push_back({item, static_cast<uint32_t>(plan.samples++)});
    }
  }
  plan.passes = std::ssize(plan.batches);
  return plan;
}

}  // namespace atelier::data
