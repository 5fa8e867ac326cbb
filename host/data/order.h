// In which order samples come, and which of them are computed together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace atelier::data {

// One sample of a step. `slot` counts the samples of the step from 0: it keys their random numbers.
struct StepSample {
  size_t item;
  uint32_t slot;
};

// Samples of one shape that go through the model together.
using MicroBatch = std::vector<StepSample>;

// What one optimizer step learns from.
struct StepBatches {
  std::vector<MicroBatch> batches;
  std::vector<uint32_t> numbers;  // of the batches among those of the whole step
  int64_t samples = 0;            // of the whole step
  int64_t passes = 0;             // batches of the process that has most
  int64_t epoch = 0;              // from 0
  bool is_last_of_epoch = false;
  size_t spares = 0;  // how many of the last batches are another process's and count nothing
};

// What process `rank` of `size` computes of a step. `costs`: of each item. Batches are dealt, the
// dearest first, to who has least so far, so that all have about equal costs; none has more batches
// than it would have in turn. `in_lockstep`: all get the same number; where there are too few, the
// first one of the step is computed again and does not count.
StepBatches share(StepBatches step, std::span<const int64_t> costs, int rank, int size,
                  bool in_lockstep = false);

// Which batches of `step` are computed side by side where processes share it in lockstep: of each
// round the places of the batches that they have as those of this number.
std::vector<std::vector<size_t>> rounds(const StepBatches& step, std::span<const int64_t> costs,
                                        int size);

struct OrderOptions {
  int64_t batch_size = 1;
  int64_t gradient_accumulation_steps = 1;
  int64_t dataset_repeat = 1;  // an epoch has each item so often
  uint64_t seed = 0;
};

// A pure function of the options and of what the items are: nothing is carried from step to step,
// and of an epoch no more is held than passes over the dataset that are being read.
//
// In an epoch every item comes dataset_repeat times, once in each pass over the dataset, in an
// order of its own for each pass. Items of one shape are gathered into batches of batch_size as
// they come, over the ends of passes too; what is left of each shape at the end of the epoch makes
// up batches of mixed shapes, which run as several micro-batches of one step. Nothing is dropped. A
// step takes gradient_accumulation_steps batches, the last step of an epoch maybe fewer. Safe to
// read from several threads; copies share the passes that were planned.
class Order {
 public:
  // `shapes`: a number for each item; items of one number may share a micro-batch.
  // Throws as check() does.
  Order(std::span<const int64_t> shapes, const OrderOptions& options);

  // Throws Error{kInvalidArgument} when there are no items, and naming the flag of an option that
  // is below 1 or makes an epoch of more than 2^32 samples.
  static void check(size_t items, const OrderOptions& options);

  int64_t steps_per_epoch() const;

  // `step` from 0. Plans the passes that the step touches when they are none of the last two that
  // were planned: about 0.1 seconds for a million items, and as much again for each pass before it
  // from which items still wait for their batch.
  StepBatches step(int64_t step) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace atelier::data
