// What one rank of many asks its transport for in real steps, beside what is planned. The other
// ranks do not exist: LibTorch's FakeProcessGroup stands for them.
#include <algorithm>
#include <filesystem>

#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>

#include "atelier/ops/attention.h"
#include "atelier/shared_rows.h"

#include "host/distributed/group.h"
#include "host/distributed/sequence.h"
#include "host/distributed/slab_group.h"
#include "host/distributed/staged.h"
#include "host/plan/dry_exchange.h"
#include "host/plan/rank_sizes.h"
#include "host/plan/run_sizes.h"
#include "host/train/trainer.h"
#include "tests/host/train/run_toy.h"

namespace atelier::plan {
namespace {

using c10d::AllgatherOptions;
using c10d::AllreduceOptions;
using c10d::AllToAllOptions;
using distributed::Group;
using Pending = c10::intrusive_ptr<c10d::Work>;

// Bytes that this rank sends. What ranks agree on is in whole numbers and in doubles, and is not
// counted; blocks and rows are sent as bytes.
struct Sent {
  double trained = 0;     // gradients and moved values
  double blocks = 0;      // and rows that are gathered
  double rows = 0;        // around attention
  int64_t exchanges = 0;  // of any kind
  int64_t awaited = 0;    // gathers that were waited for
};

struct CountedWork final : c10d::FakeWork {
  explicit CountedWork(int64_t& count) : count(count) {}
  bool wait(std::chrono::milliseconds timeout) override {
    ++count;
    return FakeWork::wait(timeout);
  }
  int64_t& count;
};

class CountingTransport final : public c10d::FakeProcessGroup {
 public:
  CountingTransport(int rank, int size, Sent& sent)
      : FakeProcessGroup(rank, size, c10::make_intrusive<Options>()),
        others_(static_cast<double>(size - 1) / size),
        sent_(sent) {}

  Pending allreduce(std::vector<at::Tensor>& tensors, const AllreduceOptions& options) override {
    for (const at::Tensor& tensor : tensors) count(tensor, 2 * others_, sent_.trained);
    return FakeProcessGroup::allreduce(tensors, options);
  }
  Pending _allgather_base(at::Tensor& whole, at::Tensor& part,
                          const AllgatherOptions& options) override {
    count(whole, others_, sent_.blocks);
    FakeProcessGroup::_allgather_base(whole, part, options);
    return c10::make_intrusive<CountedWork>(sent_.awaited);
  }
  Pending alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_parts,
                        std::vector<int64_t>& in_parts, const AllToAllOptions& options) override {
    // Parts of some size go to one rank, which is another one.
    count(in, in_parts.empty() ? others_ : 1.0, sent_.rows);
    out.copy_(in);
    return FakeProcessGroup::alltoall_base(out, in, out_parts, in_parts, options);
  }

 private:
  void count(const at::Tensor& whole, double times, double& as_bytes) {
    ++sent_.exchanges;
    const double bytes = times * static_cast<double>(whole.nbytes());
    if (whole.scalar_type() == at::kByte)
      as_bytes += bytes;
    else if (whole.scalar_type() == at::kFloat || whole.scalar_type() == at::kBFloat16)
      sent_.trained += bytes;
  }

  const double others_;  // of all ranks
  Sent& sent_;
};

constexpr double kToyBlocks = 2;

// One rank of many.
struct OneOfMany : test::RunToy {
  Sent sent;
  int64_t steps = 0;

  OneOfMany() {
    config.dataset_num_workers = 1;
    config.output.save_state = false;
    config.output.save_steps = 100;
    config.output.output_path = folder / "run";
  }

  std::shared_ptr<Group> meet(int64_t size, int rank = 0) {
    return Group::meet({.rank = rank, .size = static_cast<int>(size)},
                       {.transport = [this](int rank, int of) -> c10::intrusive_ptr<c10d::Backend> {
                         return c10::make_intrusive<CountingTransport>(rank, of, sent);
                       }});
  }

