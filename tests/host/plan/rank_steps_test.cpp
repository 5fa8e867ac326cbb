// What one rank of many asks its transport for in real steps, beside what is planned. The other
// ranks do not exist: LibTorch's FakeProcessGroup stands for them.
#include <filesystem>

#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>

#include "host/distributed/group.h"
#include "host/plan/rank_sizes.h"
#include "host/train/trainer.h"
#include "tests/host/train/run_toy.h"

namespace atelier::plan {
namespace {

using c10d::AllgatherOptions;
using c10d::AllreduceOptions;
using c10d::AllToAllOptions;
using distributed::Group;
using Pending = c10::intrusive_ptr<c10d::Work>;

// Counts bytes of training: what ranks agree on is counted in whole numbers and in doubles.
struct Counted {
  double reduced = 0, gathered = 0, exchanged = 0;  // whole tensors
};

class CountingTransport final : public c10d::FakeProcessGroup {
 public:
  CountingTransport(int rank, int size, Counted& counted)
      : FakeProcessGroup(rank, size, c10::make_intrusive<Options>()), counted_(counted) {}

  Pending allreduce(std::vector<at::Tensor>& tensors, const AllreduceOptions& options) override {
    for (const at::Tensor& tensor : tensors) counted_.reduced += bytes_of(tensor);
    return FakeProcessGroup::allreduce(tensors, options);
  }
  Pending _allgather_base(at::Tensor& whole, at::Tensor& part,
                          const AllgatherOptions& options) override {
    counted_.gathered += bytes_of(whole);
    return FakeProcessGroup::_allgather_base(whole, part, options);
  }
  Pending alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_parts,
                        std::vector<int64_t>& in_parts, const AllToAllOptions& options) override {
    counted_.exchanged += bytes_of(in);
    out.copy_(in);
    return FakeProcessGroup::alltoall_base(out, in, out_parts, in_parts, options);
  }

 private:
  static double bytes_of(const at::Tensor& tensor) {
    const bool is_trained =
        tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
    return is_trained ? static_cast<double>(tensor.nbytes()) : 0.0;
  }

  Counted& counted_;
};

struct OneOfMany : test::RunToy {
  Counted counted;

  // Trains as rank 0 of `size`, and returns the steps that were made.
  int64_t train(int size) {
    open();
    config.order.gradient_accumulation_steps = size;  // a batch for each
    config.output.output_path = folder / "run";
    const distributed::Ranks ranks = {.rank = 0, .size = size};
    const std::shared_ptr<Group> group = Group::meet(
        ranks, {.transport = [this](int rank, int of) -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<CountingTransport>(rank, of, counted);
        }});
    run::RunFolder run_folder(config.output.output_path);
    train::Trainer trainer(
        {*model, config, *samples, nullptr, nullptr, &run_folder, progress, nullptr, group.get()},
        selection());
    REQUIRE(trainer.run() == 0);
    return saved().step;
  }

  run::SavedState saved() const {
    return run::find_state(folder / "run", [](const std::string&) {});
  }
  // Of what is trained.
  double bytes() const {
    double sum = 0;
    for (const auto& [name, tensor] : saved().load("trained.safetensors"))
      sum += static_cast<double>(tensor.nbytes());
    return sum;
  }
};

TEST_CASE("A step asks for the bytes that are planned, on 8, 64 and 512 ranks", "[ranks]") {
  const int size = GENERATE(8, 64, 512);
  OneOfMany one;
  one.config.num_epochs = 3;
  one.config.dataset_num_workers = 1;
  one.config.output.save_steps = 1;
  const auto steps = static_cast<double>(one.train(size));
  REQUIRE(steps >= 3);
  const double others = static_cast<double>(size - 1) / size;
  const double sent =
      others * (2 * one.counted.reduced + one.counted.gathered + one.counted.exchanged);
  const RankMode mode = {.ranks = size, .group = size};
  CHECK(sent == steps * sent_bytes(mode, {.gradients = one.bytes()}, 0, 1));
}

}  // namespace
}  // namespace atelier::plan
