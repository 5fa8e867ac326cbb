#include "host/data/order.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "atelier/error.h"

#include "host/random/counter.h"
#include "support/catch.h"

namespace {
// Bytes that this thread has asked for so far.
thread_local int64_t asked_bytes = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  asked_bytes += static_cast<int64_t>(bytes);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort asks for its buffer this way.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  asked_bytes += static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace atelier::data {
namespace {

std::vector<size_t> items_of(const StepBatches& plan) {
  std::vector<size_t> items;
  for (const MicroBatch& batch : plan.batches) {
    for (const StepSample& place : batch) items.push_back(place.item);
  }
  return items;
}

// Every item of one epoch in the order in which they come.
std::vector<size_t> epoch_of(const Order& order, int64_t epoch) {
  std::vector<size_t> items;
  for (int64_t i = 0; i < order.steps_per_epoch(); ++i) {
    const auto step = items_of(order.step(epoch * order.steps_per_epoch() + i));
    items.insert(items.end(), step.begin(), step.end());
  }
  return items;
}

// Some of 5 shapes, not equally many of each.
std::vector<int64_t> some_shapes(size_t items) {
  std::vector<int64_t> shapes;
  for (size_t i = 0; i < items; ++i) {
    const auto u = random::uniform(1, static_cast<uint32_t>(i), 0);
    shapes.push_back(static_cast<int64_t>(5.0 * u * u) * 1000 - 7);
  }
  return shapes;
}

std::string message_of(std::span<const int64_t> shapes, const OrderOptions& options) {
  try {
    const Order order(shapes, options);
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// The items of one epoch, planned as a whole: what the order is, said in the plainest way.
std::vector<size_t> whole_epoch(std::span<const int64_t> shapes, const OrderOptions& options,
                                int64_t epoch) {
  const uint64_t seed = random::stream_seed(options.seed, random::Stream::kOrder);
  std::map<int64_t, std::vector<size_t>> waiting;
  std::map<int64_t, size_t> since;
  std::vector<size_t> order;
  size_t now = 0;
  for (int64_t repeat = 0; repeat < options.dataset_repeat; ++repeat) {
    std::vector<size_t> items(shapes.size());
    std::iota(items.begin(), items.end(), size_t{0});
    for (size_t i = items.size() - 1; i > 0; --i) {
      const auto pass = static_cast<uint32_t>(epoch * options.dataset_repeat + repeat);
      std::swap(items[i], items[random::below(i + 1, seed, static_cast<uint32_t>(i), pass)]);
    }
    for (const size_t item : items) {
      std::vector<size_t>& queue = waiting[shapes[item]];
      if (queue.empty()) since[shapes[item]] = now;
      ++now;
      queue.push_back(item);
      if (static_cast<int64_t>(queue.size()) < options.batch_size) continue;
      order.insert(order.end(), queue.begin(), queue.end());
      queue.clear();
    }
  }
  std::map<size_t, std::vector<size_t>> by_age;
  for (const auto& [shape, queue] : waiting) by_age[since[shape]] = queue;
  for (const auto& [age, queue] : by_age) order.insert(order.end(), queue.begin(), queue.end());
  return order;
}

bool equal(const StepBatches& a, const StepBatches& b) {
  const auto same_place = [](const StepSample& x, const StepSample& y) {
    return x.item == y.item && x.slot == y.slot;
  };
  const auto same_batch = [&](const MicroBatch& x, const MicroBatch& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_place);
  };
  return a.samples == b.samples && a.epoch == b.epoch && a.is_last_of_epoch == b.is_last_of_epoch &&
         std::equal(a.batches.begin(), a.batches.end(), b.batches.begin(), b.batches.end(),
                    same_batch);
}

TEST_CASE("An epoch has every item dataset_repeat times", "[order]") {
  for (const size_t items : {1, 7, 64, 301}) {
    for (const int64_t batch_size : {1, 4, 500}) {
      for (const int64_t accumulation : {1, 3}) {
        for (const int64_t repeat : {1, 5}) {
          CAPTURE(items, batch_size, accumulation, repeat);
          const auto shapes = some_shapes(items);
          const Order order(shapes, {.batch_size = batch_size,
                                     .gradient_accumulation_steps = accumulation,
                                     .dataset_repeat = repeat,
                                     .seed = 3});
          for (const int64_t epoch : {0, 1}) {
            std::vector<int64_t> counts(items);
            for (const size_t item : epoch_of(order, epoch)) ++counts[item];
            REQUIRE(std::set<int64_t>(counts.begin(), counts.end()) == std::set<int64_t>{repeat});
          }
        }
      }
    }
  }
}

TEST_CASE("Each pass over the dataset has every item once", "[order]") {
  const std::vector<int64_t> shapes(40, 0);
  const Order order(shapes, {.batch_size = 3, .dataset_repeat = 4, .seed = 9});
  const auto items = epoch_of(order, 2);
  REQUIRE(items.size() == 160);
  std::set<std::vector<size_t>> passes;
  for (auto begin = items.begin(); begin != items.end(); begin += 40) {
    passes.emplace(begin, begin + 40);
    REQUIRE(std::set<size_t>(begin, begin + 40).size() == 40);
  }
  REQUIRE(passes.size() == 4);  // each in an order of its own
}

TEST_CASE("An epoch that is planned pass by pass is the one that is planned as a whole",
          "[order]") {
  for (const size_t items : {1, 2, 13, 120}) {
    for (const int64_t batch_size : {1, 2, 7, 64}) {
      for (const int64_t repeat : {1, 2, 9, 40}) {
        const OrderOptions options = {.batch_size = batch_size,
                                      .gradient_accumulation_steps = 2,
                                      .dataset_repeat = repeat,
                                      .seed = 21};
        const std::vector<int64_t> one(items, 3);
        std::vector<int64_t> rare(items, 1);  // one item waits long for others of its shape
        rare.back() = 2;
        for (const auto& shapes : {some_shapes(items), one, rare}) {
          CAPTURE(items, batch_size, repeat);
          const Order order(shapes, options);
          for (const int64_t epoch : {0, 3}) {
            const std::vector<size_t> whole = whole_epoch(shapes, options, epoch);
            REQUIRE(epoch_of(order, epoch) == whole);
            // From any step on, as a run sees it that is resumed there.
            const int64_t middle = order.steps_per_epoch() / 2;
            const auto step =
                items_of(Order(shapes, options).step(epoch * order.steps_per_epoch() + middle));
            REQUIRE(std::equal(step.begin(), step.end(), whole.begin() + middle * batch_size * 2));
          }
        }
      }
    }
  }
}

TEST_CASE("Four billion samples an epoch take the memory and the work of a few passes", "[order]") {
  const size_t items = 1000;
  const auto shapes = some_shapes(items);
  for (const int64_t batch_size : {1, 4}) {
    for (const int64_t repeat : {1'000'000, 4'000'000}) {
      CAPTURE(batch_size, repeat);
      const int64_t before = asked_bytes;
      const Order order(shapes, {.batch_size = batch_size, .dataset_repeat = repeat, .seed = 8});
      REQUIRE(order.steps_per_epoch() == repeat * static_cast<int64_t>(items) / batch_size);
      const int64_t last = order.steps_per_epoch() - 1;
      for (const int64_t step : {int64_t{0}, int64_t{1}, last / 3, last / 3 + 1, last, last + 1})
        REQUIRE(order.step(step).samples == batch_size);
      REQUIRE(asked_bytes - before < 1'000'000);  // by all that was made, freed or not
    }
  }
}

TEST_CASE("Each of millions of passes has every item once", "[order]") {
  const std::vector<int64_t> shapes(1000, 0);
  const Order order(shapes, {.batch_size = 10, .dataset_repeat = 4'000'000, .seed = 8});
  std::set<std::vector<size_t>> passes;
  for (const int64_t pass : {0, 1, 77'777, 2'000'000, 3'999'999, 4'000'000, 9'000'000}) {
    std::vector<size_t> items;
    for (int64_t step = pass * 100; step < (pass + 1) * 100; ++step) {
      const auto some = items_of(order.step(step));
      items.insert(items.end(), some.begin(), some.end());
    }
    passes.insert(items);
    REQUIRE(std::set<size_t>(items.begin(), items.end()).size() == 1000);
  }
  REQUIRE(passes.size() == 7);  // each in an order of its own
}

TEST_CASE("Few items that are repeated often fill large batches", "[order]") {
  const std::vector<int64_t> shapes = {5, 5, 6};
  const Order order(shapes, {.batch_size = 64, .dataset_repeat = 1'000'000'000, .seed = 2});
  const int64_t last = order.steps_per_epoch() - 1;
  for (const int64_t step : {int64_t{0}, last / 2, last - 1}) {
    const StepBatches plan = order.step(step);
    REQUIRE(plan.samples == 64);
    REQUIRE(plan.batches.size() == 1);
    std::map<size_t, int64_t> counts;
    for (const StepSample& place : plan.batches.front()) ++counts[place.item];
    REQUIRE(counts.size() == (counts.contains(2) ? 1 : 2));
    if (!counts.contains(2)) REQUIRE(std::abs(counts[0] - counts[1]) <= 2);
  }
}

TEST_CASE("Steps are full but for the last of an epoch, and know which it is", "[order]") {
  const auto shapes = some_shapes(101);
  const Order order(
      shapes, {.batch_size = 4, .gradient_accumulation_steps = 3, .dataset_repeat = 2, .seed = 5});
  // 202 samples: 51 batches, the last of 2; 17 steps of 3.
  REQUIRE(order.steps_per_epoch() == 17);
  for (int64_t step = 0; step < 3 * 17; ++step) {
    CAPTURE(step);
    const StepBatches plan = order.step(step);
    REQUIRE(plan.epoch == step / 17);
    REQUIRE(plan.is_last_of_epoch == (step % 17 == 16));
    REQUIRE(plan.samples == (plan.is_last_of_epoch ? 10 : 12));
    REQUIRE(plan.samples == static_cast<int64_t>(items_of(plan).size()));
  }
}

TEST_CASE("Micro-batches have one shape, and slots count the samples of a step", "[order]") {
  const auto shapes = some_shapes(97);
  const Order order(shapes, {.batch_size = 5, .gradient_accumulation_steps = 2, .seed = 5});
  size_t full = 0;
  for (int64_t step = 0; step < order.steps_per_epoch(); ++step) {
    uint32_t slot = 0;
    for (const MicroBatch& batch : order.step(step).batches) {
      REQUIRE(!batch.empty());
      REQUIRE(batch.size() <= 5);
      full += batch.size() == 5;
      for (const StepSample& place : batch) {
        REQUIRE(shapes[place.item] == shapes[batch.front().item]);
        REQUIRE(place.slot == slot++);
      }
    }
  }
  // As many batches are of one shape as can be.
  std::map<int64_t, size_t> counts;
  for (const int64_t shape : shapes) ++counts[shape];
  size_t possible = 0;
  for (const auto& [shape, count] : counts) possible += count / 5;
  REQUIRE(full >= possible);
}

TEST_CASE("Batches of mixed shapes come in another order each epoch", "[order]") {
  // Every image has a shape of its own: nothing can share a micro-batch.
  std::vector<int64_t> shapes(30);
  for (size_t i = 0; i < shapes.size(); ++i) shapes[i] = 100 - static_cast<int64_t>(i);
  const Order order(shapes, {.batch_size = 4, .seed = 1});
  REQUIRE(order.steps_per_epoch() == 8);
  REQUIRE(order.step(0).batches.size() == 4);
  REQUIRE(order.step(7).samples == 2);
  REQUIRE(epoch_of(order, 0) != epoch_of(order, 1));
  // Nor do they follow the shapes.
  const auto items = epoch_of(order, 0);
  REQUIRE(!std::is_sorted(items.begin(), items.end()));
  REQUIRE(!std::is_sorted(items.rbegin(), items.rend()));
}

TEST_CASE("A step does not depend on which steps were asked for before", "[order]") {
  const auto shapes = some_shapes(50);
  const OrderOptions options = {
      .batch_size = 3, .gradient_accumulation_steps = 2, .dataset_repeat = 3, .seed = 11};
  const Order forward(shapes, options), backward(shapes, options);
  const int64_t steps = 5 * forward.steps_per_epoch();
  std::vector<StepBatches> plans;
  for (int64_t step = 0; step < steps; ++step) plans.push_back(forward.step(step));
  for (int64_t step = steps - 1; step >= 0; step -= 7) {
    REQUIRE(equal(backward.step(step), plans[static_cast<size_t>(step)]));
    // As a run that is resumed there sees it.
    REQUIRE(equal(Order(shapes, options).step(step), plans[static_cast<size_t>(step)]));
  }
}

TEST_CASE("Several threads read the same order", "[order]") {
  const auto shapes = some_shapes(200);
  const Order order(shapes, {.batch_size = 4, .seed = 2});
  const Order alone = Order(shapes, {.batch_size = 4, .seed = 2});
  std::vector<std::future<int>> wrong;
  for (int64_t thread = 0; thread < 4; ++thread) {
    wrong.push_back(std::async(std::launch::async, [&, thread] {
      int count = 0;
      for (int64_t step = thread; step < 200; step += 4) {
        const Order copy = order;
        count += !equal(copy.step(step), order.step(step));
      }
      return count;
    }));
  }
  for (auto& count : wrong) REQUIRE(count.get() == 0);
  for (int64_t step = 0; step < 200; ++step) REQUIRE(equal(order.step(step), alone.step(step)));
}

TEST_CASE("Seeds and epochs have orders of their own", "[order]") {
  const std::vector<int64_t> shapes(20, 0);
  std::set<std::vector<size_t>> orders;
  for (const uint64_t seed : {0, 1, 2}) {
    const Order order(shapes, {.seed = seed});
    for (int64_t epoch = 0; epoch < 20; ++epoch) orders.insert(epoch_of(order, epoch));
  }
  REQUIRE(orders.size() == 60);
}

TEST_CASE("Every item is equally likely at every place", "[order]") {
  const std::vector<int64_t> shapes(6, 0);
  const Order order(shapes, {.seed = 4});
  std::array<std::array<double, 6>, 6> counts{};
  const int64_t epochs = 6000;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto items = epoch_of(order, epoch);
    for (size_t at = 0; at < 6; ++at) ++counts[at][items[at]];
  }
  double chi_square = 0.0;
  for (const auto& row : counts) {
    for (const double count : row) chi_square += std::pow(count - 1000.0, 2) / 1000.0;
  }
  REQUIRE(chi_square < 55.0);  // 25 degrees of freedom: above with a probability of 0.0005
  REQUIRE(chi_square > 7.0);   // below with one of 0.0002
}

TEST_CASE("A million items are planned in well under a second", "[order]") {
  const auto shapes = some_shapes(1'000'000);
  const Order order(shapes, {.batch_size = 8, .seed = 1});
  const auto begin = std::chrono::steady_clock::now();
  order.step(0);
  const std::chrono::duration<double> planned = std::chrono::steady_clock::now() - begin;
  INFO("seconds: " << planned.count());
  CHECK(planned.count() < 3.0);  // slow builds and busy machines take their part
  const auto then = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < 1000; ++step) order.step(step);
  const std::chrono::duration<double> read = std::chrono::steady_clock::now() - then;
  CHECK(read.count() < 1.0);
}

TEST_CASE("Orders that cannot be are refused by the flag", "[order]") {
  const std::vector<int64_t> shapes(3, 0);
  REQUIRE_THAT(message_of(shapes, {.batch_size = 0}), Catch::Contains("--batch_size: 0"));
  REQUIRE_THAT(message_of(shapes, {.gradient_accumulation_steps = -1}),
               Catch::Contains("--gradient_accumulation_steps: -1"));
  REQUIRE_THAT(message_of(shapes, {.dataset_repeat = 0}), Catch::Contains("--dataset_repeat: 0"));
  REQUIRE_THAT(message_of(shapes, {.dataset_repeat = int64_t{1} << 40}),
               Catch::Contains("--dataset_repeat"));
  REQUIRE_THAT(message_of({}, {}), Catch::Contains("no items"));
  // Batches far larger than the dataset are one step.
  const Order order(
      shapes, {.batch_size = int64_t{1} << 62, .gradient_accumulation_steps = int64_t{1} << 62});
  REQUIRE(order.steps_per_epoch() == 1);
  REQUIRE(order.step(0).samples == 3);
}

}  // namespace
TEST_CASE("Processes share the batches of a step, with the places that they have in it",
          "[order]") {
  const std::vector<int64_t> shapes = {1, 1, 1, 2, 2};
  const Order order(shapes, {.batch_size = 2, .gradient_accumulation_steps = 3});
  const StepBatches whole = order.step(0);
  REQUIRE(whole.samples == 5);
  const std::vector<int64_t> costs(shapes.size(), 7);
  std::map<uint32_t, MicroBatch> dealt;
  for (int rank = 0; rank < 4; ++rank) {
    const StepBatches part = share(whole, costs, rank, 4);
    REQUIRE(part.samples == whole.samples);
    REQUIRE(part.is_last_of_epoch == whole.is_last_of_epoch);
    REQUIRE(part.numbers.size() == part.batches.size());
    for (size_t i = 0; i < part.batches.size(); ++i)
      REQUIRE(dealt.emplace(part.numbers[i], part.batches[i]).second);
  }
  REQUIRE(dealt.size() == whole.batches.size());
  for (const auto& [number, batch] : dealt) {
    const MicroBatch& expected = whole.batches.at(number);
    REQUIRE(batch.size() == expected.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      REQUIRE(batch[i].item == expected[i].item);
      REQUIRE(batch[i].slot == expected[i].slot);
    }
  }
}

TEST_CASE("In lockstep all processes have the same number of batches", "[order]") {
  const std::vector<int64_t> shapes(5), costs(5, 1);
  const StepBatches whole = Order(shapes, {.gradient_accumulation_steps = 5}).step(0);
  REQUIRE(whole.batches.size() == 5);
  for (const int size : {1, 2, 3, 5, 7}) {
    const auto each = static_cast<size_t>((5 + size - 1) / size);
    size_t counted = 0;
    for (int rank = 0; rank < size; ++rank) {
      const StepBatches part = share(whole, costs, rank, size, /*in_lockstep=*/true);
      REQUIRE(part.batches.size() == each);
      REQUIRE(part.numbers.size() == each);
      counted += each - part.spares;
      if (part.spares > 0) REQUIRE(part.batches.back().front().item == whole.batches[0][0].item);
      if (part.spares > 0) REQUIRE(part.numbers.back() == whole.numbers[0]);
    }
    REQUIRE(counted == 5);
  }
  REQUIRE(share(whole, costs, 3, 4).batches.size() == 1);
  REQUIRE(share(whole, costs, 6, 7).spares == 0);
}

// A step of batches of one sample each, of these costs.
StepBatches step_of(const std::vector<int64_t>& costs) {
  StepBatches step;
  for (uint32_t i = 0; i < costs.size(); ++i) {
    step.batches.push_back({{.item = i, .slot = i}});
    step.numbers.push_back(i);
  }
  step.samples = std::ssize(costs);
  return step;
}

// The numbers of the batches of each rank.
std::vector<std::vector<uint32_t>> dealt(const std::vector<int64_t>& costs, int size) {
  std::vector<std::vector<uint32_t>> numbers;
  for (int rank = 0; rank < size; ++rank)
    numbers.push_back(share(step_of(costs), costs, rank, size).numbers);
  return numbers;
}

TEST_CASE("Rounds are the batches that processes in lockstep compute side by side", "[order]") {
  const std::vector<int64_t> costs = {1, 8, 1, 8, 3, 2, 2};
  const StepBatches whole = step_of(costs);
  for (const int size : {1, 2, 3, 5, 8}) {
    const auto found = rounds(whole, costs, size);
    std::vector<std::set<size_t>> expected(found.size());
    for (int rank = 0; rank < size; ++rank) {
      const StepBatches part = share(whole, costs, rank, size, /*in_lockstep=*/true);
      REQUIRE(part.numbers.size() == expected.size());
      for (size_t i = 0; i < expected.size(); ++i) expected[i].insert(part.numbers[i]);
    }
    for (size_t i = 0; i < expected.size(); ++i)
      REQUIRE(std::set<size_t>(found[i].begin(), found[i].end()) == expected[i]);
  }
}

TEST_CASE("Batches of equal cost are dealt in turn", "[order]") {
  using Numbers = std::vector<std::vector<uint32_t>>;
  REQUIRE(dealt({5, 5, 5, 5, 5}, 2) == Numbers{{0, 2, 4}, {1, 3}});
  REQUIRE(dealt({5, 5}, 3) == Numbers{{0}, {1}, {}});
}

TEST_CASE("Batches are dealt so that processes have about equal costs", "[order]") {
  using Numbers = std::vector<std::vector<uint32_t>>;
  REQUIRE(dealt({1, 8, 1, 8}, 2) == Numbers{{0, 1}, {2, 3}});
  REQUIRE(dealt({9, 1, 1, 1, 9, 9, 1, 1}, 4) == Numbers{{0, 3}, {4, 6}, {5, 7}, {1, 2}});
  REQUIRE(dealt({90, 1, 1, 1}, 2) == Numbers{{0, 3}, {1, 2}});  // two each, as in turn
}

TEST_CASE("No process has more batches than in turn, and every batch is dealt once", "[order]") {
  for (uint32_t trial = 0; trial < 200; ++trial) {
    const auto draw = [&](uint32_t at, uint64_t below) {
      return static_cast<int64_t>(random::below(below, 42, at, trial));
    };
    const int size = 1 + static_cast<int>(draw(0, 8));
    std::vector<int64_t> costs;
    for (int64_t i = draw(1, 40); i >= 0; --i)
      costs.push_back(1 + draw(2 + static_cast<uint32_t>(i), 1000));
    const auto most = static_cast<size_t>((std::ssize(costs) + size - 1) / size);
    std::set<uint32_t> met;
    for (const std::vector<uint32_t>& numbers : dealt(costs, size)) {
      REQUIRE(numbers.size() <= most);
      REQUIRE(std::ranges::is_sorted(numbers));
      for (const uint32_t number : numbers) REQUIRE(met.insert(number).second);
    }
    REQUIRE(met.size() == costs.size());
  }
}

}  // namespace atelier::data