  // Trains with `mode` and `batches` of each rank in a step.
  void train(const RankMode& mode, int batches = 1) {
    config.shards = {.stage = mode.zero_stage, .group = std::to_string(mode.group)};
    config.sequence_parallel = static_cast<int>(mode.sequence);
    config.order.gradient_accumulation_steps = batches * mode.batches();
    config.order.dataset_repeat = batches * mode.batches();  // of three images: all steps are whole
    const std::shared_ptr<Group> group = meet(mode.ranks);
    const std::shared_ptr<Group> blocks =
        mode.zero_stage == 3 ? open_divided(*group, mode) : nullptr;
    if (!blocks) open();
    const auto sequence = distributed::make_sequence(*group, config.sequence_parallel);
    run::RunFolder run_folder(config.output.output_path);
    train::Trainer trainer(
        {*model, config, parameters::unplanned_layout(config), *samples, nullptr, nullptr,
         &run_folder, progress, nullptr, group.get(), blocks.get(), sequence.get()},
        selection());
    steps = trainer.total_steps();
    REQUIRE(steps == 3 * config.num_epochs);
    sent = {};
    REQUIRE(trainer.run() == 0);
  }

  // What is planned of it from what the files say.
  DryExchange planned(const RankMode& mode) {
    return dry_exchange(*model, selection(), config, mode, /*rests_on_host=*/false,
                        components(mode));
  }
  // Bytes that a step sends of what is trained. Each block runs once in a batch.
  double planned_bytes(const RankMode& mode, int64_t batches = 1) {
    return sent_bytes(planned(mode).plan, "", static_cast<double>(batches),
                      static_cast<double>(batches));
  }
  // Bytes of a block of the denoiser, with what divides it.
  double block_bytes(const RankMode& mode) {
    return static_cast<double>(components(mode).front().storages.front().blocks.front());
  }

 private:
  std::vector<memory::PlannedComponent> components(const RankMode& mode) {
    PlanBasis basis;
    if (mode.zero_stage == 3) basis.placement.denoiser_shards = static_cast<int>(mode.group);
    memory::PlannedRun run = size_components(*model, basis, /*prepares_levels=*/false);
    std::erase_if(run.components, [](const auto& component) { return component.name != "dit"; });
    return run.components;
  }

