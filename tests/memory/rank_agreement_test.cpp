// What ranks keep of blocks whose rows they share out.
#include "memory/rank_agreement.h"

#include "atelier/shared_rows.h"

#include "memory/activation_runner.h"
#include "support/rank_threads.h"
#include "toy_net.h"

namespace atelier::memory {
namespace {

using test::Net;
using test::RankThreads;
using test::Tensors;

struct DirectRunner final : BlockRunner {
  Tensors run(Block& block, const Tensors& inputs) override { return block.forward(inputs); }
};

// Samples for a net: inputs of all rows, and the target.
struct Samples {
  Segments rows;
  Tensors inputs;
  at::Tensor target;
  explicit Samples(Segments given)
      : rows(std::move(given)), target(at::randn({rows.total(), test::kWidth})) {
    const at::Tensor angle = at::randn({rows.total(), test::kWidth / test::kHeads / 2});
    inputs = {at::randn({rows.total(), test::kWidth}), at::randn({rows.count(), test::kWidth}),
              angle.cos(), angle.sin()};
  }

  // Gives `net` this rank's.
  void share(Net& net) const {
    const SharedRows own(rows);
    net.inputs = {own.take(inputs[0]), inputs[1], own.take(inputs[2]), own.take(inputs[3]),
                  own.rows().tensor()};
    net.target = own.take(target);
  }
};

// What plans decide, in order.
std::string text_of(const ActivationPlan& plan) {
  std::string text;
  for (const ActivationPlan::Run& run : plan.runs) {
    text += run.is_whole ? "whole" : "";
    for (const ops::Action action : run.actions) text += static_cast<char>('0' + int(action));
    text += " ";
  }
  return text;
}

// The second has one row more, which the first of two or three ranks does not see.
const std::vector<Segments> kRows = {Segments({6, 4}), Segments({7, 4}), Segments({6, 4})};

// Some steps within `budget` by `size` ranks: whether gradients are those without a budget, and the
// plans of each rank.
struct Run {
  std::vector<bool> are_same;
  std::vector<std::string> plans;
  Run(int64_t size, const ActivationBudget& budget)
      : are_same(static_cast<size_t>(size)), plans(static_cast<size_t>(size)) {
    at::manual_seed(2);
    std::vector<Samples> samples;
    for (const Segments& rows : kRows) samples.emplace_back(rows);
    std::vector<std::unique_ptr<Net>> nets;
    for (int64_t r = 0; r < size; ++r)
      nets.push_back(std::make_unique<Net>(test::Train::kAdapters, 0.0, 4));
    RankThreads threads(size);
    const auto results = threads.run([&]() -> Tensors {
      const auto rank = static_cast<size_t>(threads.rank());
      Net& net = *nets[rank];
      DirectRunner direct;
      ActivationRunner runner(direct, budget, at::kCPU, [&](const ActivationPlan& plan) {
        plans[rank] += text_of(plan) + "\n";
      });
      bool is_same = true;
      for (int pass = 0; pass < 9; ++pass) {
        samples[static_cast<size_t>(pass) % samples.size()].share(net);
        const Tensors want = net.gradients_of(net.forward(direct));
        runner.begin_pass();
        is_same &= test::same_bits(net.gradients_of(net.forward(runner)), want);
      }
      return {at::tensor(int64_t{is_same})};
    });
    for (size_t r = 0; r < results.size(); ++r) are_same[r] = results[r][0].item<int64_t>() == 1;
  }
};

}  // namespace

TEST_CASE("Ranks that share out rows keep the same, and learn what they would without a budget",
          "[plan][ranks]") {
  for (const int64_t size : {2, 3, 5}) {  // heads are divided by 2, keys go around 3; 5 have few
    for (const char* text : {"none", "full", "0.3", "0.7", "20MB", "0.02MB", "auto"}) {
      INFO(size << " ranks, " << text);
      const Run run(size, parse_activation_budget(text));
      for (const bool is_same : run.are_same) CHECK(is_same);
      for (const std::string& plans : run.plans) CHECK(plans == run.plans.front());
      CHECK(run.plans.front().empty() == (text == std::string("none")));
    }
  }
}

TEST_CASE("The highest costs and the least memory of all ranks count", "[plan][ranks]") {
  RankThreads threads(3);
  const auto results = threads.run([&]() -> Tensors {
    const auto rank = static_cast<double>(threads.rank());
    auto costs = std::make_shared<BlockCosts>();
    costs->operators = {{"linear", 100 + threads.rank(), 3 - rank, /*is_unread=*/true},
                        {"attention", 50, 1, /*is_unread=*/threads.rank() != 1}};
    costs->seconds = 5 - rank;
    costs->working_bytes = threads.rank();
    agree_on({costs});
    const auto& [linear, attention] = std::tie(costs->operators[0], costs->operators[1]);
    const std::vector<double> least = least_of_ranks({7 - rank, rank});
    return {at::tensor({double(linear.bytes), linear.seconds, double(linear.is_unread),
                        double(attention.is_unread), costs->seconds, double(costs->working_bytes),
                        least[0], least[1]})};
  });
  const at::Tensor want = at::tensor({102.0, 3.0, 1.0, 0.0, 5.0, 2.0, 5.0, 0.0});
  for (const Tensors& rank : results) CHECK(at::equal(rank[0], want));
  CHECK(most_of_ranks({3, 1}) == std::vector<double>{3, 1});  // where there are no others
}

}  // namespace atelier::memory