  std::shared_ptr<Group> open_divided(Group& world, const RankMode& mode) {
    std::shared_ptr<Group> blocks = world.neighbours(static_cast<int>(mode.group), "blocks");
    model = model::LoadedModel::open(
        test::hooked_toy(),
        {.model_paths = folder / "model",
         .dtype = "float32",
         .device = "cpu",
         .placement = {.prefetch = 0, .denoiser_shards = static_cast<int>(mode.group)}});
    model->meet(distributed::divide_slabs(blocks));
    model->load_component("dit");
    return blocks;
  }
};

TEST_CASE("A step asks for the bytes that are planned, on 8, 64 and 512 ranks", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  OneOfMany one;
  const RankMode mode = {.ranks = size, .group = size};
  one.train(mode);
  CHECK(one.sent.trained == static_cast<double>(one.steps) * one.planned_bytes(mode));
  // A bucket, and what ranks tell each other.
  CHECK(one.sent.exchanges == 2 * one.steps);
}

TEST_CASE("So does one of stages 1 and 2, in one group and in several", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  const int stage = GENERATE(1, 2);
  const int batches = GENERATE(1, 3);
  const bool is_of_eight = GENERATE(false, true);
  OneOfMany one;
  const RankMode mode = {.ranks = size, .zero_stage = stage, .group = is_of_eight ? 8 : size};
  one.train(mode, batches);
  CHECK(one.sent.trained == static_cast<double>(one.steps) * one.planned_bytes(mode, batches));
}

TEST_CASE("So does one of a LoRA whose base is divided", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  const bool is_of_eight = GENERATE(false, true);
  OneOfMany one;
  one.train_lora();
  const RankMode mode = {.ranks = size, .zero_stage = 3, .group = is_of_eight ? 8 : size};
  one.train(mode);
  const auto steps = static_cast<double>(one.steps);
  CHECK(one.sent.trained == steps * one.planned_bytes(mode));
  // The last of two blocks is still in the one place when the backward pass begins with it, and
  // the first one when the next forward pass does.
  const double gathered = one.block_bytes(mode) * (1 + 1 / (2 * steps));
  CHECK(one.sent.blocks == Approx(steps * gathered_bytes(mode, gathered, 1)).epsilon(1e-12));
}

struct IdleRunner final : BlockRunner {
  Tensors run(Block& /*block*/, const Tensors& /*inputs*/) override { return {}; }
};

// Values of weights of the second block, in bfloat16, and of factors of both, in float32: two
// buckets.
TEST_CASE("Moved values are on their way until the block that needs them runs", "[ranks]") {
  OneOfMany one;
  one.open("cpu", "bfloat16");
  one.train_lora();
  one.config.trainable_models = {"dit.blocks.1"};
  one.config.shards = {.stage = 1, .group = "all"};
  const std::shared_ptr<Group> group = one.meet(8);
  parameters::TrainedTensors trained(*one.model, one.selection(), one.config,
                                     parameters::unplanned_layout(one.config), group.get());
  parameters::ParameterPlacement& placement = trained.placement();
  IdleRunner idle;
  BlockRunner& runner = placement.runner(idle);
  const std::vector<Block*> blocks = one.model->model().blocks("dit");
  REQUIRE(blocks.size() == 2);
  one.sent = {};
  const auto check = [&](int64_t begun, int64_t awaited) {
    CHECK(one.sent.exchanges == begun);
    CHECK(one.sent.awaited == awaited);
  };
  placement.publish_ahead();
  check(1, 0);
  placement.begin_step("dit", /*passes=*/1);
  placement.begin_pass();  // nothing is trained outside of blocks
  check(1, 0);
  runner.run(*blocks[0], {});
  check(2, 1);
  runner.hold(*blocks[1]);
  check(2, 2);
  runner.run(*blocks[1], {});
  check(2, 2);
  placement.give_up();
  placement.publish_ahead();
  placement.complete();
  check(4, 4);
  placement.publish();
  check(6, 6);
}

TEST_CASE("Sums are not taken before ranks have told each other what there is", "[ranks]") {
  OneOfMany one;
  one.open();
  one.config.shards = {.stage = GENERATE(0, 1, 2), .group = "all"};
  const std::shared_ptr<Group> group = one.meet(8);
  parameters::TrainedTensors trained(*one.model, one.selection(), one.config,
                                     parameters::unplanned_layout(one.config), group.get());
  parameters::ParameterPlacement& placement = trained.placement();
  at::Tensor loss = at::zeros({});
  placement.begin_step("dit", /*passes=*/1);
  test::expect_error(ErrorCode::kInternal,
                     {"gather_status() of trained parameters is called in kPasses"},
                     [&] { placement.gather_status(loss, {}); });
  placement.end_passes();
  test::expect_error(ErrorCode::kInternal, {"take_gradients()", "kSent"},
                     [&] { placement.take_gradients(loss, /*max_norm=*/0); });
  placement.gather_status(loss, {});
  test::expect_error(ErrorCode::kInternal, {"gather_status()", "kGathered"},
                     [&] { placement.gather_status(loss, {}); });
  placement.take_gradients(loss, /*max_norm=*/0);
  placement.end_step();
}

// As of a GPU from which nothing is sent.
TEST_CASE("A gather through host memory is under way until its block is asked for", "[ranks]") {
  Sent sent;
  const std::shared_ptr<Group> group =
      Group::meet({.rank = 1, .size = 4},
                  {.transport = [&](int rank, int size) -> c10::intrusive_ptr<c10d::Backend> {
                    return c10::make_intrusive<CountingTransport>(rank, size, sent);
                  }});
  const at::Tensor part = at::full({1024}, 7, at::kByte), whole = at::zeros({4096}, at::kByte);
  const bool sends = GENERATE(true, false);
  const auto arrive = distributed::gathered_into(*group, whole, part, "block 3", sends);
  CHECK(sent.exchanges == 1);
  CHECK(sent.awaited == 0);
  CHECK(whole.eq(7).all().item<bool>() == sends);  // where this transport is done at once
  arrive();
  CHECK(sent.awaited == 1);
  CHECK(whole.eq(7).all().item<bool>());
}

// Blocks in parts of whole KiB, their gradients in parts as long as the longest.
TEST_CASE("So does one of trained blocks that are divided", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  const int batches = GENERATE(1, 3);
  const bool is_of_eight = GENERATE(false, true);
  OneOfMany one;
  const RankMode mode = {.ranks = size, .zero_stage = 3, .group = is_of_eight ? 8 : size};
  // Three steps, and three more: what a run sends beside, to write its weights, is no part of them.
  one.train(mode, batches);
  const Sent beside = one.sent;
  one.config.num_epochs = 2;
  one.train(mode, batches);
  const auto steps = static_cast<double>(one.steps) / 2;
  CHECK(one.sent.trained - beside.trained ==
        Approx(steps * one.planned_bytes(mode, batches)).epsilon(1e-12));
  // Each pass over two blocks begins with the block that the one before ended with, which is there
  // unless it was moved.
  const double passes = 2 * batches, kept = (passes - 1) / passes;
  const double gathered = (kToyBlocks - kept) * one.block_bytes(mode);
  CHECK(one.sent.blocks - beside.blocks ==
        Approx(steps * gathered_bytes(mode, gathered, batches)).epsilon(1e-12));
}

// The rank counts that has most, of a group of eight.
TEST_CASE("Ranks hold the gradients, the states and the copies that are planned", "[ranks]") {
  const int stage = GENERATE(0, 1, 2);
  const bool on_host = GENERATE(false, true);
  const auto masters = GENERATE(optim::MasterWeights::kFp32, optim::MasterWeights::kStochastic);
  if (on_host && stage == 0) return;  // gradients go there from blocks that run
  OneOfMany one;
  one.open("simulated", "bfloat16");
  one.config.shards = {.stage = stage, .group = "8"};
  one.config.offload.optimizer = on_host;
  one.config.optimizer.master_weights = masters;
  const RankMode mode = {.ranks = 16, .zero_stage = stage, .on_host = on_host, .group = 8};
  const DryExchange planned = one.planned(mode);
  const GradientBytes gradients = gradient_bytes(planned.plan, "");
  MovedBytes most;
  for (int rank = 0; rank < 8; ++rank) {
    const std::shared_ptr<Group> group = one.meet(16, rank);
    parameters::TrainedTensors trained(*one.model, one.selection(), one.config,
                                       parameters::unplanned_layout(one.config), group.get());
    parameters::ParameterPlacement& placement = trained.placement();
    REQUIRE(placement.is_on_host() == on_host);
    const auto optimizer =
        optim::make_optimizer(trained.moved(), one.config.optimizer, placement.sum());
    most.states = std::max(most.states, static_cast<double>(optimizer->state_bytes()));
    most.step = std::max(most.step, static_cast<double>(optimizer->step_bytes()));
    double numbers = 0, copies = 0;
    for (const optim::Group& moved : trained.moved()) {
      for (const optim::Parameter& parameter : moved.parameters) {
        numbers += static_cast<double>(parameter.leaf.numel());
        if (on_host && !parameter.master_of) copies += static_cast<double>(parameter.leaf.nbytes());
      }
    }
    most.numbers = std::max(most.numbers, numbers);
    most.copies = std::max(most.copies, copies);

    placement.begin_step("dit", /*passes=*/1);
    for (const optim::Group& of : trained.groups()) {
      for (const optim::Parameter& parameter : of.parameters)
        at::Tensor(parameter.leaf).mutable_grad() = at::zeros_like(parameter.leaf);
    }
    if (stage < 2) {
      CHECK(static_cast<double>(placement.gradient_bytes().device) == gradients.wholes);
      CHECK(placement.gradient_bytes().host == 0);
    }
    at::Tensor loss = at::zeros({});
    placement.end_passes();
    placement.gather_status(loss, {});
    placement.take_gradients(loss, /*max_norm=*/0);
    const auto [device, host] = placement.gradient_bytes();
    const double kept = stage == 0 ? gradients.wholes : gradients.sums;
    CHECK(static_cast<double>(on_host ? host : device) == kept);
    CHECK((on_host ? device : host) == 0);
    placement.end_step();
  }
  CHECK(planned.moved.numbers == most.numbers);
  CHECK(planned.moved.copies == most.copies);
  CHECK(planned.moved.states == most.states);
  CHECK(planned.moved.step == most.step);
}

TEST_CASE("On the host a rank holds twelve bytes of each bfloat16 number that it moves",
          "[ranks]") {
  const auto kind = GENERATE(optim::Kind::kAdamW, optim::Kind::kProdigy);
  OneOfMany one;
  one.open("simulated", "bfloat16");
  one.config.shards = {.stage = 2, .group = "8"};
  one.config.offload.optimizer = true;
  one.config.optimizer.kind = kind;
  const std::shared_ptr<Group> group = one.meet(8);
  const parameters::TrainedTensors trained(*one.model, one.selection(), one.config,
                                           parameters::unplanned_layout(one.config), group.get());
  REQUIRE(trained.placement().is_on_host());
  const auto optimizer =
      optim::make_optimizer(trained.moved(), one.config.optimizer, trained.placement().sum());
  int64_t numbers = 0;
  std::map<const void*, int64_t> held;  // by memory
  const auto add = [&](const at::Tensor& value) {
    if (value.dim() == 1) held[value.const_data_ptr()] = static_cast<int64_t>(value.nbytes());
  };
  for (const optim::Group& moved : trained.moved()) {
    for (const optim::Parameter& parameter : moved.parameters) {
      if (parameter.leaf.numel() == 0) continue;
      CHECK(parameter.dtype() == at::kBFloat16);
      numbers += parameter.leaf.numel();
      add(parameter.leaf);
    }
  }
  for (const auto& [name, value] : optimizer->state()) {
    if (value.numel() > 0) add(value);
  }
  int64_t bytes = 0;
  for (const auto& [memory, of_it] : held) bytes += of_it;
  // Prodigy also keeps what a number was at first, in two bytes, and one more of four.
  CHECK(bytes == (kind == optim::Kind::kAdamW ? 12 : 18) * numbers);
}

// The toy's velocities go through an attention among the rows of all ranks of a sequence.
test::VelocityHook attend_to_all(int64_t heads) {
  return [heads](const at::Tensor& velocity) {
    const auto sizes = velocity.sizes();
    const int64_t width = velocity.size(1), cells = velocity[0].numel() / width;
    const SharedRows shared(Segments::uniform(velocity.size(0), cells));
    const at::Tensor rows = shared.take(velocity.flatten(2).transpose(1, 2).reshape({-1, width}))
                                .unflatten(1, {heads, width / heads});
    const at::Tensor attended = ops::attention(rows, rows, rows, shared.rows());
    return shared.gather(attended)
        .view({velocity.size(0), cells, width})
        .transpose(1, 2)
        .reshape(sizes);
  };
}

TEST_CASE("So does one whose rows are shared out for attention", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  const int parts = GENERATE(2, 8);
  const int heads = GENERATE(8, 2);  // keys go around where the parts do not divide them
  const int batches = GENERATE(1, 2);
  OneOfMany one;
  const RankMode mode = {.ranks = size, .group = size, .sequence = parts};
  {
    const test::HookScope attends(attend_to_all(heads));
    one.train(mode, batches);
  }
  const auto steps = static_cast<double>(one.steps);
  CHECK(one.sent.trained == steps * one.planned_bytes(mode, batches));
  memory::Strategy strategy = {.repeats = static_cast<double>(batches),
                               .needs_all_blocks = true,
                               .forward = {{"dit", {0.0}}},
                               .backward = {{"dit", {0.0}}}};
  double sends = 0;
  const double attended = 16 * test::kToyChannels * sizeof(float);  // of a sample's cells
  share_rows(strategy, mode, {.bytes = attended, .heads = heads, .key_heads = heads},
             *memory::known_links("infiniband"), sends);
  CHECK(one.sent.rows == steps * sends);
}

}  // namespace
}  // namespace atelier::plan
